"""Keeps warm places, lends each to one episode at a time, and lends none again that was not proven empty.

    claim -> [free] -> leased -- release, or no call for lease_s --> closing -- proven empty --> [free]
                          |                                             |
                          |  its process is lost, or a call is broken   |  something is still there
                          +--------------------------+------------------+
                                                     v
                                    ended, counted, and a new one started

A claim takes a place that is ready, so that what a place costs is paid before and after an episode. A place that breaks
is no answer to its episode: its calls fail as an infrastructure's do, and the attempt is made again elsewhere.
"""

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from rljob_api import errors
from rljob_workers.rpc import environment_service
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.runtime import retry
from rljob_workers.verifier import frames
from rljob_workers.verifier.sandbox.processes import launcher

logger = logging.getLogger(__name__)

# What a place may take beyond the time that a command was given: to start it, end it and look.
GRACE_S = 60.0
_SWEEP_S, _NOTE_S = 1.0, 0.25
# Why a place ended: something of an episode was still there, its process was lost, a call took too long, or no one
# waited for a call any more.
ENDS = ("quarantined", "lost", "late", "cancelled")
# A place that ended while it was free costs a claim one try.
_CLAIM_TRIES = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """num_places: episodes at once. max_waiting: claims that may wait for one. lease_s: how long a lease is valid after
    its last call.
    """

    num_places: int
    max_waiting: int
    lease_s: float


@dataclasses.dataclass(slots=True)
class _Lease:
    """calls: one at a time. is_void: it ended, or its place broke, while a call waited."""

    name: str
    worker: launcher.Worker
    deadline_s: float
    calls: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    is_void: bool = False


