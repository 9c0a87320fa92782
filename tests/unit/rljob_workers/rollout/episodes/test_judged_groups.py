"""A group whose rewards come from verifiers and a judge."""

import asyncio
import dataclasses
import json
from collections.abc import Sequence

import pytest
import yaml

from rljob_api import enums, errors, process_config, types
from rljob_api.validation.load import load_manifest
from rljob_testing import examples, makers
from rljob_testing import rollout as fakes
from rljob_testing.clock import FakeClock
from rljob_workers.rollout import grading, group, request_gate, wait_accounting
from rljob_workers.rollout.engines import fake
from rljob_workers.rollout.episodes import rlvr
from rljob_workers.rollout.sync import receiver
from rljob_workers.runtime import metrics

JOB = process_config.JobIdentity(name="job", namespace="default", uid="u")
UNAVAILABLE = dataclasses.replace(makers.make_verdict(None), detail="judge_unavailable: helpful: status 429")
EXAMPLE = examples.EXAMPLES / "addition-judge-cpu.yaml"


def verdict(reward: float, name: str, **changes: object) -> types.Verdict:
    return dataclasses.replace(makers.make_verdict(reward), parts={name: reward}, grader=name, **changes)  # type: ignore[arg-type]  # fields of the type


class Rig:
    """A batch of one group with a verifier and a judge that record when they are asked."""

    def __init__(self, graded_with: dict[str, bool] | None = None) -> None:
        self.clock, self.events = FakeClock(), list[str]()
        self.verifier, self.judge = fakes.FakeGrading(self.events), fakes.FakeGrading(self.events)
        self.slots = wait_accounting.SlotWaits(num_slots=1, clock=self.clock)
        self.times = wait_accounting.GroupTimes(clock=self.clock, slot=self.slots.open_slot())
        judge = grading.Judge(client=self.judge, graded_with={"": True} if graded_with is None else graded_with)
        self.batch = grading.GradingBatch(client=self.verifier, times=self.times, judge=judge)

    async def graded(self, *completions: str, suite: str = "") -> list[types.Verdict]:
        for _ in completions:
            self.batch.join()
        return await asyncio.gather(*(self.batch.verdict(item(text, suite)) for text in completions))


def item(completion: str, suite: str) -> types.VerifyItem:
    return types.VerifyItem(sample_id=completion, attempt=1, prompt="", completion=completion, columns={}, suite=suite)


async def test_rewards_of_verifier_and_judge_are_added() -> None:
    rig = Rig()
    rig.verifier.answer = lambda item: verdict(0.5, "right", extracted="5")
    rig.judge.answer = lambda item: verdict(0.25, "helpful")
    (one, _) = await rig.graded("a", "b")
    assert (one.reward, one.parts, one.grader) == (0.75, {"right": 0.5, "helpful": 0.25}, "right+helpful")
    assert (one.reason, one.extracted) == (enums.VerdictReason.OK, "5")
    assert rig.events == ["verify 2", "verify 2"]


@pytest.mark.parametrize("lost", ["verifier", "judge"])
async def test_where_one_of_them_has_no_verdict_there_is_no_reward(lost: str) -> None:
    rig = Rig()
    (rig.verifier if lost == "verifier" else rig.judge).answer = lambda item: UNAVAILABLE
    (one,) = await rig.graded("a")
    assert (one.reward, one.reason, one.parts) == (None, enums.VerdictReason.INFRA_FAILURE, {})
    assert one.detail == UNAVAILABLE.detail


async def test_a_record_that_the_verifier_refuses_costs_no_judge() -> None:
    rig = Rig()
    rig.verifier.fault = errors.RecordError("no gold")
    with pytest.raises(errors.RecordError):
        await rig.graded("a")
    assert rig.judge.items == []


@pytest.mark.parametrize(
    ("suite", "asked"), [("", ["judge"]), ("both", ["verifier", "judge"]), ("exact", ["verifier"])]
)
async def test_a_suite_goes_to_those_who_grade_it(suite: str, asked: list[str]) -> None:
    rig = Rig({"": False, "both": True})
    await rig.graded("a", suite=suite)
    assert [name for name in ("verifier", "judge") if getattr(rig, name).items] == asked


def test_the_manifest_says_who_grades_what() -> None:
    assert grading.judged_suites(load_manifest(EXAMPLE.read_text(encoding="utf-8")).spec) == {"": False}
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    del document["spec"]["evaluation"]["suites"][0]["rewards"]
    document["spec"]["verifier"]["rewards"].append({"name": "sum", "type": "exact"})
    assert grading.judged_suites(load_manifest(json.dumps(document)).spec) == {"": True, "held-out": True}


async def test_a_slot_waits_for_the_judge_while_that_is_asked() -> None:
    rig = Rig()
    asked = asyncio.Event()

    async def held_back() -> None:
        asked.set()
        await rig.clock.sleep(5.0)

    rig.judge.gate = held_back
    running = asyncio.ensure_future(rig.graded("a"))
    await asked.wait()
    assert rig.slots.waiting()[0] is enums.WaitReason.JUDGE
    await rig.clock.advance(5.0)
    await running
    assert rig.slots.totals()[enums.WaitReason.JUDGE] == 5.0
    assert rig.times.verify_s == 5.0


async def run_group(judged: Sequence[types.Verdict]) -> types.PromptGroup:
    """Return what a group of two becomes on the fake engine, with a verifier that finds all right and a judge."""
    clock, events = FakeClock(), list[str]()
    engine = fake.FakeEngine(clock=clock, behavior=fake.Behavior(token_s=0.0), events=events)
    gate = request_gate.RequestGate(engine)
    weights = receiver.WeightReceiver(
        engine=engine,
        gate=gate,
        stager=fakes.FakeStager(events),
        options=receiver.UpdateOptions(
            in_flight=True, recompute=False, pause_deadline_s=10.0, restart_deadline_s=600.0
        ),
        clock=clock,
        on_pause=lambda paused: None,
        to_thread=fakes.at_once,
    )
    await weights.start(
        types.Session(token=types.SessionToken("s"), head_version=types.VersionId(0), head_step=0, heartbeat_s=1.0)
    )
    verdicts, judge = iter(judged), fakes.FakeGrading(events)
    judge.answer = lambda item: next(verdicts)
    runner = group.GroupRunner(
        generator=gate,
        flow=group.Flow(
            tokens=fakes.FakeTokens(),
            collector=rlvr.RlvrCollector(tokens=fakes.FakeTokens(), template="raw", max_model_len=64),
        ),
        flow_by_suite={},
        verifiers=fakes.FakeGrading(events),
        receiver=weights,
        max_attempts=3,
        clock=clock,
        metrics=metrics.Metrics(role=enums.Role.ROLLOUT, job=JOB),
        judge=grading.Judge(client=judge, graded_with={"": True}),
    )
    slots = wait_accounting.SlotWaits(num_slots=1, clock=clock)
    running = asyncio.ensure_future(runner.run(fakes.make_lease(), slots.open_slot()))
    await clock.advance(60.0)
    return (await running).group


async def test_an_answer_without_a_judgement_leaves_its_group_as_the_judges_failure() -> None:
    made = await run_group([makers.make_verdict(1.0), UNAVAILABLE])
    assert [row.raw_reward for row in made.trajectories] == [2.0]
    (failure,) = made.failures
    assert (failure.role, failure.infra, failure.reason) == ("judge", True, "JudgeError")
    assert "judge_unavailable: helpful: status 429" in failure.detail
