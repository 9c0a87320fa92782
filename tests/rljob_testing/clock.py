"""A clock that tests move. A fake: nothing of the product imports it."""

import asyncio
import heapq
import itertools


class FakeClock:
    """Time makes no progress until `advance`; sleepers wake in order."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        """Start at `start` unix seconds; monotonic time starts at 0."""
        self._start, self._elapsed = start, 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """Return unix seconds."""
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """Return seconds since the start."""
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Return once `advance` has moved time far enough."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), future))
        await future

    def jump(self, seconds: float) -> None:
        """Set the time of day forward or back; monotonic time does not notice."""
        self._start += seconds

    def tick(self, seconds: float) -> None:
        """Move time without waking anyone; for code that does not sleep."""
        self._elapsed += seconds

    async def advance(self, seconds: float) -> None:
        """Move time, waking sleepers one by one and letting each run."""
        end = self._elapsed + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._elapsed, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
            await _settle()
        self._elapsed = end
        await _settle()


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
