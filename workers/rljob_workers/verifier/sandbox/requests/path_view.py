"""Which paths there are for a confined program: those that it may read and the folders above them, the names of what it
has open, and no others.

Landlock refuses to open the rest; that a file exists, its size and its times (stat) it does not hide. Here each call
that names a path is looked at while the kernel holds it, and outside of the view it fails with ENOENT. What returns
something of a file is made here instead of by the kernel, and its result handed over: what another thread of the
program makes of the path meanwhile is never used. What opens or runs a file is allowed to continue, for Landlock to
decide; who wins that race learns from its error that a path exists, and no more.
Where a program may write, it can swap a folder for a link at any moment. What is made here for such a place is made of
what was opened for it, once it is known where that lies (`open_place.py`).
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
from rljob_workers.verifier.sandbox.requests import open_place

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

    def read(self, address: int, size: int) -> bytes:
        """Return so many bytes. Raises OSError as `text` does."""

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

    def __init__(
        self, readable: Iterable[str], architecture: syscalls.Architecture, writable: Iterable[str] = ()
    ) -> None:
        """readable: real paths of files, and of folders with all that is below them. writable: of folders in which the
        program may write, too.
        """
        self._writable = tuple(writable)
        self._roots = (*readable, *self._writable)
        self._architecture = architecture
        self._calls = _by_number(architecture, bool(self._writable))
        # As they were asked for, with their real paths. Only where nothing changes: in what a program cannot write to.
        self._folders: dict[str, str] = {}
        self._most_folders = 0 if self._writable else _MAX_FOLDERS

    @property
    def writes(self) -> bool:
        """Return whether the program has a place to write to."""
        return bool(self._writable)

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
        flags = 0 if call.flags is None else request.arguments[call.flags]
        begins = path_calls.AT_FDCWD if call.folder is None else _signed(request.arguments[call.folder])
        if call.second is not None and (second := self._outcome(call.second, request, memory)).error:
            return second
        if call.path is None or (call.changes and not request.arguments[call.path]):
            return self._changed(call, request, memory, _opened(request.task, begins), follow=True)
        path = os.fsdecode(memory.text(request.arguments[call.path]))
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
        if call.changes:
            return self._changed(call, request, memory, place, follow=opened is not None)
        if not call.makes:
            return Outcome()
        if opened is None and open_place.is_below(place, self._writable):
            with open_place.opened(place, self._writable) as descriptor:
                return self._made_of(descriptor, call, request, memory, flags)
        return _made(call, request, memory, place, flags)

    def _changed(self, call: PathCall, request: Request, memory: Memory, place: str, *, follow: bool) -> Outcome:
        """Set the mode or the times of a file that the program could write. Raises OSError."""
        with open_place.opened(place, self._writable, follow=follow) as descriptor:
            if call.flags is None:
                # The mode comes after the path, or after the descriptor of a call without one.
                position = (call.folder if call.path is None else call.path) or 0
                open_place.set_mode(descriptor, request.arguments[position + 1])
                return Outcome(value=0)
            assert call.path is not None, "the times come after it"
            address = request.arguments[call.path + 1]
            times = memory.read(address, path_calls.TIMES_BYTES) if address else None
            return _called(
                "utimensat", self._architecture, path_calls.AT_FDCWD, open_place.name_of(descriptor), times, 0
            )

    def _made_of(self, descriptor: int, call: PathCall, request: Request, memory: Memory, flags: int) -> Outcome:
        """Make the call on what is open here. Raises OSError."""
        flags &= ~path_calls.AT_SYMLINK_NOFOLLOW
        if call.result is None or call.result_bytes == path_calls.STATFS_BYTES:
            return _made(call, request, memory, open_place.name_of(descriptor), flags)
        if call.size is not None:
            target = open_place.target_of(descriptor)[: max(0, _signed(request.arguments[call.size]))]
            memory.write(request.arguments[call.result], target)
            return Outcome(value=len(target)) if target else Outcome(error=errno.EINVAL)
        # A link's own name in /proc would be followed by one of these and not by the other.
        flags |= path_calls.AT_EMPTY_PATH
        result = ctypes.create_string_buffer(call.result_bytes)
        if call.result == path_calls.STATX.result:
            outcome = _called("statx", self._architecture, descriptor, "", flags, request.arguments[3], result)
        else:
            outcome = _called("newfstatat", self._architecture, descriptor, "", result, flags)
        if not outcome.error:
            memory.write(request.arguments[call.result], result.raw)
        return outcome

    def resolved(self, path: str, *, follow: bool) -> str | None:
        """Return the real path of an absolute one, a link at its end followed or not; None: out of the view."""
        slash = "/" if path.endswith(("/", "/.")) else ""
        folder, _, name = path.rpartition("/")
        if slash or name == "..":
            folder, name = path, ""
        real = self._folders.get(folder) or self._folder(folder)
        if real is not None and len(self._folders) < self._most_folders:
            self._folders[folder] = real
        if name and real is not None:
            place = os.path.join(real, name)
            # A link of the program's own is there whatever it leads to: it can be listed, moved and removed.
            is_own = not follow and open_place.is_below(place, self._writable)
            target = place if is_own else self._lead(place)
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
        # Links are the machine's own, and may pass through what is not in the view; or the program's, and then Landlock
        # refuses what it opens by them.
        target = os.path.realpath(place) if os.path.islink(place) else place
        return target if is_shown(target, self._roots) else None


@functools.cache
def _by_number(architecture: syscalls.Architecture, writes: bool) -> Mapping[int, PathCall]:
    by_name = {**path_calls.path_calls(architecture), **(path_calls.WRITING if writes else {})}
    calls = {syscalls.number(name, architecture): call for name, call in by_name.items()}
    return {number: call for number, call in calls.items() if number is not None}


def _of_descriptor(call: PathCall, request: Request, memory: Memory, descriptor: int, flags: int) -> Outcome:
    """Return what becomes of a call without a path: it is about an open file, if its flags say so."""
    if call.folder is None or call.changes or not flags & path_calls.AT_EMPTY_PATH:
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
    assert call.path is not None, "it is made on a path"
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


def _called(name: str, architecture: syscalls.Architecture, *arguments: object) -> Outcome:
    """Make a call of our own."""
    number = syscalls.number(name, architecture)
    assert number is not None, "each architecture has it"
    value = int(_LIBC.syscall(ctypes.c_long(number), *map(_passed, arguments)))
    return Outcome(error=ctypes.get_errno()) if value < 0 else Outcome(value=value)


def _passed(argument: object) -> object:
    """Return an argument as wide as the kernel takes it; a text as its bytes."""
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    return os.fsencode(argument) if isinstance(argument, str) else argument


def _signed(argument: int) -> int:
    """Return an int of C's, which an argument holds in its low half."""
    return ctypes.c_int(argument & 0xFFFFFFFF).value
