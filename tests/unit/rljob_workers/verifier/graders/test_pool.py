"""The supervisor's decisions, with scripted workers instead of processes."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator, Callable

import pytest

from rljob_api import enums, errors
from rljob_workers.runtime import clock, metrics
from rljob_workers.verifier import frames, pool, replies
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.sandbox.processes import launcher

R = enums.VerdictReason
RIGHT = replies.grade_to(base.passed("5"))


class ScriptedWorker:
    """Answers by the order in the request: right, retire, due, die, hang (asleep), spin (busy), nonsense; w1 alone does
    what `doubt ...` says first. Canaries come out as `Nursery.canaries` says.
    """

    def __init__(self, name: str, nursery: "Nursery", *, survives: bool = False) -> None:
        self._name, self._events, self._survives = name, nursery.events, survives
        self._nursery = nursery
        self._cpu_s = 0.0
        self._spinning = False
        self._killed = asyncio.Event()

    async def exchange(self, request: bytes) -> dict[str, object]:
        (payload,) = frames.Decoder(max_bytes=1 << 20).feed(request)
        if payload == replies.CANARIES:
            return await self._canaries()
        order = str(payload["order"])
        if order.startswith("doubt") and self._name == "w1":
            self._events.append("w1 doubt")
            return replies.wrong_canary_to("flood")
        order = order.removeprefix("doubt ")
        self._events.append(f"{self._name} {order}")
        if order == "die":
            raise launcher.WorkerLostError("died", signal=signal.SIGKILL)
        if order == "cpu_signal":
            raise launcher.WorkerLostError("died", signal=signal.SIGXCPU)
        if order in ("hang", "spin"):
            self._spinning = order == "spin"
            await self._killed.wait()
        known: dict[str, dict[str, object]] = {
            "retire": {**RIGHT, "then": "retire"},
            "due": {**RIGHT, "then": "canaries"},
            "ever": {**RIGHT, "then": "for ever"},
            "nonsense": {"score": "high"},
            "infinite": {**RIGHT, "score": float("inf")},
        }
        return known.get(order, RIGHT)

    async def _canaries(self) -> dict[str, object]:
        self._events.append(f"{self._name} canaries")
        await self._nursery.canary_gate.wait()
        if self._nursery.canary == "die":
            raise launcher.WorkerLostError("died", signal=signal.SIGKILL)
        return {} if self._nursery.canary == "nonsense" else replies.wrong_canary_to(self._nursery.canary)

    def note_programs(self) -> None:
        pass

    def cpu_s(self) -> float:
        self._cpu_s += 0.02 if self._spinning else 0.0
        return self._cpu_s

    async def teardown(self) -> bool:
        self._events.append(f"{self._name} ended")
        self._killed.set()
        return not self._survives


class Nursery:
    """Makes scripted workers w1, w2, ...; fails while `broken`, and waits while the gate is closed. Something of those
    that `survivors` names outlives them.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.broken = False
        self.canary = ""
        self.canary_gate = asyncio.Event()
        self.canary_gate.set()
        self.survivors: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self._count = 0

    async def launch(self) -> launcher.Worker:
        await self.gate.wait()
        if self.broken:
            raise errors.SandboxError("no memory")
        self._count += 1
        name = f"w{self._count}"
        self.events.append(f"{name} started")
        return ScriptedWorker(name, self, survives=name in self.survivors)


def order(text: str, *, cpu_s: float = 0.1) -> pool.Request:
    return pool.Request(frame=frames.encode({"order": text}, max_bytes=1 << 20), cpu_s=cpu_s, wall_s=3 * cpu_s)


@pytest.fixture
def nursery() -> Nursery:
    return Nursery()


Started = Callable[..., "asyncio.Future[pool.Pool]"]


