"""What every test relies on: processes that tests start can import the fakes, too; properties have no time limit; and
whatever tests and their processes leave in the folder for temporary files goes at the end.
"""

import gc
import os
import pathlib
import shutil
import signal
import tempfile
from collections.abc import Generator
from typing import Any

import hypothesis
import pytest

from rljob_workers.runtime import boot

TESTS = str(pathlib.Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH", "")]))

# Programs in Go collect garbage when their memory has grown by so many percent. With their own 100 an API server spends
# a fifth of its time on it. Thousands of jobs fill this machine's memory so; towards the limit it is collected sooner.
os.environ.setdefault("GOGC", "400")
os.environ.setdefault("GOMEMLIMIT", "6GiB")

# Started in the background by a shell, this process ignores Ctrl-C, and so would every run that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine falsifies no property; hypothesis's own profile for CI stays what the others come from.
hypothesis.settings.register_profile(
    "patient",
    parent=hypothesis.settings.default,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")

_PREFIX = "rljob-tests-"
_OBJECTS_BETWEEN_COLLECTIONS = (20_000, 20, 20)


def _own_temporary_folder() -> pathlib.Path | None:
    """Make a folder for temporary files of this session, remove those of sessions that were killed, and return it.

    None in a worker of pytest-xdist, which has the folder of the process that started it. Folders of `tmp_path` stay
    where pytest keeps the last ones.
    """
    system = pathlib.Path(tempfile.gettempdir())
    if system.name.startswith(_PREFIX):
        return None
    for left in system.glob(f"{_PREFIX}*"):
        if not pathlib.Path("/proc", left.name.removeprefix(_PREFIX)).exists():
            shutil.rmtree(left, ignore_errors=True)
    own = system / f"{_PREFIX}{os.getpid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(system))
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)
    return own


_OWN = _own_temporary_folder()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests with no garbage collection among it, and leave what that made out of every later one.

    Torch and vLLM are half a million objects, and with Python's own threshold a test looks at them several times.
    """
    with boot.importing():
        collected = yield
    gc.set_threshold(*_OBJECTS_BETWEEN_COLLECTIONS)
    return collected


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out tests of `--dist loadfile`."""
    from rljob_testing.shared_clusters import ByCluster

    return ByCluster(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_unconfigure() -> None:
    """Remove what is left."""
    if _OWN is not None:
        shutil.rmtree(_OWN, ignore_errors=True)
