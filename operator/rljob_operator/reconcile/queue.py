"""Which job is reconciled next: one entry per key, one run per key at a time, a bounded number of keys at once.

    enqueue --> due --> taken --> done(ok)      : forgotten, unless enqueued meanwhile or to come again later
                 ^        |---> done(failed)    : again after 0.5 s, 1 s, 2 s, .. 5 min, with jitter
                 |--------|                       or at once, if it was enqueued meanwhile
                          '---> gave way          : again behind those that wait for their first request
A key that waits or runs for long never holds up another. What comes while a key runs is looked at when the run ends,
however it ends. Of the keys that are due, the one comes first whose turn is longest ago; a key that stands behind has
its turn some seconds after it was due, though it runs at once where no other waits. Times are monotonic seconds.
"""

import asyncio
import dataclasses
import heapq
import json
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any

from rljob_api import lifecycle
from rljob_api.conditions import ConditionType as Type
from rljob_operator.clock import Clock
from rljob_operator.kube.cache import Cache
from rljob_operator.model import Pod

_FIRST_BACKOFF_S = 0.5
_MOST_BACKOFF_S = 300.0
_MOST_PASSED_OVER = 64
# How far behind others a job stands whose first request was sent, and one that was at rest when the process began.
_GAVE_WAY_S, _AT_REST_S = 30.0, 60.0


@dataclasses.dataclass(slots=True)
class _Entry:
    """due: from when it may run. turn: by which those that are due are ordered. may_give_way: after one request."""

    due: float
    since: float
    turn: float
    may_give_way: bool = False


class WorkQueue:
    """Keys and when they are due; single-threaded, no I/O."""

    def __init__(self, *, clock: Clock, rng: random.Random, concurrency: int = 8) -> None:
        """Raises ValueError if `concurrency` is below 1."""
        if concurrency < 1:
            raise ValueError(f"need {concurrency=} to be at least 1")
        self._clock, self._rng, self._concurrency = clock, rng, concurrency
        self._waiting: dict[str, _Entry] = {}
        # What is not due, by time, and what is, by turn. A pair that no longer says what `_waiting` says is passed
        # over; a running key has none.
        self._order: list[tuple[float, str]] = []
        self._ready: list[tuple[float, str]] = []
        # Keys that run, and whether they may give way.
        self._running: dict[str, bool] = {}
        self._gave_way: set[str] = set()
        self._failures: dict[str, int] = {}

    def __len__(self) -> int:
        """Return how many keys wait, running ones not counted."""
        return len(self._waiting)

    def enqueue(self, key: str, *, after_s: float = 0.0, behind_s: float = 0.0, may_give_way: bool = False) -> None:
        """Make `key` due after `after_s` at the latest; the earlier of two times counts.

        behind_s: how much longer others that are due go first. may_give_way: see `gives_way`.
        """
        now = self._clock.monotonic()
        entry = self._waiting.get(key)
        due = now + max(0.0, after_s)
        turn = due + behind_s
        if entry is None:
            self._waiting[key] = _Entry(due=due, since=due, turn=turn, may_give_way=may_give_way)
        elif due < entry.due or turn < entry.turn:
            entry.due, entry.turn, entry.since = min(entry.due, due), min(entry.turn, turn), min(entry.since, due)
        else:
            return
        self._line_up(key)

    def _line_up(self, key: str) -> None:
        if key in self._waiting and key not in self._running:
            heapq.heappush(self._order, (self._waiting[key].due, key))
        # A job whose deadline is a day away leaves a pair a day long at each pass.
        if len(self._order) + len(self._ready) > 2 * len(self._waiting) + _MOST_PASSED_OVER:
            self._order = [(entry.due, each) for each, entry in self._waiting.items() if each not in self._running]
            self._ready = []
            heapq.heapify(self._order)

    def _next(self) -> tuple[float, str] | None:
        """Return when the next key that does not run and is not due will be, and the key; None without one."""
        while self._order:
            due, key = self._order[0]
            entry = self._waiting.get(key)
            if entry is not None and entry.due == due and key not in self._running:
                return due, key
            heapq.heappop(self._order)
        return None

    def _first(self) -> tuple[float, str] | None:
        """Return the turn of the key that is to run next, and the key; None if none is due."""
        now = self._clock.monotonic()
        while (waits := self._next()) is not None and waits[0] <= now:
            _, key = heapq.heappop(self._order)
            heapq.heappush(self._ready, (self._waiting[key].turn, key))
        while self._ready:
            turn, key = self._ready[0]
            entry = self._waiting.get(key)
            if entry is not None and entry.turn == turn and key not in self._running:
                return turn, key
            heapq.heappop(self._ready)
        return None

    def take(self) -> str | None:
        """Return the key whose turn it is and mark it as running; None if none may start now."""
        if len(self._running) >= self._concurrency:
            return None
        first = self._first()
        if first is None:
            return None
        _, key = heapq.heappop(self._ready)
        self._running[key] = self._waiting.pop(key).may_give_way
        return key

    def gives_way(self, key: str) -> bool:
        """Return whether a running key, once it has sent one request, is to leave the rest to a run that comes behind
        those whose turn it is: among many that begin, each gets its first request before any gets all of its.

        Only keys that were enqueued so do, and only once: the next run does all there is. To look at a job twice takes
        a third more of the processor, so it is for a start, after which jobs have waited for long enough.
        """
        first = self._first()
        if not self._running.get(key) or first is None or first[0] > self._clock.monotonic():
            return False
        self._gave_way.add(key)
        return True

    def _ended(self, key: str) -> None:
        self._running.pop(key, None)
        self._line_up(key)

    def done(self, key: str, *, again_after_s: float | None = None) -> None:
        """Record that a run of `key` succeeded; its backoff restarts."""
        self._failures.pop(key, None)
        self._ended(key)
        if key in self._gave_way:
            self._gave_way.discard(key)
            self.enqueue(key, behind_s=_GAVE_WAY_S)
        elif again_after_s is not None:
            self.enqueue(key, after_s=again_after_s)

    def drop(self, key: str) -> None:
        """Forget a key that waits, and how often it failed."""
        self._waiting.pop(key, None)
        self._failures.pop(key, None)
        self._gave_way.discard(key)

    def failed(self, key: str, *, most_s: float = _MOST_BACKOFF_S) -> float:
        """Record that a run of `key` failed and return the seconds until it comes again without a change.

        A change that came while it ran is not held back by the backoff: it may be the one that ends the failures.
        """
        self._gave_way.discard(key)
        count = self._failures[key] = self._failures.get(key, 0) + 1
        delay = lifecycle.backoff_s(count, first_s=_FIRST_BACKOFF_S, max_s=most_s)
        # Half of it is left to chance, so that keys that failed together do not come back together.
        jittered = delay * (0.5 + 0.5 * self._rng.random())
        self._ended(key)
        self.enqueue(key, after_s=jittered)
        return jittered

    def next_due_s(self) -> float | None:
        """Return the seconds until a key can start, 0 if one can now; None if only a change or an end can bring one."""
        if len(self._running) >= self._concurrency:
            return None
        if self._first() is not None:
            return 0.0
        waits = self._next()
        return None if waits is None else max(0.0, waits[0] - self._clock.monotonic())

    @property
    def has_room(self) -> bool:
        """Return whether fewer keys run than may."""
        return len(self._running) < self._concurrency

    def oldest_s(self) -> float:
        """Return for how long the longest overdue key has waited, 0 if none is overdue."""
        now = self._clock.monotonic()
        # A copy in one step: the page of metrics is made on another thread.
        entries = list(self._waiting.values())
        return max((now - entry.since for entry in entries if entry.since < now), default=0.0)


