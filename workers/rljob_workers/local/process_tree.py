"""Processes and their descendants, from /proc. Linux only; a process that ends while it is read is simply left out."""

import ctypes
import os
import pathlib
import signal

_PROC = pathlib.Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36


def parents() -> dict[int, int]:
    """Return the parent pid of every process; zombies, which run nothing any more, are left out."""
    found: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            stat = _stat_fields(int(entry.name))
            if stat is not None and stat[0] not in ("Z", "X"):
                found[int(entry.name)] = int(stat[1])
    return found


def descendants(root: int, parent_of: dict[int, int] | None = None) -> list[int]:
    """Return the pids below `root`, parents before children, `root` itself left out."""
    children: dict[int, list[int]] = {}
    for pid, parent in (parents() if parent_of is None else parent_of).items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    level = children.get(root, [])
    while level:
        found += level
        level = [child for pid in level for child in children.get(pid, [])]
    return found


def is_running(pid: int) -> bool:
    """Return whether `pid` exists and is not a zombie."""
    stat = _stat_fields(pid)
    return stat is not None and stat[0] not in ("Z", "X")


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; a process that is already gone is fine."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def adopt_orphans() -> None:
    """Make this process the one that orphaned descendants are handed to, so that none can leave the tree."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in brackets may hold spaces and brackets itself; the fields start behind the last one.
    return text.rpartition(")")[2].split()
