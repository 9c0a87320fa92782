"""Processes that start in milliseconds, because what they import was imported once: forked from one that only forks.

    python -m rljob_testing.nursery MODULE ...    imports modules, then answers requests on its standard input, a socket

A request is a line of arguments, in JSON, for `main` of the first module, and two descriptors: the child's standard
input and output, and its log. The answer is the child's process id. Children end with their input, so at the latest
with ours.
"""

import contextlib
import importlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from rljob_workers.runtime import boot

LIMIT_S = 100.0
_MOST_BYTES = 1 << 16


class Child:
    """A process that answers each line with one, in JSON."""

    def __init__(self, pid: int, talking: socket.socket, log: pathlib.Path, limit_s: float) -> None:
        self.pid, self._log = pid, log
        talking.settimeout(limit_s)
        with talking:
            self._lines = talking.makefile("rw")

    def say(self, line: str) -> None:
        self._lines.write(line + "\n")
        self._lines.flush()

    def hear(self) -> dict[str, Any]:
        """Raises RuntimeError with the process's log if it has ended."""
        line = self._lines.readline()
        if not line:
            raise RuntimeError(f"process {self.pid} has ended: {self._log.read_text()}")
        return dict(json.loads(line))

    def ask(self, line: str) -> dict[str, Any]:
        self.say(line)
        return self.hear()

    def kill(self) -> None:
        """SIGKILL; returns once the process is gone, whatever it was about to answer. Once more does nothing."""
        if self._lines.closed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ConnectionError):
            while self._lines.readline():
                pass
        with contextlib.suppress(BrokenPipeError):
            self._lines.close()


class Nursery:
    """The process that forks. Close it with `close`."""

    def __init__(self, *modules: str) -> None:
        self._requests, theirs = socket.socketpair()
        self._requests.settimeout(LIMIT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rljob_testing.nursery", *modules], stdin=theirs.fileno()
            )

    def start(self, log: pathlib.Path, *arguments: str, limit_s: float = LIMIT_S) -> Child:
        """Start a process. `log` gets what it writes to its standard error; limit_s: for each of its answers."""
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as written:
            socket.send_fds(self._requests, [json.dumps(arguments).encode()], [theirs.fileno(), written.fileno()])
        return Child(int(self._requests.recv(_MOST_BYTES)), ours, log, limit_s)

    def close(self) -> None:
        self._requests.close()
        self._process.wait(LIMIT_S)


def main(modules: Sequence[str]) -> None:
    """Fork until the input ends."""
    with boot.importing():
        program, *_ = (importlib.import_module(module) for module in modules)
    # Children that have ended are no one's business here.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as requests:
        while True:
            request, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
            if not request:
                return
            pid = os.fork()
            if not pid:
                requests.close()
                _become(program, json.loads(request), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            requests.send(str(pid).encode())


def _become(program: Any, arguments: Sequence[str], descriptors: Sequence[int]) -> None:
    talking, log = descriptors
    for number, opened in ((0, talking), (1, talking), (2, log)):
        os.dup2(opened, number)
    for opened in descriptors:
        os.close(opened)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    program.main(arguments)
    # Without what the parent has registered for its own end.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
