"""Asks coordinators how their runs are: in turns, a bounded number at once, each answer kept with its time.

A poll changes no child: it makes the job's key due if a number that status shows has changed, if the run needs to be
looked at (finished, failed, stalled), or if the coordinator stopped answering.
"""

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable, Iterable

import grpc
import grpc.aio

from rljob_api import types
from rljob_api.wire import codec
from rljob_api.wire.v1 import status_pb2, status_pb2_grpc
from rljob_operator.clock import TokenBucket
from rljob_operator.model import Report
from rljob_operator.pki.manager import Credentials, renewal_due

TIMEOUT_S = 2.0
MOST_AT_ONCE = 32
# Of those that did not answer last time: they take the whole timeout, and others wait behind them.
MOST_SILENT_AT_ONCE = 8
MOST_CHANNELS = 256
MOST_BYTES = 64 << 10
_SHORTEST_S, _POLLS_PER_S = 5.0, 40.0
# Status writes for the sake of numbers alone, over all jobs (docs/design/operator.md#s-7-5).
WRITES_PER_S = 20.0
# A coordinator counts as silent once it was asked so often in vain, over so long: however rarely it is its turn, one
# answer that is lost says nothing.
SILENT_S, SILENT_POLLS = 30.0, 3


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A job whose coordinator has a pod: key in the queue, uid, and the address of its Service; empty where it cannot
    be asked, for want of a certificate to show.
    """

    key: str
    uid: str
    address: str


@dataclasses.dataclass(slots=True)
class _Silence:
    """Since when a coordinator does not answer, in unix seconds, and how often it was asked meanwhile."""

    since: float
    polls: int = 0


Ask = Callable[[Target], Awaitable[types.RunStatus | None]]


def poll_interval_s(num_jobs: int) -> float:
    """Return the seconds between two polls of one job: at least 5, and at most 40 polls a second over all."""
    return max(_SHORTEST_S, num_jobs / _POLLS_PER_S)


def is_significant(before: types.RunStatus | None, now: types.RunStatus) -> bool:
    """Return whether a report says something that decides, not just a number."""
    return before is None or before.phase is not now.phase or _progress(before) != _progress(now)


def _progress(run: types.RunStatus) -> tuple[object, ...]:
    """Return whether the run has a step, and which of its trainer's attempts have one of their own."""
    return run.step > 0, tuple((attempt.attempt, attempt.first_step_at > 0) for attempt in run.attempts)


def reported_fields(run: types.RunStatus) -> tuple[object, ...]:
    scores = tuple((result.suite, result.accuracy, result.step) for result in run.evaluations)
    versions = (run.published_version, run.live_version, run.oldest_serving_version, run.version_lag_steps)
    counts = tuple(sorted(run.trajectories.items()))
    return (run.step, run.phase, versions, counts, run.reward_mean, run.checkpoint_step, run.config_generation, scores)


class Channels:
    """One channel per coordinator, for as many as may be open; the others get one for each question.

    They are asked in turns, so closing the one that was used longest ago would close each just before its turn. An
    address outlives its job where one of the same name follows, so a channel belongs to an address and a job.
    `credentials_of` is asked with the uid of a job.
    """

    def __init__(
        self,
        credentials_of: Callable[[str], Credentials | None] = lambda _: None,
        *,
        now: Callable[[], float],
        most: int = MOST_CHANNELS,
    ) -> None:
        self._credentials_of, self._now, self._most = credentials_of, now, most
        self._open: dict[tuple[str, str], tuple[grpc.aio.Channel, Credentials | None]] = {}

    async def ask(self, target: Target) -> types.RunStatus | None:
        """Return a coordinator's status; None if it does not answer in time, or not what we understand."""
        channel = await self._channel(target)
        try:
            stub = status_pb2_grpc.RunStatusStub(channel)
            reply = await stub.Status(status_pb2.StatusRequest(), timeout=TIMEOUT_S)
            return codec.from_message(types.RunStatus, reply)
        except (grpc.RpcError, ValueError):
            return None
        finally:
            if self._open.get(_place(target), (None, None))[0] is not channel:
                await channel.close()

    async def _channel(self, target: Target) -> grpc.aio.Channel:
        channel, shown = self._open.get(_place(target), (None, None))
        if channel is not None and (shown is None or not renewal_due(shown, self._now())):
            return channel
        shown = self._credentials_of(target.uid)
        fresh = _opened(target.address, shown)
        if channel is not None or len(self._open) < self._most:
            self._open[_place(target)] = (fresh, shown)
        if channel is not None:
            await channel.close()
        return fresh

    async def keep_only(self, targets: Iterable[Target]) -> None:
        """Close channels to coordinators that are not asked any more."""
        for place in self._open.keys() - set(map(_place, targets)):
            await self._open.pop(place)[0].close()

    async def close(self) -> None:
        for channel, _ in self._open.values():
            await channel.close()
        self._open.clear()