@pytest.fixture
async def start(nursery: Nursery, verifier_metrics: metrics.Metrics) -> AsyncIterator[Callable[..., object]]:
    pools: list[pool.Pool] = []

    async def started(*, num_slots: int = 1, max_waiting: int = 100) -> pool.Pool:
        size = pool.Size(num_slots=num_slots, num_spares=1, max_waiting=max_waiting)
        made = pool.Pool(size=size, launch=nursery.launch, metrics=verifier_metrics, clock=clock.SystemClock())
        pools.append(made)
        await made.start()
        return made

    yield started
    for made in pools:
        await made.close()


async def test_answers_share_a_worker_that_behaves(start: Started, nursery: Nursery) -> None:
    workers = await start()
    assert [(await workers.submit(order("right"))).reason for _ in range(3)] == [R.OK] * 3
    assert [event for event in nursery.events if "right" in event] == ["w1 right"] * 3


@pytest.mark.covers("graders 3.1")
async def test_spare_is_started_before_it_is_needed(start: Started, nursery: Nursery) -> None:
    workers = await start(num_slots=2)
    await workers.submit(order("right"))
    assert [event for event in nursery.events if "started" in event] == ["w1 started", "w2 started", "w3 started"]


@pytest.mark.covers("graders 2.1", "sandbox A-67", "sandbox S-6")
async def test_first_death_is_graded_again_on_a_fresh_worker_and_the_second_is_the_answers_own(
    start: Started, nursery: Nursery
) -> None:
    workers = await start()
    grade = await workers.submit(order("die"))
    assert (grade.score, grade.reason, grade.outcome) == (0.0, R.CRASH, enums.VerifyOutcome.FAIL)
    assert grade.detail == "worker_killer"
    assert [event for event in nursery.events if "started" not in event] == ["w1 die", "w1 ended", "w2 die", "w2 ended"]
    assert (await workers.submit(order("right"))).reason is R.OK


@pytest.mark.covers("graders 2.1")
async def test_busy_answer_is_killed_at_its_cpu_limit_and_scored_zero(start: Started, nursery: Nursery) -> None:
    workers = await start()
    grade = await workers.submit(order("spin"))
    assert (grade.score, grade.reason, grade.outcome) == (0.0, R.TIMEOUT, enums.VerifyOutcome.TIMEOUT_CPU)
    assert "w1 ended" in nursery.events
    assert (await workers.submit(order("right"))).reason is R.OK


async def test_answer_that_the_kernels_cpu_limit_ends_is_a_timeout_and_not_graded_again(
    start: Started, nursery: Nursery
) -> None:
    workers = await start()
    assert (await workers.submit(order("cpu_signal"))).reason is R.TIMEOUT
    assert [event for event in nursery.events if "cpu_signal" in event] == ["w1 cpu_signal"]


@pytest.mark.covers("graders 2.1", "graders 3.1")
async def test_wall_cap_without_cpu_use_is_nobodys_fault_and_has_no_score(start: Started) -> None:
    workers = await start()
    began_s = time.monotonic()
    grade = await workers.submit(order("hang"))
    assert (grade.score, grade.reason, grade.outcome) == (None, R.INFRA_FAILURE, enums.VerifyOutcome.INFRA_ERROR)
    assert 0.3 <= grade.wall_s <= time.monotonic() - began_s
    assert (await workers.submit(order("right"))).reason is R.OK


@pytest.mark.parametrize("reply", ["nonsense", "infinite", "ever"])
async def test_worker_that_answers_nonsense_is_not_trusted_again(start: Started, nursery: Nursery, reply: str) -> None:
    workers = await start()
    assert (await workers.submit(order(reply))).reason is R.CRASH
    assert {"w1 ended", "w2 ended"} <= set(nursery.events)


async def test_worker_that_asks_to_retire_is_replaced_and_its_grade_kept(start: Started, nursery: Nursery) -> None:
    workers = await start()
    assert (await workers.submit(order("retire"))).reason is R.OK
    assert (await workers.submit(order("right"))).reason is R.OK
    assert "w1 ended" in nursery.events
    assert "w2 right" in nursery.events


