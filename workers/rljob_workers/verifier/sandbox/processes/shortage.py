"""How often the kernel ended a process of this control group for want of memory: what distinguishes a shortage from a
crash.

Version 2 counts in `memory.events`, version 1 in `memory.oom_control`; both have a line `oom_kill N`. In a container
the group is the root of what is mounted, whatever /proc says of its place outside.
"""

import functools
import pathlib
from collections.abc import Iterator

_MEMBERSHIP = pathlib.Path("/proc/self/cgroup")
_ROOT = pathlib.Path("/sys/fs/cgroup")


def counter(membership: pathlib.Path = _MEMBERSHIP, root: pathlib.Path = _ROOT) -> pathlib.Path | None:
    """Return the file that counts for this process, None where there is none."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((path for path in _places(lines, root) if _count(path) is not None), None)


def num_kills(path: pathlib.Path | None) -> int:
    """Return what a counter says; 0 without one, or if it has gone."""
    return 0 if path is None else _count(path) or 0


def num_kills_here() -> int:
    """Return what the counter of this process says."""
    return num_kills(_own_counter())


@functools.cache
def _own_counter() -> pathlib.Path | None:
    return counter()


def _places(lines: list[str], root: pathlib.Path) -> Iterator[pathlib.Path]:
    for line in lines:
        _, controllers, place = line.split(":", 2)
        inside = place.lstrip("/")
        if not controllers:
            yield root / inside / "memory.events"
            yield root / "memory.events"
        elif "memory" in controllers.split(","):
            yield root / "memory" / inside / "memory.oom_control"
            yield root / "memory" / "memory.oom_control"


def _count(path: pathlib.Path) -> int | None:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
