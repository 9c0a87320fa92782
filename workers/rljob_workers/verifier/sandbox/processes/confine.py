"""What a grading worker does to itself before it sees the first answer. Irrevocable, in this order.

Programs of the policy are confined further, each in a process of its own: `enter.py`.
"""

import ctypes
import os
import resource
import signal

from rljob_api import errors
from rljob_workers.verifier.sandbox.processes import procfs

MAX_FILES = 64
# The kernel's limit is behind the supervisor's clock: it acts if the supervisor itself is stuck.
CPU_GRACE_S = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_CHILD_SUBREAPER = 36


def die_with(parent: int) -> None:
    """Have the kernel SIGKILL this process when its parent ends. Raises SandboxError if it already has."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        raise errors.SandboxError(f"parent {parent} ended before this worker was ready")


def close_fds_except(kept_fd: int) -> None:
    """Close every descriptor above the standard three but `kept_fd`."""
    os.closerange(3, kept_fd)
    os.closerange(kept_fd + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def adopt() -> None:
    """Become the parent of every descendant that loses its own, so that none is lost sight of."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide() -> None:
    """Keep other processes of this user from this one's memory, environment and descriptors, /proc included."""
    _prctl(_PR_SET_DUMPABLE, 0)


def silence() -> None:
    """Send the standard streams to nowhere: nothing that a grader prints may reach the log or the protocol."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def confine(*, memory_bytes: int, file_bytes: int = 0) -> None:
    """Apply no_new_privs and the limits; `memory_bytes` comes on top of what is mapped already.

    file_bytes: how large a file may be that this process writes, 0 where it has none to write. Raises SandboxError if
    the kernel refuses one.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    hide()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, file_bytes)
    _limit(resource.RLIMIT_NOFILE, MAX_FILES)
    _limit(resource.RLIMIT_AS, procfs.mapped_bytes(os.getpid()) + memory_bytes)


def allow_cpu_s(seconds: float) -> None:
    """Let this process use `seconds` of CPU from now on, and a little more, before the kernel kills it."""
    used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used_s + seconds) + 1 + CPU_GRACE_S, hard))


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(kind, (soft, soft))
    except (OSError, ValueError) as error:
        raise errors.SandboxError(f"cannot set limit {kind} to {value}: {error}") from error


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise errors.SandboxError(f"prctl {option} failed: {os.strerror(ctypes.get_errno())}")
