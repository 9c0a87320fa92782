"""Which paths there are for a confined program: those that it may read and the folders above them, the names of what it
has open, and no others.

Landlock refuses to open the rest; that a file exists, its size and its times (stat) it does not hide. Here each call
that names a path is looked at while the kernel holds it, and outside of the view it fails with ENOENT. What returns
something of a file is made here instead of by the kernel, and its result handed over: what another thread of the
program makes of the path meanwhile is never used. What opens or runs a file is allowed to continue, for Landlock to
decide; who wins that race learns from its error that a path exists, and no more.
"""

import ctypes
import errno
import functools
import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from rljob_workers.verifier.sandbox.confinement import path_calls, syscalls
from rljob_workers.verifier.sandbox.confinement.notifications import Request
from rljob_workers.verifier.sandbox.confinement.path_calls import PathCall

MAX_PATH_BYTES = 4096
_STANDARD = ("/dev/stdin", "/dev/stdout", "/dev/stderr")
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self|proc/thread-self)/fd/([0-9]{1,7})")
# More than innocent programs import from, and little memory if each path is as long as may be.
_MAX_FOLDERS = 256
# Made once: as long as a call takes.
_LIBC = ctypes.CDLL(None, use_errno=True)


class Memory(Protocol):
    """A thread's memory: a `foreign_memory.ForeignMemory`."""

    def text(self, address: int) -> bytes:
        """Return what is there, up to a NUL. Raises OSError with the error that the call would have had."""

    def write(self, address: int, data: bytes) -> None:
        """Raises OSError as `text` does."""


class Outcome(NamedTuple):
    """What becomes of a call: an error, or a value; without either the kernel makes it."""

    error: int = 0
    value: int | None = None


def is_shown(path: str, roots: Iterable[str]) -> bool:
    """Return whether a real path is one of the roots, below one, or a folder above one."""
    return any(
        path == root or path.startswith(f"{root.rstrip('/')}/") or root.startswith(f"{path.rstrip('/')}/")
        for root in roots
    )


def named_descriptor(path: str) -> int | None:
    """Return the descriptor that a path names, which is the caller's own; None if it names none."""
    if path in _STANDARD:
        return _STANDARD.index(path)
    match = _DESCRIPTOR.fullmatch(path)
    return None if match is None else int(match[1])


class PathView:
    """One program's. Not for several threads."""

    def __init__(self, readable: Iterable[str], architecture: syscalls.Architecture) -> None:
        """readable: real paths of files, and of folders with all that is below them."""
        self._roots = tuple(readable)
        self._calls = _by_number(architecture)
        # As they were asked for, with their real paths. Nothing changes while a program runs: it cannot write.
        self._folders: dict[str, str] = {}

    def has(self, number: int) -> bool:
        """Return whether this call names a path."""
        return number in self._calls

    def outcome(self, request: Request, memory: Memory) -> Outcome:
        """Return what becomes of a call that names a path."""
        call = self._calls[request.number]
        try:
            return self._outcome(call, request, memory)
        except OSError as error:
            return Outcome(error=error.errno or errno.EFAULT)

    def _outcome(self, call: PathCall, request: Request, memory: Memory) -> Outcome:
        path = os.fsdecode(memory.text(request.arguments[call.path]))
        flags = 0 if call.flags is None else request.arguments[call.flags]
        begins = path_calls.AT_FDCWD if call.folder is None else _signed(request.arguments[call.folder])
        if not path:
            return _of_descriptor(call, request, memory, begins, flags)
        if not path.startswith("/"):
            try:
                path = os.path.join(os.readlink(_opened(request.task, begins)), path)
            except OSError:
                return Outcome(error=errno.EBADF)
        opened = named_descriptor(path)
        if opened is None:
            place = self.resolved(path, follow=call.follows and not flags & path_calls.AT_SYMLINK_NOFOLLOW)
        else:
            # The kernel follows such a name to what is open, no matter who could open it now.
            place = _opened(request.task, opened)
        if place is None:
            return Outcome(error=errno.ENOENT)
        return _made(call, request, memory, place, flags) if call.makes else Outcome()

    def resolved(self, path: str, *, follow: bool) -> str | None:
        """Return the real path of an absolute one, a link at its end followed or not; None: out of the view."""
        slash = "/" if path.endswith(("/", "/.")) else ""
        folder, _, name = path.rpartition("/")
        if slash or name == "..":
            folder, name = path, ""
        real = self._folders.get(folder) or self._folder(folder)
        if real is not None and len(self._folders) < _MAX_FOLDERS:
            self._folders[folder] = real
        if name and real is not None:
            place = os.path.join(real, name)
            target = self._lead(place)
            real = target if follow or target is None else place
        return real if real is None else real.rstrip("/") + slash or "/"

    def _folder(self, path: str) -> str | None:
        """Return the real path of a folder, link after link followed; None: out of the view."""
        real = "/"
        for part in path.split("/"):
            if part in ("", "."):
                continue
            target = os.path.dirname(real) if part == ".." else self._lead(os.path.join(real, part))
            if target is None:
                return None
            real = target
        return real

    def _lead(self, place: str) -> str | None:
        """Return where a place in a folder of the view leads to: itself, or what it is a link to."""
        # Links are the machine's own, and may pass through what is not in the view.
        target = os.path.realpath(place) if os.path.islink(place) else place
        return target if is_shown(target, self._roots) else None


