"""Waiting between attempts: exponential, capped, with jitter, bounded. Errors say themselves if they are worth it."""

import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from rljob_api import errors, lifecycle
from rljob_workers.runtime import clock as clocks

T = TypeVar("T")


class Backoff:
    """Delays first_s, 2 first_s, ... up to most_s, each multiplied by a random factor in [0.5, 1]."""

    def __init__(self, *, first_s: float, most_s: float, rng: random.Random | None = None) -> None:
        """Raises ValueError if the bounds are not 0 < first_s <= most_s."""
        if not 0 < first_s <= most_s:
            raise ValueError(f"need 0 < {first_s=} <= {most_s=}")
        self._first_s, self._most_s = first_s, most_s
        self._rng = rng or random.Random()
        self._failures = 0

    def next_delay_s(self) -> float:
        self._failures += 1
        delay_s = lifecycle.backoff_s(self._failures, first_s=self._first_s, max_s=self._most_s)
        return delay_s * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again at first_s, after a success."""
        self._failures = 0


async def retry_async(
    call: Callable[[], Awaitable[T]], *, clock: clocks.Clock, deadline_s: float, backoff: Backoff
) -> T:
    """Return what `call` returns; repeat on errors whose retry class is not NEVER until `deadline_s` has passed."""
    end = clock.monotonic() + deadline_s
    while True:
        try:
            return await call()
        except errors.RLJobError as error:
            delay_s = backoff.next_delay_s()
            if error.retry is errors.Retry.NEVER or clock.monotonic() + delay_s > end:
                raise
        await clock.sleep(delay_s)


class RetryMoving(Protocol):
    """`retry_moving`, as its users call it."""

    def __call__(
        self, call: Callable[[], None], position: Callable[[], int], *, idle_timeout_s: float, backoff: Backoff
    ) -> None: ...


def retry_moving(
    call: Callable[[], None],
    position: Callable[[], int],
    *,
    idle_timeout_s: float,
    backoff: Backoff,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Repeat `call`, which continues where it stopped, until it returns or `position` has made no progress for
    `idle_timeout_s`.

    Raises what the last call raised, and at once an error whose retry class is NEVER.
    """
    at, since = position(), now()
    while True:
        try:
            call()
            return
        except errors.RLJobError as error:
            if position() != at:
                at, since = position(), now()
                backoff.reset()
            delay_s = backoff.next_delay_s()
            if error.retry is errors.Retry.NEVER or now() + delay_s > since + idle_timeout_s:
                raise
        sleep(delay_s)


def retry_sync(call: Callable[[], T], *, deadline_s: float, backoff: Backoff) -> T:
    """The same for threads that may block."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            return call()
        except errors.RLJobError as error:
            delay_s = backoff.next_delay_s()
            if error.retry is errors.Retry.NEVER or time.monotonic() + delay_s > end:
                raise
        time.sleep(delay_s)
