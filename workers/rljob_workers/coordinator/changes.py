"""Waking those who wait for the ledger to change. No wake-up is lost between a look at the ledger and the wait."""

import asyncio
import contextlib

from rljob_workers.runtime import clock as clocks


class Changes:
    """A count of changes, and a way to wait for the next one."""

    def __init__(self, clock: clocks.Clock) -> None:
        """Belongs to the running event loop."""
        self._clock, self._loop = clock, asyncio.get_running_loop()
        self._event, self._count = asyncio.Event(), 0

    @property
    def mark(self) -> int:
        """Return the count; take it before looking, give it to `wait`."""
        return self._count

    def notify_from_thread(self) -> None:
        """Wake all waiters, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self.notify)

    def notify(self) -> None:
        """Wake all waiters."""
        self._count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, mark: int, timeout_s: float) -> None:
        """Return once something changed after `mark`, or after `timeout_s`."""
        if self._count != mark or timeout_s <= 0:
            return
        waiters = {asyncio.ensure_future(self._event.wait()), asyncio.ensure_future(self._clock.sleep(timeout_s))}
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
