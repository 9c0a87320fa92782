"""The definitions of Kueue's objects, from its pinned Go module: read where Go keeps it, copied nowhere."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

import yaml

from rljob_testing.cluster.binaries import MissingProgramError
from rljob_testing.cluster.light import LightCluster

MODULE, VERSION = "sigs.k8s.io/kueue", "v0.17.0"
SUM = "h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I="
_FOLDER = pathlib.Path("config/components/crd/bases")
_KINDS = ("workloads", "resourceflavors", "workloadpriorityclasses", "localqueues", "clusterqueues")
_TIMEOUT_S = 300


def definitions() -> Sequence[dict[str, Any]]:
    """Return the CustomResourceDefinitions. Raises MissingProgramError where the module cannot be had."""
    folder = _module()
    paths = [folder / _FOLDER / f"kueue.x-k8s.io_{kind}.yaml" for kind in _KINDS]
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]


def install(cluster: LightCluster) -> None:
    """Let a cluster serve them; no controller of Kueue runs there."""
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": definitions()})
    applied = cluster.kubectl("apply", "--server-side", "-f", "-", stdin=objects)
    assert applied.returncode == 0, applied.stderr
    names = [f"crd/{each['metadata']['name']}" for each in definitions()]
    waited = cluster.kubectl("wait", "--for=condition=Established", "--timeout=50s", *names)
    assert waited.returncode == 0, waited.stderr


def _module() -> pathlib.Path:
    """Return the folder of the module in Go's cache, where it is brought if it is not there."""
    if shutil.which("go") is None:
        raise MissingProgramError(f"go is missing: the definitions of {MODULE} come as a module")
    with tempfile.TemporaryDirectory() as outside:
        # Away from the modules of this repository, which do not require it.
        command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
        run = subprocess.run(
            command, cwd=outside, env={**os.environ, "GOFLAGS": "-mod=mod"}, capture_output=True, text=True,
            timeout=_TIMEOUT_S,
        )  # fmt: skip
    answer = json.loads(run.stdout or "{}")
    if run.returncode or answer.get("Sum") != SUM:
        raise MissingProgramError(
            f"{MODULE} {VERSION} is not what is pinned: {answer.get('Error') or answer.get('Sum')}"
        )
    return pathlib.Path(answer["Dir"])
