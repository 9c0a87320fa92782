"""How a program's process begins, and what its runner sees of it: a fresh interpreter here, a warm one's fork in
`warm.py`.

Both run `candidate.py` with a socket to read a request from, a reply to write, the standard three as pipes, in a
session of their own, and have a parent that they die with.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Protocol

ENVIRONMENT: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Each further arena reserves 64 MiB of the address space, which is limited, and threads would fail for want of it.
    "MALLOC_ARENA_MAX": "1",
}
# The real path: a link or a shim may lead through folders that someone can write to.
INTERPRETER = (os.path.realpath(sys.executable), "-I", "-S", "-B")
CANDIDATE = pathlib.Path(__file__).with_name("candidate.py")


class CannotRunError(Exception):
    """The run could not be started, or something of it would not die: no one's answer is to blame."""


class Started(Protocol):
    """One program's process. `parent`: whom it dies with; `lost`: it did so, and how it ended by itself is not known.
    `returncode`: as subprocess has it, None while it runs.
    """

    pid: int
    parent: int
    lost: bool
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    @property
    def returncode(self) -> int | None:
        """Return how it ended, as far as `poll` and `wait` have seen."""

    @property
    def cpu_s(self) -> float:
        """Return the CPU seconds of the ended process that this one did not wait for itself."""

    def poll(self) -> int | None:
        """Look whether it has ended."""

    def wait(self, timeout_s: float) -> bool:
        """Return whether it ended within the time."""

    def fileno(self) -> int:
        """Return a descriptor that is readable once it has ended."""

    def close(self) -> None:
        """Close the streams and what `fileno` returned."""


class Start(Protocol):
    """Begins a process that reads its request from one descriptor, a socket over which it hands over what it asks, and
    replies on another; the caller closes both.
    """

    def __call__(self, request_fd: int, reply_fd: int) -> Started:
        """Raises CannotRunError."""


class Pipe:
    """Both ends as objects, so that closing one twice cannot close another's descriptor."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.reader: IO[bytes] = os.fdopen(reader, "rb", buffering=0)
        self.writer: IO[bytes] = os.fdopen(writer, "wb", buffering=0)

    def __enter__(self) -> "Pipe":
        return self

    def __exit__(self, *_: object) -> None:
        """Close what is still open."""
        self.reader.close()
        self.writer.close()


class Fresh:
    """An interpreter of its own, started by exec."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        """Take over a process whose standard streams are pipes."""
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self.pid, self.parent, self.lost = process.pid, os.getpid(), False
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        self._ended = os.pidfd_open(process.pid)

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def cpu_s(self) -> float:
        """Return 0: the kernel counts it among our own children."""
        return 0.0

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.returncode is not None

    def fileno(self) -> int:
        """Return its pidfd."""
        return self._ended

    def close(self) -> None:
        os.close(self._ended)
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()


def fresh(request_fd: int, reply_fd: int) -> Fresh:
    """Start an interpreter for one program. Raises CannotRunError."""
    try:
        process = subprocess.Popen(
            [*INTERPRETER, str(CANDIDATE), str(request_fd), str(reply_fd)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(request_fd, reply_fd),
            start_new_session=True,
            env=ENVIRONMENT,
            cwd="/",
        )
    except OSError as error:
        raise CannotRunError(f"cannot start a program: {error}") from error
    try:
        return Fresh(process)
    except OSError as error:
        process.kill()
        process.wait()
        raise CannotRunError(f"cannot watch a program: {error}") from error
