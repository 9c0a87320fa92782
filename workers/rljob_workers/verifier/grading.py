"""Items in, verdicts out, in order: checks the records, takes the quick stages, and leaves the rest to the pool.

Idempotent on (sample id, attempt): the same item gets the recorded verdict, or joins the grading that is under way.
The key includes the text, so that a caller that reuses an id for other text is graded, not answered from memory.
An infrastructure failure is never remembered, and nothing is that a worker said whose canaries were wrong later; of
what is not delivered yet then, everything that a worker said is an infrastructure failure, to be graded elsewhere.
"""

import asyncio
import collections
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence

from rljob_api import enums, errors, process_config, types
from rljob_api.manifest.verifier import PROGRAM_REWARDS
from rljob_workers.rpc import verify_service
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.verifier import frames, pool, rubric
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.code import verdict

MAX_REMEMBERED = 16_384
# How long quick looks may keep the event loop from other calls.
MAX_HELD_S = 0.002
# A program's wall limit is kept by the worker that runs it; the pool acts if that worker does not.
PROGRAM_GRACE_S = 10.0

INVALIDATED = "a canary program had a wrong outcome on a grading worker, so its results were discarded"
# How many answers the share of those that pass the visible tests alone is of.
HACK_WINDOW = 1_000

_Key = tuple[str, int, bytes]
_Quick = Sequence[base.Grade | None]
_Answer = types.Verdict | asyncio.Task[types.Verdict]