# Called with a failure; returns the longest wait that it may lead to, None for the queue's own.
OnError = Callable[[str, Exception], float | None]
# Reconciles one key; returns the seconds after which to come again, None to wait for a change.
Reconcile = Callable[[str], Awaitable[float | None]]


class Dispatcher:
    """The loop around a work queue."""

    def __init__(self, queue: WorkQueue, *, reconcile: Reconcile, on_error: OnError) -> None:
        """Keep the queue; nothing runs before `run`."""
        self._queue, self._reconcile, self._on_error = queue, reconcile, on_error
        self._running: dict[asyncio.Task[None], str] = {}
        self._changed = asyncio.Event()

    def enqueue(self, key: str, *, after_s: float = 0.0, behind_s: float = 0.0, may_give_way: bool = False) -> None:
        self._queue.enqueue(key, after_s=after_s, behind_s=behind_s, may_give_way=may_give_way)
        self._changed.set()

    async def run(self) -> None:
        """Take keys until cancelled; what runs then continues, see `finish`."""
        while True:
            self._changed.clear()
            while (key := self._queue.take()) is not None:
                task = asyncio.create_task(self._run_key(key), name=f"reconcile {key}")
                self._running[task] = key
                task.add_done_callback(self._ended)
            wait_s = self._queue.next_due_s()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _ended(self, task: asyncio.Task[None]) -> None:
        key = self._running.pop(task)
        if task.cancelled():
            # Perhaps before its first step, where nothing of it ran: its place is free all the same.
            self._queue.done(key)
        self._changed.set()

    def drop(self, keys: Collection[str]) -> None:
        """Forget keys, and end their runs where they are."""
        for key in keys:
            self._queue.drop(key)
        for task, key in self._running.items():
            if key in keys:
                task.cancel()

    async def finish(self, *, within_s: float) -> None:
        """Wait for what runs; cancel what takes longer."""
        if not self._running:
            return
        _, late = await asyncio.wait(list(self._running), timeout=within_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _run_key(self, key: str) -> None:
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


_ENDED = frozenset({Type.COMPLETE, Type.FAILED})


def startup_order(cache: Cache) -> Iterator[tuple[str, float]]:
    """Yield the keys of all jobs, and how many seconds each stands behind in the queue of a new process.

    All are compared once after a start. A thousand take a minute, and what is overdue must not wait so long, nor give
    way to those at rest.
    """
    for key in cache.keys:
        job = cache.job(key)
        if job is not None:
            at_rest = is_at_rest(json.loads(job.load()), cache.pods(key, job.uid))
            yield key, _AT_REST_S if at_rest else 0.0


def is_at_rest(job: Mapping[str, Any], pods: Collection[Pod]) -> bool:
    """Return whether nothing was under way when the job's status was last written.

    It was seen as it is now, and runs with all pods ready, or is suspended or has ended and has none.
    """
    status = job.get("status") or {}
    if status.get("observedGeneration") != job["metadata"].get("generation"):
        return False
    true_types = {condition["type"] for condition in status.get("conditions") or () if condition["status"] == "True"}
    if true_types & {*_ENDED, Type.SUSPENDED}:
        return not pods
    return Type.RUNNING in true_types and all(pod.ready and not pod.deleting for pod in pods)
