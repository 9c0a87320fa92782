"""Tests carried into a running pod and run there: under its user, profile, limits and file system."""

import io
import pathlib
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from importlib import metadata

from rljob_testing.cluster.full import FullCluster

ROOT = pathlib.Path(__file__).parents[3]
# What the image of a role has no need of: the test runner, and what the tests import besides our packages.
PACKAGES = (
    "pytest", "pluggy", "iniconfig", "packaging", "pygments", "pytest-asyncio", "pytest-timeout", "hypothesis",
    "sortedcontainers", "pyyaml", "typing-extensions",
)  # fmt: skip
CARRIED = ("pyproject.toml", "tests/conftest.py", "tests/rljob_testing", "tests/unit/rljob_workers/verifier")
_UNPACK = "import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|').extractall(sys.argv[1])"


def carry(cluster: FullCluster, pod: str, folder: str) -> None:
    """Unpack the tests and what they need in a folder of a pod. Fails with kubectl's words."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for path, name in _files():
            archive.add(path, name, recursive=False)
    command = cluster.plane.kubectl_command("exec", "-i", pod, "--", "python", "-c", _UNPACK, folder)
    done = subprocess.run(command, input=made.getvalue(), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()


def run(
    cluster: FullCluster, pod: str, folder: str, tests: Sequence[str], *, timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    """Run test files (relative to the checkout) that were carried there; the caller looks at what came of it."""
    own = f"PYTHONPATH={folder}/site:{folder}/tests TMPDIR={folder} HOME={folder}"
    line = f"cd {folder} && {own} exec python -B -m pytest {' '.join(tests)}"
    command = cluster.plane.kubectl_command("exec", pod, "--", "sh", "-c", line)
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)


def _files() -> Iterator[tuple[pathlib.Path, str]]:
    for name in CARRIED:
        path = ROOT / name
        for each in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield each, str(each.relative_to(ROOT))
    for package in PACKAGES:
        for file in metadata.distribution(package).files or ():
            # Programs of a package lie alongside the packages, and are not imported.
            if ".." not in file.parts and file.suffix != ".pyc":
                yield pathlib.Path(str(file.locate())), f"site/{file}"
