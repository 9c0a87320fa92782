"""Items to verdicts: order, idempotence, admission, and records that cannot be graded. Graders in this process."""

import asyncio
import dataclasses
import re
from collections.abc import Awaitable, Callable, Sequence

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_api import enums, errors, process_config, types
from rljob_api.manifest.base import Decimal
from rljob_workers.rpc import verify_service
from rljob_workers.runtime import clock, metrics
from rljob_workers.verifier import frames, grading, pool, replies, service
from rljob_workers.verifier.graders import base, registry
from rljob_workers.verifier.sandbox.processes import launcher

R = enums.VerdictReason
MakeItem = Callable[..., types.VerifyItem]


class Echo:
    """A worker that answers 5 right and everything else as it is reported, one turn later, and records what it saw."""

    def __init__(self, seen: list[str], released: asyncio.Event) -> None:
        self._seen, self._released = seen, released

    async def exchange(self, request: bytes) -> dict[str, object]:
        (payload,) = frames.Decoder(max_bytes=1 << 20).feed(request)
        completion = str(payload["completion"])
        self._seen.append(completion)
        await asyncio.sleep(0)
        if completion == "lose":
            raise launcher.WorkerLostError("lost")
        if completion == "doubt" and self._seen.count("doubt") == 1:
            return replies.wrong_canary_to("pass")
        if completion == "hold":
            await self._released.wait()
        if completion == "wait":
            await asyncio.Event().wait()
        grade = base.passed("5") if completion == "5" else base.failed(R.WRONG, extracted=completion)
        return replies.grade_to(grade)

    def note_programs(self) -> None:
        pass

    def cpu_s(self) -> float:
        return 0.0

    async def teardown(self) -> bool:
        return True


class Slow(base.SingleTimeLimit):
    """A grader that leaves everything to the worker, but for `quick`."""

    needs_worker = True

    def check(self, columns: object) -> None:
        if columns == {}:
            raise errors.DataError("the record has no 'answer'")

    def warm(self) -> None:
        """Nothing."""

    def quick(self, answer: base.Answer) -> base.Grade | None:
        if answer.completion == "raise":
            raise ZeroDivisionError
        return base.passed("quick") if answer.completion == "quick" else None

    def grade(self, answer: base.Answer) -> base.Grade:
        raise AssertionError("runs in a worker")


@dataclasses.dataclass
class Bench:
    """A grading, what its workers saw, when those that hold an answer may continue, and its metrics."""

    grading: grading.Grading
    seen: list[str]
    released: asyncio.Event
    metrics: metrics.Metrics


async def with_bench(
    use: Callable[[Bench], Awaitable[None]], *, max_waiting: int = 1000, weights: Sequence[float] = (1.0,)
) -> None:
    seen: list[str] = []
    released = asyncio.Event()
    counted = metrics.Metrics(
        role=enums.Role.VERIFIER, job=process_config.JobIdentity(name="job", namespace="tests", uid="uid")
    )

    async def launch() -> launcher.Worker:
        return Echo(seen, released)

    size = pool.Size(num_slots=3, num_spares=1, max_waiting=max_waiting)
    workers = pool.Pool(size=size, launch=launch, metrics=counted, clock=clock.SystemClock())
    await workers.start()
    limits = {"cpu_limit_s": 0.1, "wall_limit_s": 0.3}
    rewards = [
        process_config.GraderConfig(name=f"r{n}", type="slow", weight=Decimal(weight), **limits)
        for n, weight in enumerate(weights)
    ]
    graded = grading.Grading(rewards=rewards, graders=[Slow() for _ in rewards], workers=workers, metrics=counted)
    try:
        await use(Bench(grading=graded, seen=seen, released=released, metrics=counted))
    finally:
        await workers.close()


