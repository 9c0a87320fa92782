"""Answers a confined program's requests to start processes and threads, so that it never has more than it may.

The kernel holds each one until it is answered here, so a program cannot outrun its runner: a runner that gets no
processor time keeps the program waiting. Requests beyond the bound are never answered: the run ends.
"""

from collections.abc import Callable
from typing import Protocol

from rljob_workers.verifier.sandbox import procfs
from rljob_workers.verifier.sandbox.process_bound import ProcessBound, Room


class Requests(Protocol):
    """Threads that wait for leave to start another: a `notifications.Listener`."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while one waits, and once none is left that could."""

    def is_waiting(self) -> bool:
        """Return whether one waits."""

    def allow(self) -> int | None:
        """Let the first one go on and return it; None if it gave up meanwhile."""

    def close(self) -> None:
        """Let nobody go on any more."""


class ForkGate:
    """One program's gate. Not for several threads."""

    def __init__(
        self,
        requests: Requests,
        *,
        session: int,
        most: int,
        num_tasks: Callable[[int], int] = procfs.num_tasks,
        is_active: Callable[[int], bool] = procfs.is_active,
    ) -> None:
        """Take over the requests. session: the program's, which none of its processes can leave."""
        self._requests, self._session = requests, session
        self._bound = ProcessBound(most)
        self._num_tasks, self._is_active = num_tasks, is_active

    def fileno(self) -> int:
        """Return the descriptor of the requests."""
        return self._requests.fileno()

    def is_waiting(self) -> bool:
        """Return whether somebody asks; where the descriptor is readable nevertheless, nobody is left to."""
        return self._requests.is_waiting()

    def answer(self) -> Room:
        """Grant one request if there is room; return what there was. Only while somebody asks."""
        if self._bound.room is not Room.FREE:
            self._look()
        room = self._bound.room
        if room is Room.FREE:
            task = self._requests.allow()
            if task is not None:
                self._bound.granted(task)
        return room

    def _look(self) -> None:
        # In this order: see `looked`. A task that sleeps or has stopped is done with the call that it was granted:
        # the kernel does not sleep interruptibly while it copies a process.
        pending = [task for task in self._bound.pending if self._is_active(task)]
        self._bound.looked(num_seen=self._num_tasks(self._session), pending=pending)

    def close(self) -> None:
        """Let nobody start anything any more."""
        self._requests.close()
