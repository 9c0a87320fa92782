"""The chart as Helm renders it."""

import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml
from generators import CHART

from rljob_testing.cluster import binaries

CI_VALUES = tuple(sorted((CHART / "ci").glob("*-values.yaml")))
KUBE_VERSION = "1.36.3"
TIMEOUT_S = 180.0
Manifest = dict[str, Any]


class HelmError(RuntimeError):
    """Helm refused; the message is what it wrote."""


class Helm:
    """Runs one Helm binary on the chart, away from the user's own configuration."""

    def __init__(self, program: pathlib.Path, home: pathlib.Path) -> None:
        self.program, self._home = program, home

    def run(self, *arguments: str, kubeconfig: pathlib.Path | None = None, timeout_s: float = TIMEOUT_S) -> str:
        """Return stdout. Raises HelmError."""
        folders = {f"HELM_{kind}_HOME": str(self._home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        environment = {"HOME": str(self._home), "PATH": "/usr/bin:/bin", **folders}
        if kubeconfig is not None:
            environment["KUBECONFIG"] = str(kubeconfig)
        done = subprocess.run(
            [str(self.program), *arguments], env=environment, capture_output=True, text=True, timeout=timeout_s
        )
        if done.returncode:
            raise HelmError(done.stderr)
        return done.stdout

    def template(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        files: Sequence[pathlib.Path] = (),
        api_versions: Sequence[str] = (),
        namespace: str = "rljob-system",
    ) -> list[Manifest]:
        """Return the objects of a release called `rljob`; hooks are among them."""
        path = self._home / "values.json"
        path.write_text(json.dumps(dict(values or {})))
        flags = [f"--values={file}" for file in (*files, path)]
        flags += [f"--api-versions={api}" for api in api_versions]
        text = self.run(
            "template", "rljob", str(CHART), f"--namespace={namespace}", f"--kube-version={KUBE_VERSION}", *flags
        )
        # The definition alone has thousands of lines: libyaml reads them ten times as fast.
        return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def program_or_skip(name: str) -> pathlib.Path:
    """Return a program; skip the test where it is not built, fail it in CI, where it could be."""
    try:
        return binaries.find(name)
    except binaries.MissingProgramError as error:
        if os.environ.get("CI") == "true" and os.geteuid() == 0 and shutil.which("go"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def only(manifests: Sequence[Manifest], kind: str, name: str = "") -> Manifest:
    """Return the one object of a kind, of a name if it is given."""
    found = [each for each in manifests if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects of kind {kind} {name}"
    return found[0]
