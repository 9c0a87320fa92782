"""Time as a collaborator, so that tests decide what time it is."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time, monotonic time, and sleeping."""

    def now(self) -> float:
        """Return unix seconds; for records and deadlines that survive a restart."""

    def monotonic(self) -> float:
        """Return seconds that never jump; for durations."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
