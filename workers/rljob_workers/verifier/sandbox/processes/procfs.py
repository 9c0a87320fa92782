"""What the kernel says of a process: CPU time, memory, threads and descendants. Linux /proc."""

import contextlib
import dataclasses
import os
import pathlib
import sys
import time

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Of the clocks that Linux keeps for each process, the one of the time that it ran (linux/posix-timers.h).
_CPUCLOCK_SCHED = 2
# Fields of /proc/<pid>/stat after the parenthesised name, which may itself hold spaces and parentheses.
_STATE, _UTIME, _STIME, _CUTIME, _CSTIME, _NUM_THREADS, _VSIZE, _RSS = 0, 11, 12, 13, 14, 17, 20, 21


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Of one process. CPU seconds include those of its children that were waited for."""

    cpu_s: float = 0.0
    num_threads: int = 0
    resident_bytes: int = 0


def cpu_s(pid: int) -> float:
    """Return user + system seconds of a process. Raises OSError if it is gone."""
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)


def mapped_bytes(pid: int) -> int:
    """Return the size of the address space. Raises OSError if the process is gone."""
    return int(_stat(pid)[_VSIZE])


def resident_bytes(pid: int) -> int:
    """Raises OSError if the process is gone."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def _stat(pid: int) -> list[bytes]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def usage(pid: int) -> Usage:
    """Return what a process uses; nothing if it is gone."""
    try:
        fields = _stat(pid)
    except OSError:
        return Usage()
    ticks = sum(int(fields[index]) for index in (_UTIME, _STIME, _CUTIME, _CSTIME))
    return Usage(ticks / _TICKS_PER_S, int(fields[_NUM_THREADS]), int(fields[_RSS]) * _PAGE_BYTES)


def run_delay_s(pid: int) -> float:
    """Return how long a process's main thread was ready to run and did not; 0 if it is gone."""
    return _run_delay_s(f"/proc/{pid}/schedstat")


def own_run_delay_s() -> float:
    """Return how long the calling thread was ready to run and did not."""
    return _run_delay_s("/proc/thread-self/schedstat")


def _run_delay_s(path: str) -> float:
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        return int(file.read().split()[1]) / 1e9
    return 0.0


def children(pid: int) -> frozenset[int]:
    """Return the children of all threads of a process; none if it is gone."""
    pids: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as listed:
                pids.update(map(int, listed.read().split()))
    return frozenset(pids)


def tree(pid: int, *, ended: bool = False, at_most: int = sys.maxsize) -> frozenset[int]:
    """Return a process and its descendants, or `at_most` of them; with `ended` also those that were not waited for.

    What those used is still theirs: anyone who sums a tree's CPU needs them. A bound keeps anyone who looks from
    falling behind a tree that grows.
    """
    members: set[int] = set()
    left = [pid]
    while left and len(members) < at_most:
        current = left.pop()
        with contextlib.suppress(OSError):
            if current not in members and (ended or _stat(current)[_STATE] != b"Z"):
                members.add(current)
        left += [child for child in children(current) if child not in members]
    return frozenset(members)


def is_active(task: int) -> bool:
    """Return whether a thread runs, is ready to, or waits for what no signal cuts short; False if it is gone."""
    with contextlib.suppress(OSError):
        return _stat(task)[_STATE] in (b"R", b"D")
    return False


def num_tasks(session: int) -> int:
    """Return the threads of all processes of a session; a process that ended counts until it is waited for."""
    return sum(usage(pid).num_threads for pid in in_sessions(frozenset((session,)), ended=True))


def in_sessions(leaders: frozenset[int], *, ended: bool = False, at_most: int = sys.maxsize) -> frozenset[int]:
    """Return processes whose session has one of these leaders, dead leaders included; with `ended` also those that were
    not waited for.
    """
    members: set[int] = set()
    for name in filter(str.isdecimal, os.listdir("/proc") if leaders else ()):
        if len(members) >= at_most:
            break
        with contextlib.suppress(OSError):
            if os.getsid(int(name)) in leaders and (ended or _stat(int(name))[_STATE] != b"Z"):
                members.add(int(name))
    return frozenset(members)