class Pool:
    """`start` before the first `claim`, `close` at the end. asyncio."""

    def __init__(
        self,
        *,
        size: Size,
        launch: Callable[[], Awaitable[launcher.Worker]],
        metrics: metrics_module.Metrics,
        clock: clocks.Clock,
    ) -> None:
        """Nothing runs before `start`."""
        self._size, self._launch, self._metrics, self._clock = size, launch, metrics, clock
        self._free: asyncio.Queue[launcher.Worker] = asyncio.Queue()
        self._leases: dict[str, _Lease] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._workers: set[launcher.Worker] = set()
        self._num_waiting = 0
        self._failure = ""
        for reason in ENDS:
            metrics.counter("rljob_environment_places_ended_total").inc(0.0, reason=reason)

    async def start(self) -> None:
        """Start all places. Raises SandboxError or UnavailableError, with none left, if one does not start."""
        first = await asyncio.gather(*(self._started() for _ in range(self._size.num_places)), return_exceptions=True)
        for worker in first:
            if not isinstance(worker, BaseException):
                self._free.put_nowait(worker)
        for failure in first:
            if isinstance(failure, BaseException):
                await self.close()
                raise failure
        self._show()
        self._spawn(self._sweep())

    @property
    def failure(self) -> str:
        """Return why places cannot be started at the moment, empty if they can."""
        return self._failure

    async def claim(self, episode: str, wait_s: float) -> str:
        """Return the name of a lease. Raises FullError, UnavailableError if every place that was tried had ended."""
        started_s = self._clock.monotonic()
        if self._free.empty() and self._num_waiting >= self._size.max_waiting:
            self._metrics.counter("rljob_environment_claims_total").inc(result="full")
            raise environment_service.FullError(f"{self._num_waiting} claims wait already")
        for tries_left in reversed(range(_CLAIM_TRIES)):
            worker = await self._next_free(wait_s)
            lease = _Lease(secrets.token_hex(16), worker, self._clock.monotonic() + self._size.lease_s)
            self._leases[lease.name] = lease
            try:
                await self._called(lease, {"call": "open", "episode": episode}, timeout_s=0.0)
            except errors.UnavailableError:
                if not tries_left:
                    raise
                continue
            break
        self._metrics.counter("rljob_environment_claims_total").inc(result="leased")
        self._metrics.histogram("rljob_environment_claim_seconds").observe(self._clock.monotonic() - started_s)
        self._show()
        return lease.name

    async def call(self, name: str, request: Mapping[str, object], *, timeout_s: float = 0.0) -> dict[str, object]:
        """Return the place's reply; `refused` in it says why nothing was done. timeout_s: what the call may take.

        Raises FencedError for a lease that is not valid, UnavailableError for a place that broke.
        """
        return await self._called(self._valid(name), request, timeout_s=timeout_s)

    async def release(self, name: str) -> None:
        """End a lease; its place is emptied before it is lent again. Nothing happens to one that has ended."""
        lease = self._leases.pop(name, None)
        if lease is not None:
            self._spawn(self._emptied(lease))

    async def close(self) -> None:
        """End all places."""
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._leases.clear()
        await asyncio.gather(*(worker.teardown() for worker in self._workers))
        self._workers.clear()

    async def _started(self) -> launcher.Worker:
        worker = await self._launch()
        self._workers.add(worker)
        return worker

    async def _next_free(self, wait_s: float) -> launcher.Worker:
        self._num_waiting += 1
        self._show()
        try:
            async with asyncio.timeout(wait_s if self._free.empty() else None):
                return await self._free.get()
        except TimeoutError as error:
            self._metrics.counter("rljob_environment_claims_total").inc(result="full")
            raise environment_service.FullError(f"no place became free in {wait_s:g} s") from error
        finally:
            self._num_waiting -= 1

    def _valid(self, name: str) -> _Lease:
        lease = self._leases.get(name)
        if lease is None:
            raise _ended()
        return lease

    async def _called(self, lease: _Lease, request: Mapping[str, object], *, timeout_s: float) -> dict[str, object]:
        async with lease.calls:
            if lease.is_void or lease.name not in self._leases:
                raise _ended()
            # Not while a call takes its time.
            lease.deadline_s = self._clock.monotonic() + timeout_s + GRACE_S + self._size.lease_s
            try:
                reply = await _exchanged(lease.worker, request, timeout_s=timeout_s + GRACE_S)
            except BaseException as error:
                # What was cut short may still run: no one else may have the place either.
                self._broke(lease, _reason(error))
                if isinstance(error, launcher.WorkerLostError | TimeoutError):
                    raise errors.UnavailableError(f"an environment was lost: {error!r}") from error
                raise
            if "broken" in reply:
                self._broke(lease, "quarantined")
                raise errors.UnavailableError(f"an environment broke: {reply['broken']}")
            lease.deadline_s = self._clock.monotonic() + self._size.lease_s
            return reply

    def _broke(self, lease: _Lease, reason: str) -> None:
        lease.is_void = True
        self._leases.pop(lease.name, None)
        self._spawn(self._replaced(lease.worker, reason))

    async def _emptied(self, lease: _Lease) -> None:
        """Have a place emptied and proven so, and lend it again; end it where that fails."""
        async with lease.calls:
            if lease.is_void:
                return
            lease.is_void = True
            started_s = self._clock.monotonic()
            try:
                reply = await _exchanged(lease.worker, {"call": "close"}, timeout_s=GRACE_S)
            except (launcher.WorkerLostError, TimeoutError) as error:
                await self._replaced(lease.worker, _reason(error))
                return
            if "broken" in reply:
                logger.warning("a place was not empty: %s", reply["broken"])
                await self._replaced(lease.worker, "quarantined")
                return
        self._metrics.histogram("rljob_environment_reset_seconds").observe(self._clock.monotonic() - started_s)
        self._free.put_nowait(lease.worker)
        self._show()

    async def _replaced(self, worker: launcher.Worker, reason: str) -> None:
        """End a place, and start another, for as long as it takes."""
        self._metrics.counter("rljob_environment_places_ended_total").inc(reason=reason)
        if not await worker.teardown():
            self._metrics.counter("rljob_environment_survivors_total").inc()
            logger.error("processes of a place survived its end")
        self._workers.discard(worker)
        backoff = retry.Backoff(first_s=0.5, most_s=30.0)
        while True:
            try:
                self._free.put_nowait(await self._started())
            except (errors.SandboxError, errors.UnavailableError) as error:
                self._failure = str(error)
                logger.warning("a place does not start: %s", error, extra={"error_class": error.name})
                await self._clock.sleep(backoff.next_delay_s())
                continue
            self._failure = ""
            self._show()
            return

    async def _sweep(self) -> None:
        """End leases whose episode has not called for too long: whoever had one may be gone."""
        while True:
            await self._clock.sleep(_SWEEP_S)
            now_s = self._clock.monotonic()
            for name in [lease.name for lease in self._leases.values() if lease.deadline_s < now_s]:
                self._metrics.counter("rljob_environment_leases_expired_total").inc()
                await self.release(name)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _show(self) -> None:
        self._metrics.gauge("rljob_environment_places").set(self._size.num_places)
        self._metrics.gauge("rljob_environment_free_places").set(self._free.qsize())
        self._metrics.gauge("rljob_environment_waiting").set(self._num_waiting)


def _ended() -> errors.FencedError:
    return errors.FencedError("the lease of an environment has ended")


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "late"
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "lost"


async def _exchanged(worker: launcher.Worker, request: Mapping[str, object], *, timeout_s: float) -> dict[str, object]:
    exchange = asyncio.ensure_future(worker.exchange(frames.encode(request, max_bytes=frames.MAX_REQUEST_BYTES)))
    try:
        async with asyncio.timeout(timeout_s):
            while not (await asyncio.wait([exchange], timeout=_NOTE_S))[0]:
                # Once the process is gone, what it ran is known by what was noted alone.
                worker.note_programs()
        return exchange.result()
    finally:
        exchange.cancel()
