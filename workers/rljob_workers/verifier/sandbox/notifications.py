"""System calls that wait for the answer of a supervisor: seccomp's user notification, from the supervisor's side.

A filter that returns USER_NOTIF stops the caller inside the kernel until somebody who holds the filter's listener says
what becomes of the call. Once nobody holds it, such calls fail with ENOSYS. Calls are only let go on as they are, and
their arguments never looked at: the caller could change those afterwards.
Sources: include/uapi/linux/seccomp.h, seccomp_unotify(2); Linux 5.5 or later.
"""

import ctypes
import fcntl
import os
import select
import socket
import struct

from rljob_workers.verifier.sandbox import syscalls

_GET_NOTIF_SIZES = 3
# struct seccomp_notif: id, pid, flags, seccomp_data. struct seccomp_notif_resp: id, value, error, flags.
_REQUEST, _ANSWER = struct.Struct("=QII64s"), struct.Struct("=QqiI")
_CONTINUE = 1
# _IOWR('!', 0, struct seccomp_notif) and _IOWR('!', 1, struct seccomp_notif_resp).
_RECEIVE, _SEND = ((3 << 30) | (size << 16) | (ord("!") << 8) | number for number, size in enumerate((80, 24)))


def sizes(architecture: syscalls.Architecture) -> tuple[int, int]:
    """Return how many bytes this kernel writes for a request and reads of an answer. Raises OSError if it has none."""
    found = (ctypes.c_uint16 * 3)()
    libc = ctypes.CDLL(None, use_errno=True)
    number = syscalls.number("seccomp", architecture)
    assert number is not None, "each architecture has it"
    if libc.syscall(ctypes.c_long(number), ctypes.c_uint(_GET_NOTIF_SIZES), ctypes.c_uint(0), found) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return max(found[0], _REQUEST.size), max(found[1], _ANSWER.size)


def handed_over(channel: socket.socket) -> int | None:
    """Return the descriptor of the listener that a process sent; None if it ended before. Raises OSError."""
    try:
        data, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    except ConnectionError:
        return None
    if not data:
        return None
    if not descriptors:
        # There was no descriptor left for it here.
        raise OSError(f"a message without its descriptor came from {channel.fileno()}")
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


class Listener:
    """The supervisor's end of one filter."""

    def __init__(self, descriptor: int, *, request_bytes: int, answer_bytes: int) -> None:
        """Take over the descriptor. Sizes: as `sizes` says."""
        self._descriptor, self._request_bytes, self._answer_bytes = descriptor, request_bytes, answer_bytes
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def fileno(self) -> int:
        """Return the descriptor: readable while a call waits, and once no process is left that could make one."""
        return self._descriptor

    def is_waiting(self) -> bool:
        """Return whether a call waits: without one `allow` would wait for it."""
        return any(events & select.POLLIN for _, events in self._poll.poll(0))

    def allow(self) -> int | None:
        """Let the first call that waits go on; return the thread whose it is. None: it was interrupted meanwhile."""
        request = bytearray(self._request_bytes)
        try:
            fcntl.ioctl(self._descriptor, _RECEIVE, request)
            identity, task, _, _ = _REQUEST.unpack_from(request)
            answer = _ANSWER.pack(identity, 0, 0, _CONTINUE)
            fcntl.ioctl(self._descriptor, _SEND, bytearray(answer.ljust(self._answer_bytes, b"\0")))
        except (FileNotFoundError, InterruptedError):
            # The caller ended, or a signal sent it back to make the call again.
            return None
        return int(task)

    def close(self) -> None:
        """Close it: calls that wait, and later ones, fail."""
        os.close(self._descriptor)