def _place(target: Target) -> tuple[str, str]:
    return target.address, target.uid


def _opened(address: str, shown: Credentials | None) -> grpc.aio.Channel:
    if shown is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(shown.bundle, shown.key, shown.certificate)
    return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
)


class Poller:
    """Keeps the last report of each job. Times: `now` is unix seconds, `monotonic` never jumps."""

    def __init__(
        self,
        *,
        ask: Ask,
        enqueue: Callable[[str], None],
        now: Callable[[], float],
        monotonic: Callable[[], float],
        rng: random.Random,
        on_poll: Callable[[bool], object] = bool,
    ) -> None:
        """on_poll: called with whether there was an answer."""
        self._on_poll = on_poll
        self._ask, self._enqueue, self._now, self._monotonic, self._rng = ask, enqueue, now, monotonic, rng
        self._reports: dict[str, Report] = {}
        self._due: dict[str, float] = {}
        self._last_reported: dict[str, tuple[object, ...]] = {}
        self._silences: dict[str, _Silence] = {}
        self._silent = set[str]()
        self._writes = TokenBucket(per_s=WRITES_PER_S, burst=WRITES_PER_S)
        self._slots, self._silent_slots = asyncio.Semaphore(MOST_AT_ONCE), asyncio.Semaphore(MOST_SILENT_AT_ONCE)
        self._asking = set[str]()

    def report_of(self, uid: str) -> Report | None:
        return self._reports.get(uid)

    def silent_since(self, uid: str) -> float | None:
        return self._silences[uid].since if uid in self._silent else None

    async def poll(self, targets: Iterable[Target]) -> int:
        """Ask those that are due, forget those that are no longer target; return how many were asked.

        The next round may begin before this one ends: anyone who is being asked is not asked again.
        """
        by_uid = {target.uid: target for target in targets}
        for table in (self._reports, self._due, self._last_reported, self._silences):
            for uid in [uid for uid in table if uid not in by_uid]:
                del table[uid]
        self._silent &= set(by_uid)
        now, every = self._monotonic(), poll_interval_s(len(by_uid))
        free = (target for target in by_uid.values() if target.uid not in self._asking)
        due = [target for target in free if self._due.get(target.uid, 0.0) <= now]
        for target in due:
            self._due[target.uid] = now + every * (0.9 + 0.2 * self._rng.random())
        self._asking |= {target.uid for target in due}
        await asyncio.gather(*(self._poll_one(target) for target in due))
        return len(due)

    async def _poll_one(self, target: Target) -> None:
        try:
            async with self._silent_slots if target.uid in self._silences else self._slots:
                run = await self._ask(target) if target.address else None
        finally:
            self._asking.discard(target.uid)
        if target.address:
            self._on_poll(run is not None)
        if run is None:
            self._no_answer(target)
            return
        before = self._reports.get(target.uid)
        self._reports[target.uid] = Report(run=run, read_at=self._now())
        self._silences.pop(target.uid, None)
        was_silent = target.uid in self._silent
        self._silent.discard(target.uid)
        news = reported_fields(run)
        decides = was_silent or is_significant(before.run if before else None, run)
        if decides or (news != self._last_reported.get(target.uid) and self._writes.try_take(self._monotonic())):
            self._last_reported[target.uid] = news
            self._enqueue(target.key)

    def _no_answer(self, target: Target) -> None:
        silence = self._silences.setdefault(target.uid, _Silence(since=self._now()))
        silence.polls += 1
        is_silent = silence.polls >= SILENT_POLLS and self._now() - silence.since >= SILENT_S
        if is_silent and target.uid not in self._silent:
            self._silent.add(target.uid)
            self._enqueue(target.key)
