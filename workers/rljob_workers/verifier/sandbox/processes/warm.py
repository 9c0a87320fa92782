"""Keeps a warm interpreter (`zygote.py`), and has it fork a process per program: what imports cost is paid once.

It is replaced before its forks can wear it out, and after any run whose end it did not report. Only for programs that
are confined: nothing else would keep one from the interpreter that the next one is a copy of.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
from typing import IO

from rljob_workers.verifier.sandbox.processes import packages, procfs, spawn, zygote
from rljob_workers.verifier.sandbox.processes.spawn import CannotRunError

MAX_FORKS = 1_000
MAX_GROWTH = 1.2
START_TIMEOUT_S = 60.0
_FORK_TIMEOUT_S = 10.0
_MESSAGE_BYTES = 256


def is_worn(*, num_forks: int, max_forks: int, first_bytes: int, now_bytes: int) -> bool:
    """Return whether an interpreter is to be replaced: after so many forks, or once its memory grew by a fifth."""
    return num_forks >= max_forks or now_bytes > MAX_GROWTH * first_bytes


class Interpreter:
    """Starts programs as forks of one interpreter, one at a time. Not for several threads."""

    def __init__(self, packages: tuple[str, ...] = (), *, max_forks: int = MAX_FORKS) -> None:
        """`packages`: what it imports alongside the usual modules. Start nothing yet."""
        self._packages, self._max_forks = packages, max_forks
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._last: Forked | None = None
        self._num_forks, self._first_bytes = 0, 0

    @property
    def pids(self) -> frozenset[int]:
        """Return the interpreter's process id, which is not a program's."""
        return frozenset() if self._process is None else frozenset((self._process.pid,))

    def start(self, request_fd: int, reply_fd: int) -> "Forked":
        """Fork a process for one program. Raises CannotRunError; what is left then is replaced at the next start."""
        if self._process is not None and not self._is_usable(self._process):
            self.close()
        process, control = self._started()
        pipes = [spawn.Pipe() for _ in range(3)]
        stdin, stdout, stderr = pipes
        with contextlib.ExitStack() as stack:
            for pipe in pipes:
                stack.enter_context(pipe)
            theirs = [stdin.reader, stdout.writer, stderr.writer]
            try:
                descriptors = [*(stream.fileno() for stream in theirs), request_fd, reply_fd]
                socket.send_fds(control, [b"f"], descriptors)
                pid = int(_received(control, _FORK_TIMEOUT_S))
            except (OSError, ValueError) as error:
                message = _said(process)
                self.close()
                raise CannotRunError(f"the warm interpreter did not fork: {error} {message}".rstrip()) from error
            # The fork has them now. While one were open here as well, the end of the fork's output would not be seen.
            for stream in theirs:
                stream.close()
            stack.pop_all()
        self._num_forks += 1
        self._last = Forked(pid, process.pid, control, (stdin.writer, stdout.reader, stderr.reader))
        return self._last

    def ready(self) -> None:
        """Start it, if it does not run. Raises CannotRunError, for a package that cannot be imported too."""
        self._started()

    def close(self) -> None:
        """End the interpreter, and with it a program that it still waits for."""
        process, control, self._process, self._control, self._last = self._process, self._control, None, None, None
        if control is not None:
            control.close()
        if process is not None:
            process.kill()
            process.wait()
            _stream(process.stderr).close()

    def _is_usable(self, process: "subprocess.Popen[bytes]") -> bool:
        if process.poll() is not None:
            return False
        if self._last is not None and (self._last.returncode is None or self._last.lost):
            return False
        return not is_worn(
            num_forks=self._num_forks,
            max_forks=self._max_forks,
            first_bytes=self._first_bytes,
            now_bytes=procfs.resident_bytes(process.pid),
        )

    def _started(self) -> "tuple[subprocess.Popen[bytes], socket.socket]":
        if self._process is not None and self._control is not None:
            return self._process, self._control
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = _spawn(theirs.fileno(), self._packages)
        self._process, self._control = process, ours
        self._num_forks = 0
        try:
            ready = _received(ours, START_TIMEOUT_S)
            assert ready == zygote.READY.decode(), "its first message"
            self._first_bytes = procfs.resident_bytes(process.pid)
        except OSError as error:
            detail = _said(process)
            self.close()
            raise CannotRunError(f"a warm interpreter did not start: {error} {detail}".rstrip()) from error
        return process, ours


class Forked:
    """A program's process that the interpreter forked, and waits for. A `spawn.Started`."""

    def __init__(
        self, pid: int, parent: int, control: socket.socket, streams: tuple[IO[bytes], IO[bytes], IO[bytes]]
    ) -> None:
        """Take over the streams; the control socket stays the interpreter's."""
        self.pid, self.parent, self._control = pid, parent, control
        self.stdin, self.stdout, self.stderr = streams
        self.returncode: int | None = None
        self.cpu_s, self.lost = 0.0, False

    def poll(self) -> int | None:
        self.wait(0)
        return self.returncode

    def wait(self, timeout_s: float) -> bool:
        if self.returncode is not None or not _is_readable(self._control, timeout_s):
            return self.returncode is not None
        try:
            code, cpu_s = _received(self._control, 0).split()
            self.returncode, self.cpu_s = int(code), float(cpu_s)
        except (OSError, ValueError):
            self.returncode, self.lost = -signal.SIGKILL, True
        return True

    def fileno(self) -> int:
        """Return the control socket's: the next message says how it ended."""
        return self._control.fileno()

    def close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()


def _spawn(control_fd: int, imported: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    command = [*spawn.INTERPRETER, str(spawn.CANDIDATE), "--warm", str(control_fd), str(os.getpid())]
    command.append(json.dumps(packages.request_fields(imported)))
    try:
        # Pipes for all three, as its forks will have them: an interpreter looks at its streams once, when it starts.
        process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(control_fd,),
            start_new_session=True,
            env=spawn.ENVIRONMENT,
            cwd="/",
        )
    except OSError as error:
        raise CannotRunError(f"cannot start a warm interpreter: {error}") from error
    _stream(process.stdin).close()
    _stream(process.stdout).close()
    return process


def _is_readable(control: socket.socket, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _received(control: socket.socket, timeout_s: float) -> str:
    """Return the next message. Raises OSError at the end of the connection, or of the time."""
    if not _is_readable(control, timeout_s):
        raise TimeoutError(f"no answer in {timeout_s:g} s")
    message = control.recv(_MESSAGE_BYTES)
    if not message:
        raise ConnectionError("it has ended")
    return message.decode("ascii")


def _stream(pipe: "IO[bytes] | None") -> IO[bytes]:
    assert pipe is not None, "the standard streams are pipes"
    return pipe


def _said(process: "subprocess.Popen[bytes]") -> str:
    process.kill()
    text = _stream(process.stderr).read(4096).decode("utf-8", errors="backslashreplace")
    return text.strip().rpartition("\n")[2]
