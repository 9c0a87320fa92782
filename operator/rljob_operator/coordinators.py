"""Listens to coordinators: one stream for each run that is under way, on which its coordinator says how it is.

    targets --> one task each: connect, then read --> reports
                    ^                        | ended, broken, nothing for QUIET_S: try again, a little later each time
                    '------------------------'
A coordinator sends when something changed, at most every `INTERVAL_S`, and at least every two of them: a quiet run is
heard all the same, so a stream on which nothing comes for `QUIET_S` is dead, whatever its connection says. How fresh a
report is does not depend on how many jobs there are. A stream changes no child.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import grpc
import grpc.aio

from rljob_api import lifecycle, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import status_pb2, status_pb2_grpc
from rljob_operator.pki.manager import Credentials, renewal_due
from rljob_operator.reports import Reports, Target

INTERVAL_S = 4.0
# Three times the longest pause of a stream that is alive.
QUIET_S = 3 * 2 * INTERVAL_S
# From the first packet to the first report.
FIRST_WITHIN_S = 5.0
# Handshakes at the same time: after a start, or a new lead, all streams are opened.
MOST_OPENING = 32
# Of those that failed last time: they take their whole time, and others wait behind them.
MOST_RETRYING = 32
MOST_BYTES = 64 << 10
_FIRST_BACKOFF_S, _MOST_BACKOFF_S = 0.5, 5.0


class Stream(Protocol):
    """What a coordinator says, one status after another."""

    @property
    def expired(self) -> bool:
        """Return whether it should be opened again, with a fresh certificate."""

    async def read(self, *, within_s: float) -> types.RunStatus | None:
        """Return the next status; None if it has ended, or with what we do not understand. Raises TimeoutError."""

    async def close(self) -> None:
        """End it, and its connection."""


class Streams:
    """One task per target. `open_stream` connects nothing before the first read.

    on_report: called with whether a report came, or a try failed. sleep, now: the clock.
    """

    def __init__(
        self,
        reports: Reports,
        open_stream: Callable[[Target], Stream],
        *,
        now: Callable[[], float],
        rng: random.Random,
        on_report: Callable[[bool], object] = bool,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._reports, self._open_stream, self._now, self._rng = reports, open_stream, now, rng
        self._on_report, self._sleep = on_report, sleep
        self._tasks: dict[Target, asyncio.Task[None]] = {}
        self._opening, self._retrying = asyncio.Semaphore(MOST_OPENING), asyncio.Semaphore(MOST_RETRYING)
        self._num_open = 0

    @property
    def num_open(self) -> int:
        """Return how many streams deliver."""
        return self._num_open

    def keep(self, targets: Iterable[Target]) -> None:
        """Listen to these and to no others. Raises what a task ended with: none ends by itself."""
        for task in self._tasks.values():
            if task.done():
                task.result()
        current = set(targets)
        for target in self._tasks.keys() - current:
            self._tasks.pop(target).cancel()
        for target in current - self._tasks.keys():
            self._tasks[target] = asyncio.create_task(self._follow(target), name=f"listen {target.key}")
        self._reports.keep_only({target.uid for target in current})

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, target: Target) -> None:
        failures = 0
        while True:
            failures = 0 if await self._listen(target, is_retry=failures > 0) else failures + 1
            backoff_s = lifecycle.backoff_s(failures + 1, first_s=_FIRST_BACKOFF_S, max_s=_MOST_BACKOFF_S)
            # Half of it is left to chance: what a lost node ended together does not come back together.
            await self._sleep(backoff_s * (0.5 + self._rng.random() / 2))

    async def _listen(self, target: Target, *, is_retry: bool) -> bool:
        """Read one stream to its end; return whether anything was heard on it."""
        if not target.address:
            self._reports.failed(target)
            return False
        async with contextlib.AsyncExitStack() as cleanup:
            async with self._retrying if is_retry else self._opening:
                stream = self._open_stream(target)
                cleanup.push_async_callback(stream.close)
                run = await _next(stream, within_s=FIRST_WITHIN_S)
            if run is not None:
                self._num_open += 1
                cleanup.callback(self._ended)
                await self._read_on(target, stream, run)
        if run is None:
            self._fails(target)
        return run is not None

    def _ended(self) -> None:
        self._num_open -= 1

    async def _read_on(self, target: Target, stream: Stream, run: types.RunStatus) -> None:
        """Keep what a stream delivers, until it ends or has expired."""
        while True:
            heard_at = self._now()
            self._on_report(True)
            self._reports.heard(target, run)
            if stream.expired:
                return
            following = await _next(stream, within_s=QUIET_S)
            if following is None:
                # A stream that was quiet was so since its last report; one that broke was alive until now.
                was_quiet = self._now() - heard_at >= QUIET_S
                self._fails(target, since=heard_at if was_quiet else None)
                return
            run = following

    def _fails(self, target: Target, *, since: float | None = None) -> None:
        self._on_report(False)
        self._reports.failed(target, since=since)


async def _next(stream: Stream, *, within_s: float) -> types.RunStatus | None:
    try:
        return await stream.read(within_s=within_s)
    except TimeoutError:
        return None


class StatusStream:
    """One call of WatchStatus on a connection of its own."""

    def __init__(self, channel: grpc.aio.Channel, expired: Callable[[], bool]) -> None:
        self._channel, self._expired = channel, expired
        request = status_pb2.StatusRequest(interval_s=INTERVAL_S)
        self._call = status_pb2_grpc.RunStatusStub(channel).WatchStatus(request)

    @property
    def expired(self) -> bool:
        """Return whether it should be opened again, with a fresh certificate."""
        return self._expired()

    async def read(self, *, within_s: float) -> types.RunStatus | None:
        """Return the next status; None if it has ended, or with what we do not understand. Raises TimeoutError."""
        try:
            async with asyncio.timeout(within_s):
                message = await self._call.read()
            return None if message is grpc.aio.EOF else codec.from_message(types.RunStatus, message)
        except (grpc.RpcError, ValueError):
            return None

    async def close(self) -> None:
        """End it, and its connection."""
        self._call.cancel()
        await self._channel.close()


def opened(
    target: Target, *, credentials_of: Callable[[str], Credentials | None], now: Callable[[], float]
) -> StatusStream:
    """Return a stream from a target's coordinator. `credentials_of` is asked with the uid of the job."""
    shown = credentials_of(target.uid)
    if shown is None:
        return StatusStream(grpc.aio.insecure_channel(target.address, options=_OPTIONS), lambda: False)
    credentials = grpc.ssl_channel_credentials(shown.bundle, shown.key, shown.certificate)
    channel = grpc.aio.secure_channel(target.address, credentials, options=_OPTIONS)
    return StatusStream(channel, lambda: renewal_due(shown, now()))


_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.enable_http_proxy", 0),
    # An address outlives its job where one of the same name follows: no connection is taken over from another stream.
    ("grpc.use_local_subchannel_pool", 1),
)