class Grading:
    """The verifier without its wire."""

    def __init__(
        self,
        *,
        rewards: Sequence[process_config.GraderConfig],
        graders: Sequence[base.Grader],
        workers: pool.Pool,
        metrics: metrics_module.Metrics,
        cpu_factor: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`graders` are in the order of `rewards`; rewards of an evaluation suite grade that suite alone,
        and those of some tasks the records of these alone. `cpu_factor`: as `calibration.py` has it at the moment.
        """
        self._cpu_factor = cpu_factor
        self._rewards, self._graders, self._pool, self._metrics = rewards, graders, workers, metrics
        self._of_suite = {
            suite: process_config.graders_of(rewards, suite) for suite in {"", *(r.suite for r in rewards)}
        }
        self._running: dict[_Key, asyncio.Task[types.Verdict]] = {}
        self._remembered: collections.OrderedDict[_Key, types.Verdict] = collections.OrderedDict()
        self._visible_only: collections.deque[float] = collections.deque(maxlen=HACK_WINDOW)
        self._num_invalidations = 0

    async def verify(self, items: Sequence[types.VerifyItem]) -> list[types.Verdict]:
        """Return one verdict per item, in order.

        Raises RecordError if a record cannot be graded by a reward, and OverloadedError if too many items wait; then no
        item of the call has been started.
        """
        for item in items:
            self._check(item)
        grades = await self._quick_grades(items)
        num_invalidations = self._pool.num_invalidations
        keys = [_key(item) for item in items]
        answers = self._start(dict(zip(keys, zip(items, grades, strict=True), strict=True)))
        under_way = [answer for answer in answers.values() if isinstance(answer, asyncio.Task)]
        # A caller that goes away must not end a grading that another call has joined.
        await asyncio.gather(*map(asyncio.shield, under_way))
        verdicts = [answer.result() if isinstance(answer := answers[key], asyncio.Task) else answer for key in keys]
        if self._pool.num_invalidations == num_invalidations:
            return verdicts
        return [
            self._invalidated(item) if None in quick else verdict
            for item, quick, verdict in zip(items, grades, verdicts, strict=True)
        ]

    def _check(self, item: types.VerifyItem) -> None:
        try:
            indexes = self._indexes(item)
        except errors.DataError as error:
            raise errors.RecordError(f"sample {item.sample_id}: {error}") from error
        for index in indexes:
            try:
                self._graders[index].check(item.columns)
            except errors.DataError as error:
                name = self._rewards[index].name
                raise errors.RecordError(f"sample {item.sample_id}, reward {name!r}: {error}") from error

    def _indexes(self, item: types.VerifyItem) -> tuple[int, ...]:
        """Return which rewards grade an item: those of its suite, if it has its own, and of these its task's."""
        return rubric.graded_by(self._rewards, self._of_suite.get(item.suite, self._of_suite[""]), item.columns)

    async def _quick_grades(self, items: Sequence[types.VerifyItem]) -> list[_Quick]:
        grades: list[_Quick] = []
        held_since_s = time.perf_counter()
        for item in items:
            # Each look is bounded; other calls get their turn before several of them add up.
            if time.perf_counter() - held_since_s > MAX_HELD_S:
                await asyncio.sleep(0)
                held_since_s = time.perf_counter()
            answer = base.Answer(prompt=item.prompt, completion=item.completion, columns=item.columns)
            grades.append([_quick(self._graders[index], answer) for index in self._indexes(item)])
        return grades

    def _start(self, items: Mapping[_Key, tuple[types.VerifyItem, _Quick]]) -> dict[_Key, _Answer]:
        """Admit all or none; return verdicts that are known and gradings under way.

        Nothing in here gives way, so what was counted is what is queued.
        """
        self._forget_invalidated()
        fresh = {key: items[key] for key in items if key not in self._running and key not in self._remembered}
        needed = sum(grade is None for _, quick in fresh.values() for grade in quick)
        if not self._pool.admits(needed):
            raise verify_service.OverloadedError(
                f"{self._pool.num_waiting} items wait already, and this call would add {needed}"
            )
        requests = {key: self._requests(item, quick) for key, (item, quick) in fresh.items()}
        results = {key: self._running.get(key) or self._recall(key) for key in items if key not in fresh}
        return results | {key: self._begin(key, item, quick, requests[key]) for key, (item, quick) in fresh.items()}

    def _requests(self, item: types.VerifyItem, quick: _Quick) -> list[pool.Request | None]:
        cpu_factor = self._cpu_factor()
        return [
            None
            if grade is not None
            else request_of(item, index, self._rewards[index], self._graders[index], cpu_factor=cpu_factor)
            for index, grade in zip(self._indexes(item), quick, strict=True)
        ]

    def _begin(
        self, key: _Key, item: types.VerifyItem, quick: _Quick, requests: Sequence[pool.Request | None]
    ) -> _Answer:
        decided = [grade for grade in quick if grade is not None]
        if len(decided) == len(quick):
            verdict = self._verdict(item, decided)
            self._remember(key, verdict)
            return verdict
        pending = [None if request is None else self._pool.submit(request) for request in requests]
        task = asyncio.create_task(self._finish(item, quick, pending))
        self._running[key] = task
        task.add_done_callback(lambda done: self._finished(key, done))
        return task

    async def _finish(
        self,
        item: types.VerifyItem,
        quick: _Quick,
        pending: Sequence["asyncio.Future[base.Grade] | None"],
    ) -> types.Verdict:
        grades = []
        for grade, future in zip(quick, pending, strict=True):
            if future is not None:
                grade = await future
            assert grade is not None, "what quick left open was submitted"
            grades.append(grade)
        return self._verdict(item, grades)

    def _verdict(self, item: types.VerifyItem, grades: Sequence[base.Grade]) -> types.Verdict:
        rewards = [self._rewards[index] for index in self._indexes(item)]
        for reward, grade in zip(rewards, grades, strict=True):
            self._count(reward, grade)
        return rubric.combine(rewards, grades, item)

    def _invalidated(self, item: types.VerifyItem) -> types.Verdict:
        """Return the verdict on an item that may have been graded by a worker whose canary was wrong."""
        rewards = [self._rewards[index] for index in self._indexes(item)]
        return rubric.combine(rewards, [pool.infra(INVALIDATED)] * len(rewards), item)

    def _count(self, reward: process_config.GraderConfig, grade: base.Grade) -> None:
        self._metrics.counter("rljob_verify_total").inc(
            reward=reward.name,
            type=reward.type,
            mode=reward.mode.lower(),
            outcome=str(grade.outcome),
            reason=str(grade.reason),
        )
        self._metrics.histogram("rljob_verify_seconds").observe(grade.wall_s, reward=reward.name)
        self._metrics.histogram("rljob_verify_cpu_seconds").observe(grade.cpu_s, reward=reward.name)
        if verdict.VISIBLE_ONLY in grade.parts:
            self._visible_only.append(grade.parts[verdict.VISIBLE_ONLY])
            self._metrics.gauge("rljob_hack_ratio").set(sum(self._visible_only) / len(self._visible_only))

    def _finished(self, key: _Key, task: "asyncio.Task[types.Verdict]") -> None:
        if self._running.get(key) is not task:
            # Started before its result was invalidated.
            return
        del self._running[key]
        if not task.cancelled() and not task.exception():
            self._remember(key, task.result())

    def _remember(self, key: _Key, verdict: types.Verdict) -> None:
        if verdict.reason is enums.VerdictReason.INFRA_FAILURE:
            return
        self._remembered[key] = verdict
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    def _forget_invalidated(self) -> None:
        """Forget all verdicts, which do not say who graded them: who asks again has the item graded again."""
        if self._pool.num_invalidations != self._num_invalidations:
            self._num_invalidations = self._pool.num_invalidations
            self._remembered.clear()
            self._running.clear()

    def _recall(self, key: _Key) -> types.Verdict:
        self._remembered.move_to_end(key)
        return self._remembered[key]


def _quick(grader: base.Grader, answer: base.Answer) -> base.Grade | None:
    started_s = time.perf_counter()
    grade = base.guarded(grader.quick, answer)
    if grade is None:
        return None
    spent_s = time.perf_counter() - started_s
    return dataclasses.replace(grade, cpu_s=spent_s, wall_s=spent_s)


def _key(item: types.VerifyItem) -> _Key:
    text = json.dumps([item.prompt, item.completion, dict(item.columns), item.truncated, item.suite], sort_keys=True)
    return item.sample_id, item.attempt, hashlib.blake2b(text.encode("ascii"), digest_size=16).digest()


def request_of(
    item: types.VerifyItem,
    index: int,
    reward: process_config.GraderConfig,
    grader: base.Grader,
    *,
    cpu_factor: float = 1.0,
) -> pool.Request:
    """Return what asks a worker for one reward of an item. Raises WireError if it is too large.

    cpu_factor: seconds of this machine per reference second, in which limits are; but the wall time of an answer with a
    program is in those of any clock.
    """
    num_time_limits = grader.num_time_limits(item.columns)
    cpu_s, wall_s = reward.cpu_limit_s * num_time_limits * cpu_factor, reward.wall_limit_s * num_time_limits
    wall_s = wall_s + PROGRAM_GRACE_S if reward.type in PROGRAM_REWARDS else wall_s * cpu_factor
    payload = {
        "reward": index,
        "prompt": item.prompt,
        "completion": item.completion,
        "columns": dict(item.columns),
        "prompt_ids": item.prompt_ids,
        "completion_ids": item.completion_ids,
        "cpu_limit_s": cpu_s,
        "cpu_factor": cpu_factor,
    }
    try:
        frame = frames.encode(payload, max_bytes=frames.MAX_REQUEST_BYTES)
    except errors.WireError as error:
        raise errors.WireError(f"sample {item.sample_id}: {error}") from error
    return pool.Request(frame=frame, cpu_s=cpu_s, wall_s=wall_s, cpu_factor=cpu_factor)