@pytest.mark.covers("graders 2.4")
@hypothesis.given(completions=st.lists(st.sampled_from(["5", "6", "quick", "raise", "a", "b", "c"]), max_size=30))
@hypothesis.settings(deadline=None, max_examples=50)
def test_there_is_one_verdict_per_item_in_input_order(completions: list[str]) -> None:
    async def use(bench: Bench) -> None:
        items = [
            types.VerifyItem(sample_id=f"s{n}", attempt=0, prompt="", completion=text, columns={"answer": "5"})
            for n, text in enumerate(completions)
        ]
        verdicts = await bench.grading.verify(items)
        expected = {"5": "5", "quick": "quick", "raise": ""}
        assert [verdict.extracted for verdict in verdicts] == [expected.get(text, text) for text in completions]

    asyncio.run(with_bench(use))


@pytest.mark.covers("graders 2.4")
async def test_repeated_item_gets_the_recorded_verdict(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        first = await bench.grading.verify([make_item("5")])
        assert await bench.grading.verify([make_item("5")]) == first
        assert bench.seen == ["5"]

    await with_bench(use)


async def test_item_that_is_being_graded_is_joined_not_graded_twice(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        one, two = await asyncio.gather(
            bench.grading.verify([make_item("5"), make_item("5")]), bench.grading.verify([make_item("5")])
        )
        assert one == two * 2
        assert bench.seen == ["5"]

    await with_bench(use)


@pytest.mark.covers("graders 2.4")
async def test_another_attempt_or_another_text_is_graded_anew(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        await bench.grading.verify([make_item("5"), make_item("5", attempt=1), make_item("6")])
        assert sorted(bench.seen) == ["5", "5", "6"]

    await with_bench(use)


async def test_infrastructure_failure_is_not_remembered(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        (verdict,) = await bench.grading.verify([make_item("wait")])
        assert (verdict.reward, verdict.reason) == (None, R.INFRA_FAILURE)
        await bench.grading.verify([make_item("wait")])
        assert bench.seen == ["wait", "wait"]

    await with_bench(use)


@pytest.mark.covers("sandbox 4")
async def test_nothing_is_remembered_of_before_a_wrong_canary(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        await bench.grading.verify([make_item("5")])
        await bench.grading.verify([make_item("doubt", sample_id="t")])
        bench.seen.clear()
        for _ in range(2):
            await bench.grading.verify([make_item("5")])
        assert bench.seen == ["5"]

    await with_bench(use)


@pytest.mark.covers("sandbox 4")
async def test_what_is_not_delivered_when_a_canary_is_wrong_is_to_be_graded_elsewhere(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        items = [make_item(text, sample_id=text) for text in ("5", "quick", "6", "doubt")]
        graded = await bench.grading.verify(items)
        assert [verdict.reason for verdict in graded] == [R.INFRA_FAILURE, R.OK, R.INFRA_FAILURE, R.INFRA_FAILURE]
        assert [verdict.reward for verdict in graded] == [None, 1.0, None, None]
        assert graded[0].detail == grading.INVALIDATED
        again = await bench.grading.verify([dataclasses.replace(item, attempt=1) for item in items])
        assert [verdict.reward for verdict in again] == [1.0, 1.0, 0.0, 0.0]

    await with_bench(use)


@pytest.mark.covers("sandbox 4")
async def test_grading_that_began_before_a_wrong_canary_is_neither_joined_nor_remembered(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        held = make_item("hold", sample_id="held")
        before = asyncio.create_task(bench.grading.verify([held]))
        while "hold" not in bench.seen:
            await asyncio.sleep(0)
        await bench.grading.verify([make_item("doubt", sample_id="t")])
        after = asyncio.create_task(bench.grading.verify([held]))
        while bench.seen.count("hold") < 2:
            await asyncio.sleep(0)
        bench.released.set()
        assert [verdict.reason for verdict in await before] == [R.INFRA_FAILURE]
        assert [verdict.reason for verdict in await after] == [R.WRONG]
        await bench.grading.verify([held])
        assert bench.seen.count("hold") == 2

    await with_bench(use)


async def test_worker_killer_is_remembered_as_its_own_doing(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        for _ in range(2):
            (verdict,) = await bench.grading.verify([make_item("lose")])
            assert (verdict.reward, verdict.reason, verdict.detail) == (0.0, R.CRASH, "worker_killer")
        assert bench.seen == ["lose", "lose"]

    await with_bench(use)


async def test_caller_that_goes_away_does_not_end_what_another_waits_for(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        impatient = asyncio.create_task(bench.grading.verify([make_item("5")]))
        patient = asyncio.create_task(bench.grading.verify([make_item("5")]))
        while not bench.seen:
            await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient)[0].reward == 1.0

    await with_bench(use)


async def test_too_many_items_are_refused_whole(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        with pytest.raises(verify_service.OverloadedError, match="would add 5"):
            await bench.grading.verify([make_item("6", sample_id=str(n)) for n in range(5)])
        assert bench.seen == []
        quick = await bench.grading.verify([make_item("quick", sample_id=str(n)) for n in range(5)])
        assert len(quick) == 5, "what needs no slot is never refused"

    await with_bench(use, max_waiting=4)


async def test_missing_gold_refuses_the_call_and_names_sample_and_key(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        bad = types.VerifyItem(sample_id="s7", attempt=0, prompt="", completion="5", columns={})
        with pytest.raises(errors.GraderError, match="sample s7, reward 'r0': .*'answer'"):
            await bench.grading.verify([make_item("5"), bad])
        assert bench.seen == [], "no item of a refused call is graded"

    await with_bench(use)


async def test_item_too_large_for_a_worker_is_refused_by_name(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        with pytest.raises(errors.WireError, match="sample big"):
            await bench.grading.verify([make_item("x" * (frames.MAX_REQUEST_BYTES + 1), sample_id="big")])

    await with_bench(use)


@pytest.mark.covers("graders 2.4")
async def test_every_reward_grades_the_item_and_counts(make_item: MakeItem) -> None:
    async def use(bench: Bench) -> None:
        (verdict,) = await bench.grading.verify([make_item("5")])
        assert (verdict.reward, verdict.parts) == (0.75, {"r0": 1.0, "r1": 1.0})
        text = bench.metrics.exposition().decode()
        for reward in ("r0", "r1"):
            labels = (
                f'mode="strict",outcome="pass",reason="ok",reward="{reward}",rljob="job",'
                'rljob_namespace="tests",type="slow"'
            )
            assert f"rljob_verify_total{{{labels}}} 1.0" in text

    await with_bench(use, weights=(0.5, 0.25))


async def test_remembered_verdicts_are_bounded(make_item: MakeItem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "MAX_REMEMBERED", 2)

    async def use(bench: Bench) -> None:
        for text in ("a", "b", "a", "c", "b"):
            await bench.grading.verify([make_item(text)])
        assert bench.seen == ["a", "b", "c", "b"], "the least recently used one was forgotten"

    await with_bench(use)


@pytest.mark.covers("graders 1", "sandbox S-2")
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"execution": {"isolation": {"type": "None"}}}, errors.SandboxError, "allowUnsafe"),
        (
            {"rewards": [{"name": "r", "type": "maths"}]},
            errors.ManifestError,
            f"type 'maths'; expected one of {', '.join(sorted(registry.BUILT_IN))}",
        ),
        ({"rewards": [{"name": "r", "type": "math", "mode": "Compat"}]}, errors.ManifestError, "no compat mode"),
        ({"rewards": [{"name": "r", "type": "math", "config": {"boxed": 1}}]}, errors.ManifestError, "config.boxed"),
    ],
    ids=["isolation none", "unknown type", "compat of ours", "unknown option"],
)
def test_config_that_cannot_be_served_is_refused(
    make_config: Callable[..., process_config.VerifierConfig],
    changes: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    config = make_config(process_config.GraderConfig(name="r", type="exact"), **changes)
    with pytest.raises(error, match=message):
        service.make_graders(config)


class Says(Slow):
    """Decides at once, under its own name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def quick(self, answer: base.Answer) -> base.Grade | None:
        return base.passed(self.name)


class Hacked(Slow):
    """Decides at once that a completion passes the visible tests alone, or all, or that no one can show."""

    def quick(self, answer: base.Answer) -> base.Grade | None:
        parts = {"hacked": {"visible_only": 1.0}, "right": {"visible_only": 0.0}}.get(answer.completion, {})
        return dataclasses.replace(base.failed(R.WRONG), parts=parts)


@pytest.mark.covers("sandbox A-57")
async def test_share_of_programs_that_pass_the_visible_tests_alone_is_told(
    make_item: MakeItem, verifier_metrics: metrics.Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = pool.Size(num_slots=0, num_spares=0, max_waiting=1)
    workers = pool.Pool(size=size, launch=never, metrics=verifier_metrics, clock=clock.SystemClock())
    monkeypatch.setattr(grading, "HACK_WINDOW", 4)
    reward = process_config.GraderConfig(name="a", type="hacked")
    graded = grading.Grading(rewards=[reward], graders=[Hacked()], workers=workers, metrics=verifier_metrics)
    shares = []
    for number, text in enumerate(["untold", "hacked", "right", "untold", "right", "right", "right"]):
        await graded.verify([make_item(text, sample_id=str(number))])
        shares += re.findall(r"^rljob_hack_ratio\{.*\} (.*)$", verifier_metrics.exposition().decode(), re.MULTILINE)
    assert [float(share) for share in shares] == pytest.approx([1, 1 / 2, 1 / 2, 1 / 3, 1 / 4, 0])


async def never() -> launcher.Worker:
    raise AssertionError("every grader decides at once")


@pytest.mark.covers("workflows 11")
async def test_an_item_of_a_suite_is_graded_by_the_rewards_of_that_suite_alone(
    make_item: MakeItem, verifier_metrics: metrics.Metrics
) -> None:
    size = pool.Size(num_slots=0, num_spares=0, max_waiting=1)
    workers = pool.Pool(size=size, launch=never, metrics=verifier_metrics, clock=clock.SystemClock())
    rewards = [
        process_config.GraderConfig(name="a", type="says", weight=Decimal(2.0)),
        process_config.GraderConfig(name="b", type="says", suite="maths", weight=Decimal(3.0)),
    ]
    graded = grading.Grading(rewards=rewards, graders=[Says("a"), Says("b")], workers=workers, metrics=verifier_metrics)
    items = [dataclasses.replace(make_item("x"), suite=suite) for suite in ("", "maths", "plain")]
    verdicts = await graded.verify(items)
    assert [(verdict.extracted, verdict.reward, set(verdict.parts)) for verdict in verdicts] == [
        ("a", 2.0, {"a"}),
        ("b", 3.0, {"b"}),
        ("a", 2.0, {"a"}),
    ]


@pytest.mark.covers("workflows 4")
async def test_an_item_of_a_task_is_graded_by_the_reward_for_it_and_by_those_for_any(
    verifier_metrics: metrics.Metrics,
) -> None:
    size = pool.Size(num_slots=0, num_spares=0, max_waiting=1)
    workers = pool.Pool(size=size, launch=never, metrics=verifier_metrics, clock=clock.SystemClock())
    rewards = [
        process_config.GraderConfig(name="maths", type="says", tasks=("math", "stem")),
        process_config.GraderConfig(name="code", type="says", tasks=("code",), weight=Decimal(3.0)),
        process_config.GraderConfig(name="any", type="says", weight=Decimal(0.5)),
    ]
    graders = [Says(reward.name) for reward in rewards]
    graded = grading.Grading(rewards=rewards, graders=graders, workers=workers, metrics=verifier_metrics)

    def item(task: str) -> types.VerifyItem:
        return types.VerifyItem(sample_id=task, attempt=0, prompt="", completion="x", columns={"task": task})

    verdicts = await graded.verify([item("math"), item("stem"), item("code")])
    assert [(verdict.reward, set(verdict.parts)) for verdict in verdicts] == [
        (1.5, {"maths", "any"}),
        (1.5, {"maths", "any"}),
        (3.5, {"code", "any"}),
    ]
    with pytest.raises(errors.GraderError, match="^sample poetry: 'task' must be one of math, stem, code$"):
        await graded.verify([item("poetry")])