@pytest.mark.covers("sandbox 4")
async def test_worker_whose_canary_is_wrong_is_replaced_and_the_answer_graded_by_the_next(
    start: Started, nursery: Nursery, verifier_metrics: metrics.Metrics
) -> None:
    workers = await start()
    assert workers.num_invalidations == 0
    assert (await workers.submit(order("doubt right"))).reason is R.OK
    assert [event for event in nursery.events if "started" not in event] == ["w1 doubt", "w1 ended", "w2 right"]
    assert workers.num_invalidations == 1
    text = verifier_metrics.exposition().decode()
    assert 'rljob_verifier_canary_failures_total{canary="flood",rljob="job",rljob_namespace="tests"} 1.0' in text


@pytest.mark.covers("sandbox 4")
async def test_pool_is_in_doubt_until_a_worker_that_was_started_after_a_wrong_canary_is_ready(
    start: Started, nursery: Nursery
) -> None:
    workers = await start()
    while "w2 started" not in nursery.events:
        await asyncio.sleep(0)
    nursery.gate.clear()
    # The spare that was ready grades the answer, and shows nothing: its canaries were right before.
    assert (await workers.submit(order("doubt right"))).reason is R.OK
    assert nursery.events[-1] == "w2 right"
    assert workers.failure == "canary flood had an unexpected outcome"
    nursery.gate.set()
    while workers.failure:
        await asyncio.sleep(0)
    assert nursery.events[-1] == "w3 started"


async def test_wrong_canary_is_no_death_of_the_answers_own_doing(start: Started, nursery: Nursery) -> None:
    workers = await start()
    assert (await workers.submit(order("doubt die"))).detail == "worker_killer"
    assert [event for event in nursery.events if "die" in event] == ["w2 die", "w3 die"]


async def test_worker_whose_canaries_are_due_runs_them_after_its_grade_is_told_and_then_serves_again(
    start: Started, nursery: Nursery
) -> None:
    workers = await start()
    nursery.canary_gate.clear()
    assert (await workers.submit(order("due"))).reason is R.OK
    following = workers.submit(order("right"))
    while nursery.events[-1] != "w1 canaries":
        await asyncio.sleep(0)
    assert not following.done()
    nursery.canary_gate.set()
    assert (await following).reason is R.OK
    assert nursery.events[-3:] == ["w1 due", "w1 canaries", "w1 right"]


async def test_one_worker_at_a_time_runs_its_canaries_and_the_others_serve(start: Started, nursery: Nursery) -> None:
    workers = await start(num_slots=2)
    nursery.canary_gate.clear()
    grades = [await workers.submit(order("due")) for _ in range(20)]
    assert {grade.reason for grade in grades} == {R.OK}
    assert len([event for event in nursery.events if event.endswith("canaries")]) == 1


@pytest.mark.parametrize(
    ("canary", "num_invalidations", "reason"), [("flood", 1, "retired"), ("die", 0, "lost"), ("nonsense", 0, "lost")]
)
async def test_worker_that_its_canaries_end_is_replaced(
    start: Started,
    nursery: Nursery,
    verifier_metrics: metrics.Metrics,
    canary: str,
    num_invalidations: int,
    reason: str,
) -> None:
    workers = await start()
    nursery.canary = canary
    assert (await workers.submit(order("due"))).reason is R.OK
    assert (await workers.submit(order("right"))).reason is R.OK
    assert [event for event in nursery.events if "w1" in event][-2:] == ["w1 canaries", "w1 ended"]
    assert "w2 right" in nursery.events
    assert workers.num_invalidations == num_invalidations
    text = verifier_metrics.exposition().decode()
    assert f'rljob_verifier_workers_ended_total{{reason="{reason}",rljob="job",rljob_namespace="tests"}} 1.0' in text


@pytest.mark.covers("graders 2.4")
async def test_slow_answer_delays_nobody_while_a_slot_is_free(start: Started) -> None:
    workers = await start(num_slots=2)
    slow = workers.submit(order("hang", cpu_s=600.0))
    quick = [workers.submit(order("right")) for _ in range(20)]
    assert {grade.reason for grade in await asyncio.wait_for(asyncio.gather(*quick), 60)} == {R.OK}
    assert not slow.done()


