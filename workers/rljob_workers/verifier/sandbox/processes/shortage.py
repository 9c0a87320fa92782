"""How often the kernel ended a process of this control group for want of memory: what distinguishes a shortage from a
crash.

Version 2 counts in `memory.events`, version 1 in `memory.oom_control`; both have a line `oom_kill N`.
"""

import functools
import pathlib

from rljob_workers.runtime import control_group

_FILES = {1: "memory.oom_control", 2: "memory.events"}


def counter(
    membership: pathlib.Path = control_group.MEMBERSHIP, root: pathlib.Path = control_group.ROOT
) -> pathlib.Path | None:
    """Return the file that counts for this process, None where there is none."""
    places = (folder / _FILES[version] for folder, version in control_group.of_memory(membership, root))
    return next((path for path in places if _count(path) is not None), None)


def num_kills(path: pathlib.Path | None) -> int:
    """Return what a counter says; 0 without one, or if it has gone."""
    return 0 if path is None else _count(path) or 0


def num_kills_here() -> int:
    """Return what the counter of this process says."""
    return num_kills(_own_counter())


@functools.cache
def _own_counter() -> pathlib.Path | None:
    return counter()


def _count(path: pathlib.Path) -> int | None:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
