"""Lets a request change something only while this process leads the shard of its namespace.

The one place that knows until when this process may write. A change that waits for its turn, or for an answer, ends
with the time that it was begun in, and that time moves on with each renewal.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable

from rljob_operator.policies import leadership
from rljob_operator.settings import LeaderElection


class ClosedFenceError(Exception):
    """This process does not lead the shard, or not any more."""


class Fence:
    """Times are monotonic seconds. Closed for every shard at first."""

    def __init__(self, *, shards: int = 1, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until = [-math.inf] * shards
        self._writing: list[set[asyncio.Timeout]] = [set() for _ in range(shards)]

    @property
    def shards(self) -> int:
        return len(self._until)

    def shard_of(self, namespace: str) -> int:
        return leadership.shard_of(namespace, self.shards)

    def set(self, shard: int, until: float) -> None:
        """Let changes of a shard begin, and those under way continue, up to a time; minus infinity ends them now."""
        self._until[shard] = until
        for scope in self._writing[shard]:
            if not scope.expired():
                scope.reschedule(self._on_loop(until))

    def open(self) -> None:
        """Let all changes through for ever: no other process writes."""
        for shard in range(self.shards):
            self.set(shard, math.inf)

    def leads(self, shard: int) -> bool:
        return self._monotonic() < self._until[shard]

    def allows(self, namespace: str) -> bool:
        """Return whether a change in a namespace may begin now."""
        return self.leads(self.shard_of(namespace))

    def _on_loop(self, until: float) -> float | None:
        """Return a time on the event loop's clock; None for never."""
        return None if until == math.inf else asyncio.get_running_loop().time() + max(0.0, until - self._monotonic())

    @contextlib.asynccontextmanager
    async def writing(self, namespace: str) -> AsyncIterator[None]:
        """Run a change. Raises ClosedFenceError where it may not begin, or may not continue."""
        shard = self.shard_of(namespace)
        if not self.leads(shard):
            raise ClosedFenceError(f"this process does not lead the shard of namespace {namespace}")
        try:
            async with asyncio.timeout_at(self._on_loop(self._until[shard])) as scope:
                self._writing[shard].add(scope)
                try:
                    yield
                finally:
                    self._writing[shard].discard(scope)
        except TimeoutError as error:
            raise ClosedFenceError(f"the lead of the shard of namespace {namespace} ended during a change") from error


def fence_of(terms: LeaderElection) -> Fence:
    """Return a fence that an election opens; an open one where there is none."""
    return Fence(shards=terms.shards) if terms.enabled else open_fence()


def open_fence() -> Fence:
    """Return a fence for a process that writes alone."""
    fence = Fence()
    fence.open()
    return fence
