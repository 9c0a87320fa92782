"""Source distribution and wheel, the wheel from the source distribution as others will build it."""

import pathlib
import shutil
import sys

from generators import ROOT

from release import programs


def build(folder: pathlib.Path, *, scratch: pathlib.Path, epoch: int) -> pathlib.Path:
    """Write both; return the wheel. scratch: an empty folder. Raises ReleaseError."""
    # Whatever else uv leaves where it writes stays behind in the scratch folder.
    programs.run(
        programs.uv(), "build", "-q", "--no-build-isolation", "--python", sys.executable, "--out-dir", scratch, ROOT,
        environment={"SOURCE_DATE_EPOCH": str(epoch)},
    )  # fmt: skip
    (source,), (wheel,) = scratch.glob("*.tar.gz"), scratch.glob("*.whl")
    shutil.copyfile(source, folder / source.name)
    return pathlib.Path(shutil.copyfile(wheel, folder / wheel.name))
