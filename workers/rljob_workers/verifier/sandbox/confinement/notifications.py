"""System calls that wait for the answer of a supervisor: seccomp's user notification, from the supervisor's side.

A filter that returns USER_NOTIF stops the caller inside the kernel until someone who holds the filter's listener says
what becomes of the call. Once no one holds it, such calls fail with ENOSYS. A call that is allowed to continue
unchanged must not depend on what its arguments point to: the caller can change that afterwards.
Sources: include/uapi/linux/seccomp.h, seccomp_unotify(2); Linux 5.5 or later.
"""

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
from typing import NamedTuple

from rljob_workers.verifier.sandbox.confinement import syscalls

_GET_NOTIF_SIZES = 3
# struct seccomp_notif: id, pid, flags, and of seccomp_data number, architecture, instruction pointer, six arguments.
# struct seccomp_notif_resp: id, value, error, flags.
_REQUEST, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_CONTINUE = 1
# _IOWR('!', 0, struct seccomp_notif), _IOWR('!', 1, struct seccomp_notif_resp) and _IOW('!', 2, __u64).
_RECEIVE, _SEND, _IS_VALID = (
    (direction << 30) | (size << 16) | (ord("!") << 8) | number
    for number, (direction, size) in enumerate(((3, 80), (3, 24), (1, 8)))
)


class Request(NamedTuple):
    """A call that waits. id: the kernel's, of this request alone; task: the thread's; number: the call's."""

    id: int
    task: int
    number: int
    arguments: tuple[int, ...]


def sizes(architecture: syscalls.Architecture) -> tuple[int, int]:
    """Return how many bytes this kernel writes for a request and reads of an answer. Raises OSError if it has none."""
    buffer = (ctypes.c_uint16 * 3)()
    libc = ctypes.CDLL(None, use_errno=True)
    number = syscalls.number("seccomp", architecture)
    assert number is not None, "each architecture has it"
    if libc.syscall(ctypes.c_long(number), ctypes.c_uint(_GET_NOTIF_SIZES), ctypes.c_uint(0), buffer) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return max(buffer[0], _REQUEST.size), max(buffer[1], _ANSWER.size)


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
        """Return whether a call waits: without one `receive` would wait for it."""
        return any(events & select.POLLIN for _, events in self._poll.poll(0))

    def receive(self) -> Request | None:
        """Return the first call that waits, which continues to wait for its answer; None: it was interrupted before."""
        buffer = bytearray(self._request_bytes)
        try:
            fcntl.ioctl(self._descriptor, _RECEIVE, buffer)
        except (FileNotFoundError, InterruptedError):
            # The caller ended, or a signal sent it back to make the call again.
            return None
        identity, task, _, number, _, _, *arguments = _REQUEST.unpack_from(buffer)
        return Request(identity, task, number, tuple(arguments))

    def is_valid(self, request: Request) -> bool:
        """Return whether it still waits: its thread is the one that asked, and no other of the same number."""
        try:
            fcntl.ioctl(self._descriptor, _IS_VALID, request.id.to_bytes(8, sys.byteorder))
        except FileNotFoundError:
            return False
        return True

    def go_on(self, request: Request) -> bool:
        """Let the kernel make the call; return whether it still waited."""
        return self._send(_ANSWER.pack(request.id, 0, 0, _CONTINUE))

    def returned(self, request: Request, value: int) -> bool:
        """Have the call return this, without the kernel making it; return whether it still waited."""
        return self._send(_ANSWER.pack(request.id, value, 0, 0))

    def failed(self, request: Request, error: int) -> bool:
        """Have the call fail with this number of errno; return whether it still waited."""
        return self._send(_ANSWER.pack(request.id, 0, -error, 0))

    def _send(self, answer: bytes) -> bool:
        try:
            fcntl.ioctl(self._descriptor, _SEND, answer.ljust(self._answer_bytes, b"\0"))
        except (FileNotFoundError, InterruptedError):
            return False
        return True

    def close(self) -> None:
        """Close it: calls that wait, and later ones, fail."""
        os.close(self._descriptor)
