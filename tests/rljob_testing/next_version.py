"""The next version of the operator: this one's sources with another version number, a field more in the manifest and so
in every config that pods read, and pods that are rendered differently.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

from rljob_testing.cluster import manifests
from rljob_testing.cluster.light import LightCluster

_ROOT = pathlib.Path(__file__).parents[2]
VERSION, FIELD = "0.2.0", "pacePercent"
# Startup probes of every role, as the next version renders them.
PROBE_PERIOD_S = 7
_CHANGES = (
    ("rljob_api/__init__.py", '__version__ = "0.1.0"', f'__version__ = "{VERSION}"'),
    (
        "rljob_api/manifest/job.py",
        '    seed: int = Field(default=0, ge=0, le=INT32, description="Seed',
        '    pace_percent: int = Field(default=100, ge=1, le=100, description="A field of the next version.")\n'
        '    seed: int = Field(default=0, ge=0, le=INT32, description="Seed',
    ),
    ("rljob_operator/resources/container.py", "PERIOD_S = 5\n", f"PERIOD_S = {PROBE_PERIOD_S}\n"),
)


class NextVersion(NamedTuple):
    """Where its packages lie: for the environment of a process that is to run it."""

    environment: Mapping[str, str]

    def install_definition(self, cluster: LightCluster) -> None:
        """Apply its RLJob, whose schema has the field."""
        code = "import json; from rljob_api.validation import definitions; print(json.dumps(definitions.definitions()))"
        printed = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **self.environment}, check=True, capture_output=True
        )
        definition = json.loads(printed.stdout)["rljobs"]
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        assert FIELD in schema["properties"]["spec"]["properties"]
        applied = cluster.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(definition)
        )
        assert applied.returncode == 0, applied.stderr
        manifests.establish(cluster)


def make(folder: pathlib.Path) -> NextVersion:
    """Write its sources."""
    for source in (_ROOT / "proto" / "rljob_api", _ROOT / "operator" / "rljob_operator"):
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, after in _CHANGES:
        path = folder / name
        text = path.read_text()
        assert text.count(before) == 1, f"{name} has no line {before!r}"
        path.write_text(text.replace(before, after))
    # Before the packages of this version, which are on the path of the interpreter.
    return NextVersion({"PYTHONPATH": f"{folder}:{_ROOT / 'tests'}"})
