import asyncio
import random

import pytest

from rljob_api import errors
from rljob_testing import clock as fake_clock
from rljob_workers.runtime import retry


def backoff() -> retry.Backoff:
    return retry.Backoff(first_s=1.0, most_s=8.0, rng=random.Random(0))


def test_delays_double_up_to_the_most_and_are_jittered_downwards_only() -> None:
    delays = [backoff_delay for maker in [backoff()] for backoff_delay in [maker.next_delay_s() for _ in range(6)]]
    for delay, ceiling in zip(delays, [1, 2, 4, 8, 8, 8], strict=True):
        assert ceiling / 2 <= delay <= ceiling


@pytest.mark.parametrize(("first_s", "most_s"), [(0, 1), (2, 1), (-1, 1)])
def test_bounds_that_make_no_sense_are_refused(first_s: float, most_s: float) -> None:
    with pytest.raises(ValueError, match="first_s"):
        retry.Backoff(first_s=first_s, most_s=most_s)


async def test_call_is_repeated_until_it_succeeds() -> None:
    clock, calls = fake_clock.FakeClock(), []

    async def flaky() -> str:
        calls.append(clock.monotonic())
        if len(calls) < 3:
            raise errors.UnavailableError("not yet")
        return "done"

    task = asyncio.create_task(retry.retry_async(flaky, clock=clock, deadline_s=60, backoff=backoff()))
    await clock.advance(10)
    assert await task == "done"
    assert len(calls) == 3


async def test_error_that_will_not_get_better_is_raised_at_once() -> None:
    clock, calls = fake_clock.FakeClock(), []

    async def refused() -> None:
        calls.append(1)
        raise errors.FencedError("replaced")

    with pytest.raises(errors.FencedError):
        await retry.retry_async(refused, clock=clock, deadline_s=60, backoff=backoff())
    assert calls == [1]


async def test_deadline_ends_the_repeating_with_the_last_error() -> None:
    clock = fake_clock.FakeClock()

    async def down() -> None:
        raise errors.UnavailableError("still down")

    task = asyncio.create_task(retry.retry_async(down, clock=clock, deadline_s=5, backoff=backoff()))
    await clock.advance(30)
    with pytest.raises(errors.UnavailableError, match="still down"):
        await task
    assert clock.monotonic() >= 2
