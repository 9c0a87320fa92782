"""The tests of a repository as something that runs: laid out in a folder of its own, which is gone after the run.

<folder>/pytest.ini    pytest's configuration, ours and empty: with it the repository's own is not looked for
<folder>/tree/...      the repository, and nothing of its history

The folder is made and removed here, outside the process that runs in it, which may read it and no other run's
(`confinement/profile.py`). What happens in there is `processes/pytest_run.py`.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping

from rljob_api import errors
from rljob_workers.verifier.sandbox.confinement import landlock
from rljob_workers.verifier.sandbox.processes import packages
from rljob_workers.verifier.sandbox.processes.spawn import CANDIDATE, CannotRunError

# pytest and what it imports, but for the standard library.
PACKAGES = ("_pytest", "iniconfig", "packaging", "pluggy", "py", "pygments", "pytest")
PACKAGE_FILE = "__init__.py"
HARNESS = CANDIDATE.with_name("pytest_run.py")
_TREE, _CONFIGURATION, _EMPTY = "tree", "pytest.ini", "[pytest]\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Suite:
    """What runs: the tests of these ids in the repository of a folder that `laid_out` made.

    packages: that they may import besides the standard library and pytest.
    """

    folder: pathlib.Path
    tests: tuple[str, ...]
    packages: tuple[str, ...] = ()

    def request_fields(self) -> dict[str, object]:
        """Return its part of a process's request."""
        return {
            "tree": str(self.folder / _TREE),
            "configuration": str(self.folder / _CONFIGURATION),
            "tests": list(self.tests),
            "harness": dict(harness()),
            "packages": packages.request_fields(self.packages),
        }

    def readable(self) -> dict[str, int]:
        """Return what it may read in addition to what every program may, by its real path, and the rights on it."""
        file, tree = int(landlock.Fs.READ_FILE), int(landlock.Fs.READ_FILE | landlock.Fs.READ_DIR)
        of_packages = {
            os.path.dirname(path) if _is_package(path) else path: tree if _is_package(path) else file
            for path in harness().values()
        }
        own = {os.path.realpath(self.folder): tree, os.path.realpath(HARNESS): file}
        return {**own, **of_packages, **packages.installed(self.packages).readable}


@contextlib.contextmanager
def laid_out(files: Mapping[str, str], *, below: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a new folder with these texts by path, and remove it. Raises CannotRunError if it cannot be written.

    Paths have passed `graders/repository/paths.py`: none leads out of the folder.
    """
    try:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=below))
    except OSError as error:
        raise CannotRunError(f"cannot make the folder of a repository: {error.strerror}") from error
    try:
        _write(folder, files)
        yield folder
    finally:
        shutil.rmtree(folder)


@functools.cache
def harness(names: tuple[str, ...] = PACKAGES) -> Mapping[str, str]:
    """Return the file that each of these begins with, by name. Raises SandboxError for one that is not installed."""
    files: dict[str, str] = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise errors.SandboxError(
                f"tests of repositories are run by pytest, but its package {name} is not installed:"
                " install rljob[verifier]"
            )
        files[name] = os.path.realpath(spec.origin)
    return files


def _is_package(path: str) -> bool:
    return os.path.basename(path) == PACKAGE_FILE


def _write(folder: pathlib.Path, files: Mapping[str, str]) -> None:
    try:
        (folder / _CONFIGURATION).write_text(_EMPTY, encoding="ascii")
        (folder / _TREE).mkdir()
        for path, text in files.items():
            place = folder / _TREE / path
            place.parent.mkdir(parents=True, exist_ok=True)
            # A lone surrogate of an answer has no bytes, and is not Python either way.
            place.write_bytes(text.encode("utf-8", errors="replace"))
    except OSError as error:
        raise CannotRunError(f"cannot write the files of a repository: {error.strerror}") from error