@functools.cache
def _by_number(architecture: syscalls.Architecture) -> Mapping[int, PathCall]:
    calls = {syscalls.number(name, architecture): call for name, call in path_calls.path_calls(architecture).items()}
    return {number: call for number, call in calls.items() if number is not None}


def _of_descriptor(call: PathCall, request: Request, memory: Memory, descriptor: int, flags: int) -> Outcome:
    """Return what becomes of a call without a path: it is about an open file, if its flags say so."""
    if call.folder is None or not flags & path_calls.AT_EMPTY_PATH:
        return Outcome(error=errno.ENOENT)
    if not call.makes:
        return Outcome()
    outcome = _made(call, request, memory, _opened(request.task, descriptor), flags & ~path_calls.AT_SYMLINK_NOFOLLOW)
    return Outcome(error=errno.EBADF) if outcome.error == errno.ENOENT else outcome


def _opened(task: int, descriptor: int) -> str:
    """Return a path to what a thread has open, or to the folder that it works in."""
    return f"/proc/{task}/cwd" if descriptor == path_calls.AT_FDCWD else f"/proc/{task}/fd/{descriptor}"


def _made(call: PathCall, request: Request, memory: Memory, path: str, flags: int) -> Outcome:
    """Make the call on this path, and write what it returns to where the program wants it. Raises OSError."""
    room = call.result_bytes
    if call.size is not None:
        room = min(_signed(request.arguments[call.size]), MAX_PATH_BYTES)
        if room <= 0:
            return Outcome(error=errno.EINVAL)
    name, result = ctypes.create_string_buffer(os.fsencode(path)), ctypes.create_string_buffer(max(1, room))
    changed = {
        call.path: ctypes.addressof(name),
        call.folder: path_calls.AT_FDCWD,
        call.flags: flags & ~path_calls.AT_EMPTY_PATH,
        call.result: ctypes.addressof(result),
        call.size: room,
    }
    arguments = [changed.get(position, value) for position, value in enumerate(request.arguments)]
    value = int(_LIBC.syscall(ctypes.c_long(request.number), *map(ctypes.c_ulong, arguments)))
    if value < 0:
        return Outcome(error=ctypes.get_errno())
    if call.result is not None:
        memory.write(request.arguments[call.result], result.raw[: room if call.size is None else value])
    return Outcome(value=value)


def _signed(argument: int) -> int:
    """Return an int of C's, which an argument holds in its low half."""
    return ctypes.c_int(argument & 0xFFFFFFFF).value
