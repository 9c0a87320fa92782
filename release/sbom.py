"""Software bills of materials, CycloneDX: the packages of each lock that something of a release is installed from."""

import pathlib
import sys

from generators import ROOT

from release import programs

LOCKS = ("cli", "slim", "worker-cpu", "worker-cuda")
CYCLONEDX = "1.6"


def path(folder: pathlib.Path, lock: str) -> pathlib.Path:
    """Return where the bill of a lock is."""
    return folder / f"sbom-{lock}.cdx.json"


def write(folder: pathlib.Path, lock: str, *, epoch: int) -> None:
    """Write the bill of a lock. Raises ReleaseError."""
    # Checking it by the schema takes five times as long as making it; a test checks one of them.
    programs.run(
        sys.executable, "-m", "cyclonedx_py", "requirements", ROOT / f"workers/constraints/{lock}.txt",
        "--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--spec-version", CYCLONEDX,
        "--output-format", "JSON", "--output-file", path(folder, lock), "--no-validate",
        environment={"SOURCE_DATE_EPOCH": str(epoch)},
    )  # fmt: skip