@pytest.mark.covers("graders 3.1")
async def test_clock_of_an_answer_does_not_run_while_it_waits(start: Started) -> None:
    workers = await start()
    ahead = [workers.submit(order("spin")) for _ in range(3)]
    last = workers.submit(order("right"))
    grade = await last
    before = [await first for first in ahead]
    assert [first.reason for first in before] == [R.TIMEOUT] * 3
    assert grade.reason is R.OK
    assert grade.wall_s < sum(first.wall_s for first in before), "it waited for as long"


async def test_pool_admits_up_to_the_bound(start: Started) -> None:
    workers = await start(max_waiting=3)
    blocker = workers.submit(order("hang", cpu_s=5.0))
    while workers.num_waiting:
        await asyncio.sleep(0)
    assert workers.admits(3)
    waiting = [workers.submit(order("right")) for _ in range(2)]
    assert workers.admits(1)
    assert not workers.admits(2)
    assert not blocker.done()
    assert not any(each.done() for each in waiting)


async def test_close_answers_what_is_left_with_infra_failure(start: Started) -> None:
    workers = await start()
    left = [workers.submit(order("hang", cpu_s=5.0)), workers.submit(order("right"))]
    await asyncio.sleep(0)
    await workers.close()
    assert [(await each).reason for each in left] == [R.INFRA_FAILURE] * 2


async def test_pool_that_cannot_replace_its_worker_says_so_and_recovers(start: Started, nursery: Nursery) -> None:
    workers = await start()
    while "w2 started" not in nursery.events:
        await asyncio.sleep(0)
    nursery.broken = True
    assert (await workers.submit(order("retire"))).reason is R.OK
    assert (await workers.submit(order("retire"))).reason is R.OK
    assert (await workers.submit(order("right"))).reason is R.INFRA_FAILURE
    assert "no memory" in workers.failure
    nursery.broken = False
    grades = [await workers.submit(order("right")) for _ in range(2)]
    assert grades[-1].reason is R.OK
    assert workers.failure == ""


async def test_start_that_fails_leaves_nothing_behind(nursery: Nursery, verifier_metrics: metrics.Metrics) -> None:
    async def second_fails() -> launcher.Worker:
        if nursery.events:
            raise errors.SandboxError("no memory")
        return await nursery.launch()

    size = pool.Size(num_slots=2, num_spares=1, max_waiting=1)
    workers = pool.Pool(size=size, launch=second_fails, metrics=verifier_metrics, clock=clock.SystemClock())
    with pytest.raises(errors.SandboxError, match="no memory"):
        await workers.start()
    assert nursery.events == ["w1 started", "w1 ended"]


@pytest.mark.parametrize(
    ("failures", "ends"),
    [
        ([errors.SandboxError("its test ended without a result")], None),
        ([errors.SandboxError("does not hold")] * 2, errors.SandboxError),
        ([errors.UnavailableError("killed")], errors.UnavailableError),
    ],
)
async def test_isolation_is_said_to_be_missing_only_after_a_second_worker_found_it_so(
    nursery: Nursery,
    verifier_metrics: metrics.Metrics,
    failures: list[errors.RLJobError],
    ends: type[errors.RLJobError] | None,
) -> None:
    """A program of the test that someone else kills fails the test: it must not end the run for good."""
    left = list(failures)

    async def launch() -> launcher.Worker:
        if left:
            raise left.pop(0)
        return await nursery.launch()

    size = pool.Size(num_slots=1, num_spares=1, max_waiting=1)
    workers = pool.Pool(size=size, launch=launch, metrics=verifier_metrics, clock=clock.SystemClock())
    if ends is not None:
        with pytest.raises(ends):
            await workers.start()
        return
    await workers.start()
    assert (await workers.submit(order("right"))).reason is R.OK
    await workers.close()


