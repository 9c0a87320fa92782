"""Decides on a confined program's requests to start processes and threads, so that it never has more than it may.

The kernel holds each one until it is answered (`gate.py`), so a program cannot outrun its runner: a runner that gets no
processor time keeps the program waiting. Requests beyond the bound are never granted: the run ends.
"""

from collections.abc import Callable

from rljob_workers.verifier.sandbox import procfs
from rljob_workers.verifier.sandbox.process_bound import ProcessBound, Room


class ForkGate:
    """One program's. Not for several threads."""

    def __init__(
        self,
        *,
        session: int,
        most: int,
        num_tasks: Callable[[int], int] = procfs.num_tasks,
        is_active: Callable[[int], bool] = procfs.is_active,
    ) -> None:
        """session: the program's, which none of its processes can leave. most: tasks that it may have at once."""
        self._session = session
        self._bound = ProcessBound(most)
        self._num_tasks, self._is_active = num_tasks, is_active

    def room(self) -> Room:
        """Return whether one more may start, after a look at the kernel's tables where that may find room."""
        if self._bound.room is not Room.FREE:
            # In this order: see `looked`. A task that sleeps or has stopped is done with the call that it was granted:
            # the kernel does not sleep interruptibly while it copies a process.
            pending = [task for task in self._bound.pending if self._is_active(task)]
            self._bound.looked(num_seen=self._num_tasks(self._session), pending=pending)
        return self._bound.room

    def granted(self, task: int) -> None:
        """Count one more, which this task is about to make."""
        self._bound.granted(task)
