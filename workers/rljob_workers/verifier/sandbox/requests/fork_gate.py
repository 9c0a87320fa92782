"""Decides on a confined program's requests to start processes and threads, so that it never has more than it may.

The kernel holds each one until it is answered (`gate.py`), so a program cannot outrun its runner: a runner that gets no
processor time keeps the program waiting. Requests beyond the bound are never granted: the run ends.
What was granted is counted, not what is seen: a look at the kernel's tables comes late on a busy machine, and is only
taken to learn what has ended since.
"""

import enum
from collections.abc import Callable, Iterable

from rljob_workers.verifier.sandbox.processes import procfs


class Room(enum.Enum):
    """Whether one more may start. FREE: yes. NONE: as many as may be are there. UNCLEAR: some were granted, and whether
    they are there is not known yet.
    """

    FREE = "free"
    NONE = "none"
    UNCLEAR = "unclear"


class ProcessBound:
    """Counts the tasks of one program: its processes that were not waited for, each with all of its threads.

    Never less than there are. A task that was granted one makes it at some time after that, and makes one at a time.
    """

    def __init__(self, most: int) -> None:
        """Begin with the program's first task. Raises ValueError if not even that may be."""
        if most < 1:
            raise ValueError(f"most is {most}, but a program has at least 1 task")
        self._most = most
        self._num_held = self._num_seen = 1
        self._pending: set[int] = set()

    @property
    def room(self) -> Room:
        """Return whether one more may start, as far as is known: a look may find more room, and never less."""
        if self._num_held < self._most:
            return Room.FREE
        return Room.NONE if self._num_seen >= self._most else Room.UNCLEAR

    @property
    def pending(self) -> frozenset[int]:
        """Return the tasks that may still be about to make what they were granted."""
        return frozenset(self._pending)

    def granted(self, task: int) -> None:
        """Count one more, which this task is about to make."""
        self._num_held += 1
        self._pending.add(task)

    def looked(self, *, num_seen: int, pending: Iterable[int]) -> None:
        """Take what was seen: how many tasks there are, and who of `pending` is perhaps not done.

        Hazard: anyone who looks must ask who is not done first and count afterwards. The other way round, one that was
        made in between would be in neither.
        """
        self._pending.intersection_update(pending)
        self._num_seen, self._num_held = num_seen, num_seen + len(self._pending)


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