@pytest.mark.parametrize("kind", [errors.SandboxError, errors.UnavailableError])
async def test_spare_that_was_killed_while_it_started_is_replaced(
    nursery: Nursery, verifier_metrics: metrics.Metrics, kind: type[errors.RLJobError]
) -> None:
    outcomes: list[errors.RLJobError | None] = [None, kind("killed before it was ready")]

    async def launch() -> launcher.Worker:
        if outcomes and (failure := outcomes.pop(0)) is not None:
            raise failure
        return await nursery.launch()

    size = pool.Size(num_slots=1, num_spares=1, max_waiting=1)
    workers = pool.Pool(size=size, launch=launch, metrics=verifier_metrics, clock=clock.SystemClock())
    await workers.start()
    assert (await workers.submit(order("retire"))).reason is R.OK
    grades = [await workers.submit(order("right")) for _ in range(2)]
    assert outcomes == []
    assert grades[-1].reason is R.OK
    assert workers.failure == ""
    await workers.close()


async def test_spare_that_did_not_start_is_tried_again_though_nobody_takes_it(
    nursery: Nursery, verifier_metrics: metrics.Metrics
) -> None:
    """Until then the verifier says that it is not ready; in a cluster it gets no answers then, and takes no spare."""
    outcomes: list[errors.RLJobError | None] = [None, errors.UnavailableError("killed before it was ready")]
    failed = asyncio.Event()

    async def launch() -> launcher.Worker:
        if outcomes and (failure := outcomes.pop(0)) is not None:
            failed.set()
            raise failure
        return await nursery.launch()

    size = pool.Size(num_slots=1, num_spares=1, max_waiting=1)
    workers = pool.Pool(size=size, launch=launch, metrics=verifier_metrics, clock=clock.SystemClock())
    await workers.start()
    async with asyncio.timeout(60):
        await failed.wait()
        while workers.failure or nursery.events != ["w1 started", "w2 started"]:
            await asyncio.sleep(0.01)
    await workers.close()


@pytest.mark.covers("security")
async def test_process_that_outlives_its_worker_is_counted_and_the_next_answer_graded(
    start: Started, nursery: Nursery, verifier_metrics: metrics.Metrics
) -> None:
    nursery.survivors.add("w1")
    workers = await start()
    for what in ("spin", "spin", "right"):
        await workers.submit(order(what))
    assert [event for event in nursery.events if "ended" in event] == ["w1 ended", "w2 ended"]
    text = verifier_metrics.exposition().decode()
    assert 'rljob_sandbox_survivors_total{rljob="job",rljob_namespace="tests"} 1.0' in text


async def test_worker_that_is_being_started_is_ended_whole_when_nobody_watches_and_the_pool_closes(
    nursery: Nursery, verifier_metrics: metrics.Metrics
) -> None:
    async def launch() -> launcher.Worker:
        if not nursery.events:
            return await nursery.launch()
        nursery.events.append("spare begun")
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            nursery.events.append("spare ended")
        raise AssertionError("waits for ever")

    size = pool.Size(num_slots=1, num_spares=1, max_waiting=1)
    workers = pool.Pool(size=size, launch=launch, metrics=verifier_metrics, clock=clock.SystemClock())
    await workers.start()
    watching = asyncio.create_task(workers.watch())
    while "spare begun" not in nursery.events:
        await asyncio.sleep(0)
    watching.cancel()
    await asyncio.wait({watching}, timeout=0)
    await workers.close()
    assert {"spare ended", "w1 ended"} <= set(nursery.events)


@pytest.mark.covers("graders 2.4")
async def test_starts_and_ends_of_workers_are_counted_by_why(start: Started, verifier_metrics: metrics.Metrics) -> None:
    workers = await start()
    for what in ("spin", "retire", "die", "right"):
        await workers.submit(order(what))
    text = verifier_metrics.exposition().decode()
    labels = 'rljob="job",rljob_namespace="tests"'
    for reason, count in (("killed", 1), ("retired", 1), ("lost", 2)):
        assert f'rljob_verifier_workers_ended_total{{reason="{reason}",{labels}}} {count}.0' in text
    started = re.search(r"rljob_verifier_workers_started_total\{.*\} (\d+)\.0", text)
    assert started is not None
    assert int(started[1]) >= 5
