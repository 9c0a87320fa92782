"""What a rollout is told by the hook of its pod and by signals; the worker records what reaches it."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rljob_workers.rollout import app

HOOK = "hook"


class Worker:
    """Records."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def drain(self) -> None:
        self.calls.append("drain")

    def hand_back(self) -> None:
        self.calls.append("hand back")


@contextlib.asynccontextmanager
async def asked() -> AsyncIterator[tuple[app.StopRequest, Callable[[], Any]]]:
    """Yield a request, and what returns the calls that it led to."""
    stop, worker = app.StopRequest(asyncio.get_running_loop()), Worker()
    waiting = asyncio.ensure_future(stop.drain(worker))  # type: ignore[arg-type]  # the two methods

    async def calls() -> list[str]:
        for _ in range(5):
            await asyncio.sleep(0)
        return worker.calls

    yield stop, calls
    waiting.cancel()


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([HOOK], ["drain"]),
        ([signal.SIGTERM], ["drain"]),
        # As a run on one machine is stopped, and as its terminal says it twice.
        ([signal.SIGINT, signal.SIGTERM], ["drain"]),
        ([signal.SIGTERM, signal.SIGTERM], ["drain"]),
        ([HOOK, HOOK], ["drain"]),
        ([HOOK, signal.SIGINT], ["drain"]),
        ([HOOK, signal.SIGTERM], ["drain", "hand back"]),
    ],
)
async def test_sigterm_after_the_hook_says_that_the_grace_of_the_pod_is_over(
    requests: list[Any], expected: list[str]
) -> None:
    async with asked() as (stop, calls):
        assert await calls() == []
        for request in requests:
            if request == HOOK:
                stop.by_hook()
            else:
                stop.by_signal(request)
            await calls()
        assert await calls() == expected
