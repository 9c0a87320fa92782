"""Starts, talks to and ends one grading worker. Alongside `programs.py` the only module that makes processes.

start -> exchange, exchange, ... -> teardown. A worker is a fresh interpreter started by exec in a session of its own,
so that the whole group dies with one signal; the serving process is never forked, because gRPC's threads would not
survive it. The launcher owns the process, and the folder of one that has files to write: teardown is idempotent and
returns when nothing of the group, or of the folder, is left.
"""

import asyncio
import contextlib
import errno
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from rljob_api import errors
from rljob_workers.verifier import frames
from rljob_workers.verifier.sandbox.processes import procfs, removal

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
KILL_TIMEOUT_S = 5.0
EXIT_GRACE_S = 0.5
_EMPTY_SCANS, _SCAN_S = 2, 0.005
# Signals that someone else sends; any other is the worker's own fault, or that of what it is confined by.
_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# What a machine lacks for a while.
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)
# How many processes are looked at before something is done about them.
_MOST_AT_ONCE = 64

_ENVIRONMENT: Mapping[str, str] = {
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class WorkerLostError(Exception):
    """The worker died, or broke the protocol, which is the same to us. `signal` is what ended it, 0 if unknown."""

    def __init__(self, message: str, *, signal: int = 0) -> None:
        super().__init__(message)
        self.signal = signal


class Worker(Protocol):
    """One grading process, seen from outside."""

    async def exchange(self, request: bytes) -> dict[str, object]:
        """Send a frame and return the answer. Raises WorkerLostError."""

    def cpu_s(self) -> float:
        """Return the CPU seconds that it has used; the last known value once it is gone."""

    def note_programs(self) -> None:
        """Remember what it runs, which must end with it."""

    async def teardown(self) -> bool:
        """Kill it whole and wait. Returns False if something survived."""


Launch = Callable[[], Awaitable[Worker]]


class ProcessWorker:
    """A worker behind a socket pair."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        folder: pathlib.Path | None = None,
        max_reply_bytes: int = frames.MAX_REPLY_BYTES,
    ) -> None:
        """Take over a started process, and the folder that it writes to; `start` is the way to make one."""
        self._folder = folder
        self._process, self._reader, self._writer = process, reader, writer
        self._decoder = frames.Decoder(max_bytes=max_reply_bytes)
        self._cpu_s = 0.0
        self._sessions: frozenset[int] = frozenset()

    @property
    def pid(self) -> int:
        """Return its process id, which is its group's too."""
        return self._process.pid

    async def exchange(self, request: bytes) -> dict[str, object]:
        """Send a frame and return the answer. Raises WorkerLostError on any end, flood or malformed answer."""
        try:
            self._writer.write(request)
            await self._writer.drain()
            reply = await self._receive()
            # Its program has ended, and the number may be someone else's one day.
            self._sessions = frozenset()
            return reply
        except (OSError, errors.WireError) as error:
            raise await self._lost(str(error)) from error

    async def _receive(self) -> dict[str, object]:
        while data := await self._reader.read(1 << 16):
            for payload in self._decoder.feed(data):
                return payload
        raise await self._lost("closed its end")

    async def _lost(self, what: str) -> WorkerLostError:
        # The socket closes a moment before the process can be reaped.
        await _wait_for_exit(self._process, EXIT_GRACE_S)
        code = self._process.returncode
        return WorkerLostError(f"worker {self.pid} {what}, exit code {code}", signal=-code if code and code < 0 else 0)

    def gave_up(self) -> bool:
        """Return whether it ended by its own doing, and not because someone else killed it."""
        code = self._process.poll()
        return code is not None and -code not in _SENT_BY_OTHERS

    def cpu_s(self) -> float:
        with contextlib.suppress(OSError):
            self._cpu_s = procfs.cpu_s(self.pid)
        return self._cpu_s

    def note_programs(self) -> None:
        """Remember the sessions of what it runs; once it is gone, those of the last time."""
        if self._process.poll() is None:
            self._sessions = self._sessions_of_programs()

    async def teardown(self) -> bool:
        """Kill the whole tree, reap, close. Returns False if a member is still there after 5 s."""
        self._writer.close()
        no_programs = await self._end_programs()
        self._signal_group(signal.SIGKILL)
        await _wait_for_exit(self._process, KILL_TIMEOUT_S)
        if self._folder is not None:
            # Last: no one is left to write to it.
            _remove(self._folder)
        return no_programs and not self._signal_group(0)

    async def _end_programs(self) -> bool:
        """Kill the programs that the worker runs, which are in sessions of their own. Returns False if one stays.

        Before the worker ends: it adopts their orphans, so that its tree is all there is; and it makes no progress
        meanwhile, so that it starts no other. If it ended by itself, its program died with it, and what the program
        left is known by its session, which it cannot leave.
        """
        deadline_s = time.monotonic() + KILL_TIMEOUT_S
        num_empty = 0
        while num_empty < _EMPTY_SCANS:
            members = self._members_of_programs()
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    # Its group whole: processes that fork outrun anyone who ends them one by one.
                    group = os.getpgid(pid)
                    os.kill(pid, signal.SIGKILL) if group == self.pid else os.killpg(group, signal.SIGKILL)
            num_empty = 0 if members else num_empty + 1
            if time.monotonic() > deadline_s:
                return False
            await asyncio.sleep(_SCAN_S if members else 0)
        return True

    def _members_of_programs(self) -> frozenset[int]:
        """Return processes that are to end, some if there are many."""
        if self._process.poll() is not None:
            return procfs.in_sessions(self._sessions, at_most=_MOST_AT_ONCE)
        self._signal_group(signal.SIGSTOP)
        below = procfs.tree(self.pid, at_most=_MOST_AT_ONCE) - {self.pid}
        # Sessions too: a worker that is about to end has no tree any more.
        return below | procfs.in_sessions(self._sessions, at_most=_MOST_AT_ONCE)

    def _sessions_of_programs(self) -> frozenset[int]:
        """Return the sessions below it: a program's, and the interpreter's that the program is a fork of."""
        sessions = {self.pid}
        for pid in procfs.tree(self.pid, at_most=_MOST_AT_ONCE):
            with contextlib.suppress(ProcessLookupError):
                sessions.add(os.getsid(pid))
        return frozenset(sessions - {self.pid})

    def _signal_group(self, number: int) -> bool:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


async def start(
    *,
    module: str,
    arguments: Sequence[str],
    hello: Mapping[str, object],
    scratch: pathlib.Path | None = None,
    timeout_s: float = START_TIMEOUT_S,
    max_reply_bytes: int = frames.MAX_REPLY_BYTES,
) -> ProcessWorker:
    """Start `python -m module --fd N --parent P *arguments`, send `hello`, and return it once it says it is ready.

    scratch: where a folder of the worker's own is made, if it is to have one: `scratch` of its hello. Raises, with
    nothing left behind, SandboxError if it cannot be confined or refuses to start, and UnavailableError if it was
    killed before it was ready, took too long, or the machine has no room for it: another time it may start.
    """
    folder = None if scratch is None else _folder_below(scratch)
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = _spawn(module=module, arguments=arguments, fd=theirs.fileno())
    except (errors.SandboxError, errors.UnavailableError):
        ours.close()
        if folder is not None:
            _remove(folder)
        raise
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    worker = ProcessWorker(process, reader, writer, folder, max_reply_bytes)
    hello = hello if folder is None else {**hello, "scratch": str(folder)}
    try:
        async with asyncio.timeout(timeout_s):
            ready = await worker.exchange(frames.encode(hello, max_bytes=frames.MAX_REQUEST_BYTES))
    except (WorkerLostError, TimeoutError) as error:
        # Before it is ended here.
        kind = errors.SandboxError if worker.gave_up() else errors.UnavailableError
        await worker.teardown()
        raise kind(f"a grading worker did not become ready: {error!r}") from error
    except BaseException:
        await worker.teardown()
        raise
    if ready.get("ready") is not True:
        await worker.teardown()
        raise errors.SandboxError(f"a grading worker refused to start: {ready.get('error')}")
    return worker


def _folder_below(scratch: pathlib.Path) -> pathlib.Path:
    try:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        return pathlib.Path(tempfile.mkdtemp(prefix="worker-", dir=scratch.resolve()))
    except OSError as error:
        raise _error_of(error)(f"cannot make a folder below {str(scratch)!r}: {error.strerror}") from error


def _remove(folder: pathlib.Path) -> None:
    try:
        removal.remove_tree(str(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("could not remove %s: %s", folder, error.strerror)


def _spawn(*, module: str, arguments: Sequence[str], fd: int) -> "subprocess.Popen[bytes]":
    # No preexec_fn: with it Python would fork, and run code in a copy of a multi-threaded process.
    command = [sys.executable, "-P", "-s", "-W", "ignore", "-m", module, "--fd", str(fd)]
    try:
        return subprocess.Popen(
            [*command, "--parent", str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(fd,),
            start_new_session=True,
            env={**_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(_own_paths())},
            cwd="/",
        )
    except OSError as error:
        raise _error_of(error)(f"cannot start a grading worker: {error}") from error


def _error_of(error: OSError) -> type[errors.SandboxError | errors.UnavailableError]:
    return errors.UnavailableError if error.errno in _SHORTAGES else errors.SandboxError


def _own_paths() -> list[str]:
    # A fresh interpreter finds the standard library and site-packages itself; it must be given source checkouts.
    # Folders inside site-packages are not passed on: libraries put their vendored copies on sys.path, which would come
    # first.
    installed = [pathlib.Path(path).resolve() for path in sysconfig.get_paths().values()]
    folders = [pathlib.Path(path).resolve() for path in sys.path if os.path.isdir(path)]
    return [str(folder) for folder in folders if not any(folder.is_relative_to(place) for place in installed)]


async def _wait_for_exit(process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    descriptor = os.pidfd_open(process.pid)
    loop.add_reader(descriptor, exited.set)
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(exited.wait(), timeout_s)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    process.poll()
