"""Answers what a confined program has to ask for, while the kernel holds the thread that asks: one more process or
thread (`fork_gate.py`), and what it may learn of a path (`path_view.py`).
"""

import errno
from collections.abc import Callable
from typing import Protocol

from rljob_workers.verifier.sandbox.confinement.notifications import Request
from rljob_workers.verifier.sandbox.processes.spawn import CannotRunError
from rljob_workers.verifier.sandbox.requests.foreign_memory import ForeignMemory
from rljob_workers.verifier.sandbox.requests.fork_gate import ForkGate, Room
from rljob_workers.verifier.sandbox.requests.path_view import PathView


class Requests(Protocol):
    """Threads that wait in a call: a `notifications.Listener`."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while one waits, and once none is left that could."""

    def is_waiting(self) -> bool:
        """Return whether one waits."""

    def receive(self) -> Request | None:
        """Return the first call; None if it gave up meanwhile."""

    def is_valid(self, request: Request) -> bool:
        """Return whether it still waits."""

    def go_on(self, request: Request) -> bool:
        """Have the kernel make it; return whether it still waited."""

    def returned(self, request: Request, value: int) -> bool:
        """Have it return a value; return whether it still waited."""

    def failed(self, request: Request, error: int) -> bool:
        """Have it fail; return whether it still waited."""

    def close(self) -> None:
        """Reject all pending and future requests."""


class Gate:
    """One program's. Not for several threads."""

    def __init__(
        self,
        requests: Requests,
        *,
        forks: ForkGate,
        paths: PathView,
        memory: Callable[[int], ForeignMemory] = ForeignMemory,
    ) -> None:
        """Take over the requests. memory: of a thread."""
        self._requests, self._forks, self._paths, self._memory = requests, forks, paths, memory
        self._postponed: Request | None = None

    def fileno(self) -> int:
        return self._requests.fileno()

    def is_waiting(self) -> bool:
        """Return whether someone asks; where the descriptor is readable nevertheless, no one is left to."""
        return self._postponed is not None or self._requests.is_waiting()

    def answer(self) -> Room:
        """Answer one request, and return whether there was room for it; it continues to wait if there was not.

        Only while someone asks. Raises CannotRunError if this machine does not let us see what it asks for.
        """
        request, self._postponed = self._postponed or self._requests.receive(), None
        if request is None:
            return Room.FREE
        if self._paths.has(request.number):
            self._answer_of_path(request)
            return Room.FREE
        room = self._forks.room()
        if room is Room.FREE:
            if self._requests.go_on(request):
                self._forks.granted(request.task)
        elif self._requests.is_valid(request):
            self._postponed = request
        else:
            return Room.FREE
        return room

    def _answer_of_path(self, request: Request) -> None:
        try:
            with self._memory(request.task) as memory:
                if not self._requests.is_valid(request):
                    return
                outcome = self._paths.outcome(request, memory)
        except OSError as error:
            if not self._requests.is_valid(request):
                return
            if not self._paths.writes:
                raise CannotRunError(f"a program's memory cannot be read: {error.strerror}") from error
            # It became a file of its own that not even its user may read, and so chose this itself.
            self._requests.failed(request, errno.EACCES)
            return
        if outcome.error:
            self._requests.failed(request, outcome.error)
        elif outcome.value is None:
            self._requests.go_on(request)
        else:
            self._requests.returned(request, outcome.value)

    def close(self) -> None:
        self._requests.close()
