"""Several ranks in threads of one process, whose reductions meet: for code that reduces over ranks without torch."""

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
_WAIT_S = 20.0


class Reduce:
    """The reductions of one rank; every rank must call the same ones in the same order."""

    def __init__(self, rank: int, slots: list[list[Any]], barrier: threading.Barrier) -> None:
        """Share slots and barrier with the other ranks."""
        self._rank, self._slots, self._barrier = rank, slots, barrier

    def gather(self, values: Sequence[T]) -> list[list[T]]:
        """Return the values of every rank."""
        self._slots[self._rank] = list(values)
        self._barrier.wait(_WAIT_S)
        found = list(self._slots)
        self._barrier.wait(_WAIT_S)
        return found

    def total(self, values: Sequence[float]) -> list[float]:
        """Sum over ranks."""
        return [sum(column) for column in zip(*self.gather(values), strict=True)]

    def largest(self, values: Sequence[float]) -> list[float]:
        """Maximum over ranks."""
        return [max(column) for column in zip(*self.gather(values), strict=True)]


def run(bodies: Sequence[Callable[[Reduce], T]], *, wait_s: float = _WAIT_S) -> list[T]:
    """Run one body per rank at the same time; return what each returned, within `wait_s`."""
    barrier, slots = threading.Barrier(len(bodies)), list[list[Any]]([] for _ in bodies)
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        waiting = [pool.submit(body, Reduce(rank, slots, barrier)) for rank, body in enumerate(bodies)]
        return [found.result(wait_s) for found in waiting]
