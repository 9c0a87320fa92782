"""Processes, their descendants and what memory they hold. A process that ends while it is read is simply left out."""

import contextlib
import ctypes
import os
import pathlib
import signal
from collections.abc import Callable, Mapping, Sequence

import psutil

_PR_SET_CHILD_SUBREAPER = 36
TOTAL = "total"
# Resident sizes that grew by less than this share of what they were at the last question bring no new peak.
_GROWTH = 0.02
# Zombies and processes that are about to go, by their states in proc(5).
_ENDED = (b"Z", b"X")


def parents() -> dict[int, int]:
    """Return the parent pid of every process; zombies, which run nothing any more, are left out.

    Asked each second of a run: psutil would take a fifth of a core for it on a machine with 2,000 processes, five times
    what reading the one file of each takes.
    """
    parents_of_all = {pid: _parent(pid) for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))}
    return {pid: parent for pid, parent in parents_of_all.items() if parent is not None}


def _parent(pid: int) -> int | None:
    """Return the parent of a process; None where it runs nothing any more, or this user may not look at it."""
    try:
        stat = pathlib.Path("/proc", str(pid), "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # proc(5): after the name of the program, which may hold anything, state and parent.
    state, parent = stat[stat.rindex(b")") + 2 :].split(b" ", 2)[:2]
    return None if state in _ENDED else int(parent)


def descendants(root: int, parent_of: Mapping[int, int] | None = None) -> list[int]:
    """Return the pids below `root`, parents before children, `root` itself left out."""
    children: dict[int, list[int]] = {}
    for pid, parent in (parents() if parent_of is None else parent_of).items():
        children.setdefault(parent, []).append(pid)
    pids: list[int] = []
    level = children.get(root, [])
    while level:
        pids += level
        level = [child for pid in level for child in children.get(pid, [])]
    return pids


def is_running(pid: int) -> bool:
    """Return whether `pid` exists and is not a zombie."""
    return _parent(pid) is not None


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; a process that is already gone is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def adopt_orphans() -> None:
    """Make this process the one that orphaned descendants are handed to, so that none can leave the tree."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def process_bytes(pid: int) -> int:
    """Return the PSS of one process in bytes, its RSS where PSS is unreadable, 0 when it is gone."""
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except psutil.Error:
        return resident_bytes(pid)


def resident_bytes(pid: int) -> int:
    """Return the RSS of one process in bytes, 0 when it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def tree_bytes(root: int, parent_of: Mapping[int, int], size: Callable[[int], int] = process_bytes) -> int:
    """Return the sum over `root` and its descendants."""
    return sum(size(pid) for pid in (root, *descendants(root, parent_of)))


class PeakMemory:
    """Peaks in bytes per role and of the sum of all at one moment (`total`)."""

    def __init__(self, peaks: Mapping[str, int] | None = None) -> None:
        """Start from known peaks, for example of an earlier segment of the run."""
        self._peaks = dict(peaks or {})
        self._asked_at: dict[str, int] = {}

    @property
    def peaks(self) -> dict[str, int]:
        """Return the highest value seen of each role, and of their sum."""
        return dict(self._peaks)

    def sample(self, roots: Mapping[str, Sequence[int]]) -> None:
        """Measure now. `roots` names the top processes of each role."""
        parent_of = parents()

        def measure(size: Callable[[int], int]) -> dict[str, int]:
            return {role: sum(tree_bytes(pid, parent_of, size) for pid in pids) for role, pids in roots.items()}

        if self.may_be_peak(measure(resident_bytes)):
            self.observe(measure(process_bytes))

    def may_be_peak(self, resident: Mapping[str, int]) -> bool:
        """Return whether a role, or all together, grew beyond what they were when this said yes last."""
        sizes = {**resident, TOTAL: sum(resident.values())}
        grown = {role: size for role, size in sizes.items() if size > self._asked_at.get(role, 0) * (1 + _GROWTH)}
        self._asked_at |= grown
        return bool(grown)

    def observe(self, role_bytes: Mapping[str, int]) -> None:
        self.merge({**role_bytes, TOTAL: sum(role_bytes.values())})

    def merge(self, peaks: Mapping[str, int]) -> None:
        for role, size in peaks.items():
            self._peaks[role] = max(size, self._peaks.get(role, 0))
