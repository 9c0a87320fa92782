"""A small valid manifest and a way to change it by path."""

import copy
import json
from collections.abc import Callable, Mapping

import pytest

from rljob_api.manifest.job import RLJob
from rljob_api.validation.load import load_manifest

Changes = Mapping[str, object]

MANIFEST: dict[str, object] = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "job"},
    "spec": {
        "maxSteps": 10,
        "model": {"name": "builtin:smollm2-135m-instruct"},
        "data": {"train": [{"name": "sums", "path": "sums.jsonl"}]},
        "verifier": {"rewards": [{"name": "right", "type": "exact"}]},
    },
}


def changed(changes: Changes) -> str:
    """Return the manifest as text with values put at paths below spec, such as "data.train.0.path"."""
    manifest = copy.deepcopy(MANIFEST)
    for path, value in changes.items():
        node: object = manifest["spec"]
        *parents, last = path.split(".")
        for key in parents:
            node = node[int(key)] if isinstance(node, list) else node.setdefault(key, {})  # type: ignore[attr-defined]
        node[int(last) if isinstance(node, list) else last] = value  # type: ignore[index]
    return json.dumps(manifest)


@pytest.fixture
def manifest_text() -> Callable[[Changes], str]:
    """Return the function that gives a changed manifest as text."""
    return changed


@pytest.fixture
def make_job() -> Callable[..., RLJob]:
    """Return the function that gives a valid job with changes below spec."""

    def make(changes: Changes | None = None) -> RLJob:
        return load_manifest(changed(changes or {}))

    return make
