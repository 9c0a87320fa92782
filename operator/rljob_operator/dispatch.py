"""Runs reconciles: takes keys from the queue as they fall due, as many at once as it allows, until it is stopped.

    enqueue --> queue --> task per key --> done: forgotten or again later; failed: again with backoff
A failure is reported and the key comes again; it never ends the loop.
"""

import asyncio
from collections.abc import Awaitable, Callable

from rljob_operator.workqueue import WorkQueue

# Told of a failure; returns the longest wait that it may lead to, None for the queue's own.
OnError = Callable[[str, Exception], float | None]
# Reconciles one key; returns the seconds after which to come again, None to wait for a change.
Reconcile = Callable[[str], Awaitable[float | None]]


class Dispatcher:
    """The loop around a work queue."""

    def __init__(self, queue: WorkQueue, *, reconcile: Reconcile, on_error: OnError) -> None:
        """Keep the queue; nothing runs before `run`."""
        self._queue, self._reconcile, self._on_error = queue, reconcile, on_error
        self._running = set[asyncio.Task[None]]()
        self._changed = asyncio.Event()

    def enqueue(self, key: str, *, after_s: float = 0.0) -> None:
        """Make a key due."""
        self._queue.enqueue(key, after_s=after_s)
        self._changed.set()

    async def run(self) -> None:
        """Take keys until cancelled; what runs then goes on, see `finish`."""
        while True:
            self._changed.clear()
            while (key := self._queue.take()) is not None:
                task = asyncio.create_task(self._one(key), name=f"reconcile {key}")
                self._running.add(task)
                task.add_done_callback(self._ended)
            wait_s = self._queue.next_due_s()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._changed.set()

    async def finish(self, *, within_s: float) -> None:
        """Wait for what runs; cancel what takes longer."""
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=within_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _one(self, key: str) -> None:
        try:
            again_after_s = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001  # the boundary of one reconcile: another key must not suffer
            most_s = self._on_error(key, error)
            if most_s is None:
                self._queue.failed(key)
            else:
                self._queue.failed(key, most_s=most_s)
        else:
            self._queue.done(key, again_after_s=again_after_s)
