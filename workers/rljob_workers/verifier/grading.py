"""Items in, verdicts out, in order: checks the records, takes the quick stages, and leaves the rest to the pool.

Idempotent on (sample id, attempt): the same item gets the recorded verdict, or joins the grading that is under way.
The key includes the text, so that a caller that reuses an id for other text is graded, not answered from memory.
An infrastructure failure is never remembered.
"""

import asyncio
import collections
import dataclasses
import hashlib
import json
import time
from collections.abc import Sequence

from rljob_api import errors, names, roles, types
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.verifier import frames, pool, rubric
from rljob_workers.verifier.graders import boundary, protocol

MAX_REMEMBERED = 16_384

_Key = tuple[str, int, bytes]


class OverloadedError(Exception):
    """Too many items wait already; the caller may try again or elsewhere."""


class Grading:
    """The verifier without its wire."""

    def __init__(
        self,
        *,
        rewards: Sequence[roles.GraderConfig],
        graders: Sequence[protocol.Grader],
        workers: pool.Pool,
        metrics: metrics_module.Metrics,
    ) -> None:
        """`graders` stand in the order of `rewards`."""
        self._rewards, self._graders, self._pool, self._metrics = rewards, graders, workers, metrics
        self._running: dict[_Key, asyncio.Task[types.Verdict]] = {}
        self._remembered: collections.OrderedDict[_Key, types.Verdict] = collections.OrderedDict()

    async def verify(self, items: Sequence[types.VerifyItem]) -> list[types.Verdict]:
        """Return one verdict per item, in order.

        Raises GraderError if a record cannot be graded by a reward, and OverloadedError if too many items wait; then no
        item of the call has been started.
        """
        for item in items:
            self._check(item)
        grades = [await self._quick_grades(item) for item in items]
        tasks = self._start(items, grades)
        # A caller that goes away must not end a grading that another call has joined.
        return list(await asyncio.gather(*(asyncio.shield(task) for task in tasks)))

    def _check(self, item: types.VerifyItem) -> None:
        for reward, grader in zip(self._rewards, self._graders, strict=True):
            try:
                grader.check(item.columns)
            except errors.DataError as error:
                raise errors.GraderError(f"sample {item.sample_id}, reward {reward.name!r}: {error}") from error

    async def _quick_grades(self, item: types.VerifyItem) -> list[protocol.Grade | None]:
        # Each look is bounded; between two of them other calls get their turn.
        await asyncio.sleep(0)
        answer = protocol.Answer(prompt=item.prompt, completion=item.completion, columns=item.columns)
        return [_quick(grader, answer) for grader in self._graders]

    def _start(
        self, items: Sequence[types.VerifyItem], grades: Sequence[list[protocol.Grade | None]]
    ) -> list["asyncio.Task[types.Verdict]"]:
        """Admit all or none. Nothing in here gives way, so what was counted is what is queued."""
        keys = [_key(item) for item in items]
        fresh = {
            key: (item, quick)
            for key, item, quick in zip(keys, items, grades, strict=True)
            if key not in self._running and key not in self._remembered
        }
        needed = sum(grade is None for _, quick in fresh.values() for grade in quick)
        if not self._pool.admits(needed):
            raise OverloadedError(f"{self._pool.num_waiting} items wait already, and this call would add {needed}")
        requests = {key: self._requests(item, quick) for key, (item, quick) in fresh.items()}
        for key, (item, quick) in fresh.items():
            self._begin(key, item, quick, requests[key])
        return [self._running.get(key) or self._recall(key) for key in keys]

    def _requests(self, item: types.VerifyItem, quick: Sequence[protocol.Grade | None]) -> list[bytes | None]:
        return [request_of(item, index) if grade is None else None for index, grade in enumerate(quick)]

    def _begin(
        self,
        key: _Key,
        item: types.VerifyItem,
        quick: Sequence[protocol.Grade | None],
        requests: Sequence[bytes | None],
    ) -> None:
        pending = [None if request is None else self._pool.submit(request) for request in requests]
        task = asyncio.create_task(self._finish(item, quick, pending))
        self._running[key] = task
        task.add_done_callback(lambda done: self._remember(key, done))

    async def _finish(
        self,
        item: types.VerifyItem,
        quick: Sequence[protocol.Grade | None],
        pending: Sequence["asyncio.Future[protocol.Grade] | None"],
    ) -> types.Verdict:
        grades = []
        for reward, grade, future in zip(self._rewards, quick, pending, strict=True):
            if future is not None:
                grade = await future
            assert grade is not None, "what quick left open was submitted"
            self._count(reward, grade)
            grades.append(grade)
        return rubric.combine(self._rewards, grades, item)

    def _count(self, reward: roles.GraderConfig, grade: protocol.Grade) -> None:
        self._metrics.counter("rljob_verify_total").inc(reward=reward.name, outcome=str(grade.outcome))
        self._metrics.histogram("rljob_verify_seconds").observe(grade.wall_s, reward=reward.name)

    def _remember(self, key: _Key, task: "asyncio.Task[types.Verdict]") -> None:
        del self._running[key]
        if task.cancelled() or task.exception() or task.result().reason is names.VerdictReason.INFRA_FAILURE:
            return
        self._remembered[key] = task.result()
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    def _recall(self, key: _Key) -> "asyncio.Task[types.Verdict]":
        self._remembered.move_to_end(key)
        return asyncio.create_task(_ready(self._remembered[key]))


async def _ready(verdict: types.Verdict) -> types.Verdict:
    return verdict


def _quick(grader: protocol.Grader, answer: protocol.Answer) -> protocol.Grade | None:
    started_s = time.perf_counter()
    grade = boundary.guarded(grader.quick, answer)
    if grade is None:
        return None
    spent_s = time.perf_counter() - started_s
    return dataclasses.replace(grade, cpu_s=spent_s, wall_s=spent_s)


def _key(item: types.VerifyItem) -> _Key:
    text = json.dumps([item.prompt, item.completion, dict(item.columns), item.truncated], sort_keys=True)
    return item.sample_id, item.attempt, hashlib.blake2b(text.encode("ascii"), digest_size=16).digest()


def request_of(item: types.VerifyItem, reward: int) -> bytes:
    """Return the frame that asks a worker for one reward of an item. Raises WireError if it is too large."""
    payload = {"reward": reward, "prompt": item.prompt, "completion": item.completion, "columns": dict(item.columns)}
    try:
        return frames.encode(payload, max_bytes=frames.MAX_REQUEST_BYTES)
    except errors.WireError as error:
        raise errors.WireError(f"sample {item.sample_id}: {error}") from error
