"""WatchStatus: what a reader hears of a busy run, of a quiet one, and of one that waits."""

import asyncio
import contextlib
import types as namespaces
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from rljob_api import enums, types
from rljob_api.wire.v1 import status_pb2
from rljob_testing.clock import FakeClock
from rljob_workers.coordinator import changes, service

INTERVAL_S = 4.0


class Scene:
    """The service over a signal of changes; it keeps when each status was sent."""

    def __init__(self, *, interval_s: float = INTERVAL_S) -> None:
        self.clock = FakeClock()
        self.changes = changes.Signal(self.clock)
        parts: Any = namespaces.SimpleNamespace(changes=self.changes, clock=self.clock)
        self._service = service.StatusService(parts, cast(Any, self), cast(Any, None))
        self._request = status_pb2.StatusRequest(interval_s=interval_s)
        self.sent_at: list[float] = []

    async def current(self) -> types.RunStatus:
        return types.RunStatus(job="job", phase=enums.Phase.RUNNING, step=1)

    async def _read(self) -> None:
        async for _ in self._service.WatchStatus(self._request, None):
            self.sent_at.append(self.clock.monotonic())

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._read())
        await self.clock.advance(0.0)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_quiet_run_is_heard_every_two_intervals() -> None:
    scene = Scene()
    async with scene.reading():
        await scene.clock.advance(20.0)
    assert scene.sent_at == [0.0, 8.0, 16.0]


async def test_run_that_changes_all_the_time_is_heard_once_in_an_interval() -> None:
    scene = Scene()
    async with scene.reading():
        for _ in range(100):
            scene.changes.notify()
            await scene.clock.advance(0.1)
    assert scene.sent_at == pytest.approx([0.0, 4.0, 8.0], abs=0.2)


async def test_change_after_a_pause_is_heard_at_once() -> None:
    scene = Scene()
    async with scene.reading():
        await scene.clock.advance(6.0)
        scene.changes.notify()
        await scene.clock.advance(0.1)
    assert scene.sent_at == [0.0, 6.0]


@pytest.mark.parametrize(("asked_s", "kept_s"), [(0.0, 0.2), (-1.0, 0.2), (1e9, 60.0)])
async def test_interval_has_bounds_whoever_asks(asked_s: float, kept_s: float) -> None:
    scene = Scene(interval_s=asked_s)
    async with scene.reading():
        await scene.clock.advance(2 * kept_s)
    assert scene.sent_at == pytest.approx([0.0, 2 * kept_s])
