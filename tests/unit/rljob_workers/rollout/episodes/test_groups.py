import asyncio
import dataclasses
from collections.abc import Callable

import pytest

from rljob_api import enums, errors, process_config, types
from rljob_api.manifest.data import DataSourceSpec
from rljob_testing import makers
from rljob_testing import rollout as fakes
from rljob_testing.clock import FakeClock
from rljob_testing.sections import section
from rljob_workers.models import vision
from rljob_workers.rollout import filters, generation, group, request_gate, wait_accounting
from rljob_workers.rollout.engines import fake
from rljob_workers.rollout.episodes import protocols, rlvr
from rljob_workers.rollout.sync import receiver
from rljob_workers.runtime import metrics

JOB = process_config.JobIdentity(name="job", namespace="default", uid="u")
INFRA = makers.make_verdict(None)


class Rig:
    """A group runner on the fake engine."""

    def __init__(self, *, token_s: float = 0.0, max_attempts: int = 3) -> None:
        self.clock = FakeClock()
        self.events: list[str] = []
        self.engine = fake.FakeEngine(clock=self.clock, behavior=fake.Behavior(token_s=token_s), events=self.events)
        self.gate = request_gate.RequestGate(self.engine)
        self.receiver = receiver.WeightReceiver(
            engine=self.engine,
            gate=self.gate,
            stager=fakes.FakeStager(self.events),
            options=receiver.UpdateOptions(
                in_flight=True, recompute=False, pause_deadline_s=10.0, restart_deadline_s=600.0
            ),
            clock=self.clock,
            on_pause=lambda paused: None,
            to_thread=fakes.at_once,
        )
        self.grading = fakes.FakeGrading(self.events)
        self.generator: generation.Generator = self.gate
        self.tokens = fakes.FakeTokens()
        self.slots = wait_accounting.SlotWaits(num_slots=2, clock=self.clock)
        self.max_attempts = max_attempts
        self.collector: protocols.RolloutCollector = rlvr.RlvrCollector(
            tokens=fakes.FakeTokens(), template="raw", max_model_len=64
        )
        self.flow_by_suite: dict[str, group.Flow] = {}
        self.predicate: filters.Predicate | None = None
        self.picture_tokens: vision.PictureTokens | None = None
        self.sources = filters.Sources()

    async def start(self) -> None:
        token = types.SessionToken("s")
        session = types.Session(token=token, head_version=types.VersionId(0), head_step=0, heartbeat_s=1.0)
        await self.receiver.start(session)
        self.updates = asyncio.ensure_future(self.receiver.run())
        self.events.clear()

    def begin(self, lease: types.GroupLease) -> "asyncio.Future[group.ScoredGroup]":
        return asyncio.ensure_future(self.runner().run(lease, self.slots.open_slot()))

    def runner(self) -> group.GroupRunner:
        return group.GroupRunner(
            generator=self.generator,
            flow=group.Flow(tokens=self.tokens, collector=self.collector),
            flow_by_suite=self.flow_by_suite,
            verifiers=self.grading,
            receiver=self.receiver,
            max_attempts=self.max_attempts,
            clock=self.clock,
            metrics=metrics.Metrics(role=enums.Role.ROLLOUT, job=JOB),
            predicate=self.predicate,
            sources=self.sources,
            example_tokens=Taught(),
            picture_tokens=self.picture_tokens,
        )

    async def run(self, lease: types.GroupLease, seconds: float = 60.0) -> types.PromptGroup:
        running = self.begin(lease)
        await self.clock.advance(seconds)
        return (await running).group


class Taught:
    """Makes an example of each record: its prompt, and its answer in ids of characters."""

    def example_ids(self, record: types.PromptRecord, sampling: types.Sampling) -> tuple[list[int], list[int]]:
        if sampling.max_tokens < 1 or "answer" not in record.columns:
            raise errors.DataError("no answer")
        return [ord(c) for c in str(record.columns["prompt"])], [ord(c) for c in str(record.columns["answer"])]


class Failing:
    """Fails the first generations for which `when` holds."""

    def __init__(self, inner: generation.Generator, when: Callable[[int], bool]) -> None:
        self.inner, self.when, self.calls = inner, when, 0

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        self.calls += 1
        if self.when(self.calls):
            raise errors.EngineError("lost")
        return await self.inner.generate(request)


@pytest.mark.covers("workflows 6.1")
async def test_a_group_generates_all_members_then_grades_them_in_one_call() -> None:
    rig = Rig()
    await rig.start()
    group = await rig.run(fakes.make_lease())
    assert rig.events == ["generate salt 0", "generate salt 0", "verify 2"]
    assert [row.sample_index for row in group.trajectories] == [0, 1]
    assert (group.lease_id, group.group_id, group.attempt, group.failures) == ("lease", "group-lease", 1, [])


@pytest.mark.covers("workflows 1.2")
async def test_rows_hold_prompt_ids_then_sampled_ids_with_masks_versions_and_logprobs() -> None:
    rig = Rig()
    await rig.start()
    group = await rig.run(fakes.make_lease())
    row = group.trajectories[0]
    assert list(row.tokens[:3]) == [ord("2"), ord("+"), ord("2")]
    assert list(row.loss_mask) == [0, 0, 0, 1, 1, 1, 1]
    assert list(row.versions) == [-1, -1, -1, 0, 0, 0, 0]
    assert list(row.turn_ids) == [-1, -1, -1, 0, 0, 0, 0]
    assert all(value == 0.0 for value in row.logprobs[:3])
    assert all(value < 0.0 for value in row.logprobs[3:])
    assert (row.truncated, row.stop_reason) == (True, "length")


@pytest.mark.covers("workflows 1.1")
async def test_members_have_their_own_seeds_and_equal_leases_give_equal_rows() -> None:
    rig = Rig()
    await rig.start()
    first, second = await rig.run(fakes.make_lease()), await rig.run(fakes.make_lease())
    tokens = [[list(row.tokens) for row in group.trajectories] for group in (first, second)]
    assert tokens[0] == tokens[1]
    assert tokens[0][0] != tokens[0][1]


@pytest.mark.covers("workflows 3")
async def test_the_verifier_gets_prompt_completion_columns_and_truncation() -> None:
    rig = Rig()
    await rig.start()
    group = await rig.run(fakes.make_lease())
    item = rig.grading.items[0]
    assert (item.prompt, item.columns["answer"], item.truncated) == ("2+2", "4", True)
    assert item.completion == "".join(map(chr, list(group.trajectories[0].tokens)[3:]))
    assert len({item.sample_id for item in rig.grading.items}) == 2


@pytest.mark.covers("workflows 2", "workflows 6.3", "workflows 12")
async def test_a_failed_member_is_tried_again_while_the_other_keeps_its_result() -> None:
    rig = Rig()
    await rig.start()
    rig.generator = Failing(rig.gate, lambda call: call == 2)
    group = await rig.run(fakes.make_lease())
    assert rig.generator.calls == 3
    assert len(group.trajectories) == 2
    # The first member was graded alone: the second had left.
    assert rig.events.count("verify 1") == 2


@pytest.mark.covers("workflows 6.3")
async def test_a_member_out_of_attempts_is_an_infra_failure_and_no_row() -> None:
    rig = Rig(max_attempts=3)
    await rig.start()
    rig.generator = Failing(rig.gate, lambda call: call > 1)
    group = await rig.run(fakes.make_lease())
    assert len(group.trajectories) == 1
    (failure,) = group.failures
    assert (failure.role, failure.reason, failure.infra) == ("rollout", "EngineError", True)


async def test_an_infra_verdict_becomes_a_member_failure_never_a_row() -> None:
    rig = Rig()
    await rig.start()
    rig.grading.answer = lambda item: INFRA if item.sample_id.split(".")[2] == "1" else makers.make_verdict(0.0)
    group = await rig.run(fakes.make_lease())
    assert [row.reward for row in group.trajectories] == [0.0]
    (failure,) = group.failures
    assert (failure.sample_index, failure.role, failure.infra) == (1, "verifier", True)


async def test_a_record_that_no_grader_can_judge_fails_every_member_as_data() -> None:
    rig = Rig()
    await rig.start()
    rig.grading.fault = errors.GraderError("sample has no 'answer'")
    group = await rig.run(fakes.make_lease())
    assert group.trajectories == []
    assert [(failure.reason, failure.infra) for failure in group.failures] == [("GraderError", False)] * 2
    assert rig.events.count("verify 2") == 1


async def test_a_record_without_a_prompt_fails_as_data_without_generation() -> None:
    rig = Rig()
    await rig.start()
    record = types.PromptRecord(prompt_id="p", source="s", columns={"question": "?"})
    group = await rig.run(fakes.make_lease(prompt=record))
    assert rig.events == []
    assert [(failure.reason, failure.infra) for failure in group.failures] == [("DataError", False)] * 2


@pytest.mark.covers("workflows 2")
async def test_what_a_users_workflow_raises_fails_the_attempt_is_logged_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(max_attempts=2)
    await rig.start()
    calls: list[int] = []

    class Raising(rlvr.RlvrCollector):
        async def arun_episode(
            self, *, llm_client: generation.Generator, gconfig: types.Sampling, task: protocols.Task,
            grader: protocols.Grader, seed: int,
        ) -> protocols.Episode | None:  # fmt: skip
            calls.append(seed)
            if len(calls) == 1:
                raise ZeroDivisionError("mine")
            return await super().arun_episode(
                llm_client=llm_client, gconfig=gconfig, task=task, grader=grader, seed=seed
            )

    rig.collector = Raising(tokens=fakes.FakeTokens(), template="raw", max_model_len=64)
    group = await rig.run(fakes.make_lease())
    assert (len(group.trajectories), len(group.failures), len(calls)) == (2, 0, 3)
    assert "the workflow raised ZeroDivisionError at test_groups.py:" in caplog.text
    assert 'raise ZeroDivisionError("mine")' in caplog.text, "the stack shows the line of code"


@pytest.mark.covers("workflows 2")
async def test_a_workflow_that_always_raises_is_a_failure_of_the_data_not_of_the_infrastructure() -> None:
    rig = Rig(max_attempts=2)
    await rig.start()

    class Raising:
        async def arun_episode(
            self, *, llm_client: generation.Generator, gconfig: types.Sampling, task: protocols.Task,
            grader: protocols.Grader, seed: int,
        ) -> protocols.Episode | None:  # fmt: skip
            raise KeyError("answer")

    rig.collector = Raising()
    group = await rig.run(fakes.make_lease())
    assert [(failure.reason, failure.infra) for failure in group.failures] == [("EpisodeError", False)] * 2
    assert "the workflow raised KeyError at test_groups.py:" in group.failures[0].detail


@pytest.mark.covers("workflows 2")
async def test_a_rejected_episode_is_counted_as_rejected() -> None:
    class Rejecting:
        async def arun_episode(
            self,
            *,
            llm_client: generation.Generator,
            gconfig: types.Sampling,
            task: protocols.Task,
            grader: protocols.Grader,
            seed: int,
        ) -> protocols.Episode | None:
            return None

    rig = Rig()
    await rig.start()
    rig.collector = Rejecting()
    group = await rig.run(fakes.make_lease())
    assert [(failure.reason, failure.infra) for failure in group.failures] == [("rejected", False)] * 2


async def test_an_evaluation_row_of_another_version_is_not_accepted() -> None:
    rig = Rig(token_s=1.0, max_attempts=1)
    await rig.start()
    running = rig.begin(fakes.make_lease(pinned_version=types.VersionId(0)))
    await rig.clock.advance(1.5)
    rig.receiver.want(types.VersionId(1))
    await rig.clock.advance(10.0)
    group = (await running).group
    assert group.trajectories == []
    assert "pinned" in group.failures[0].detail


async def test_a_lease_above_the_served_step_waits_for_the_update() -> None:
    rig = Rig()
    await rig.start()
    running = rig.begin(fakes.make_lease(version_floor_step=1))
    await rig.clock.advance(5.0)
    assert rig.events == []
    rig.receiver.want(types.VersionId(1))
    await rig.clock.advance(5.0)
    assert set((await running).group.trajectories[0].versions) == {-1, 1}


async def test_the_prompt_of_a_group_that_waits_for_its_version_is_ready_before() -> None:
    rendered: list[str] = []

    class Tokens(fakes.FakeTokens):
        def prompt_ids(self, record: types.PromptRecord) -> tuple[int, ...]:
            rendered.append(record.prompt_id)
            return super().prompt_ids(record)

    rig = Rig()
    await rig.start()
    rig.tokens = Tokens()
    running = rig.begin(fakes.make_lease(from_version=types.VersionId(1)))
    await rig.clock.advance(1.0)
    assert (rendered, rig.events) == (["p1"], [])
    running.cancel()


async def test_requests_have_the_place_of_their_group_in_the_order_of_batches() -> None:
    class Noting:
        def __init__(self, inner: generation.Generator) -> None:
            self.inner, self.priorities = inner, list[int]()

        async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
            self.priorities.append(request.priority)
            return await self.inner.generate(request)

    rig = Rig()
    await rig.start()
    rig.generator = noting = Noting(rig.generator)
    await rig.run(fakes.make_lease(lease_order=17))
    assert noting.priorities == [17, 17]


@pytest.mark.covers("workflows 2")
async def test_cancelling_a_group_ends_its_generations_and_grades_nothing() -> None:
    rig = Rig(token_s=1.0)
    await rig.start()
    running = rig.begin(fakes.make_lease())
    await rig.clock.advance(1.5)
    assert rig.engine.num_running() == 2
    running.cancel()
    await rig.clock.advance(0.0)
    assert (running.cancelled(), rig.engine.num_running()) == (True, 0)
    assert "verify 2" not in rig.events


async def test_times_cover_generation_and_verification_apart() -> None:
    rig = Rig(token_s=1.0)
    await rig.start()
    rig.grading.gate = lambda: rig.clock.sleep(3.0)
    group = await rig.run(fakes.make_lease(), seconds=7.0)
    assert group.generate_finished_at - group.generate_started_at == 4.0
    assert group.verify_s == 3.0
    assert rig.slots.totals()[enums.WaitReason.VERIFIER] == 3.0 / 2


async def test_a_matched_stop_string_is_cut_from_the_text_and_kept_in_the_ids() -> None:
    class Stopping:
        async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
            ids = tuple(map(ord, "4\n5"))
            return generation.GenerationResult(
                output_ids=ids, logprobs=(-0.1,) * 3, versions=(0,) * 3, stop_reason="stop", matched_stop="\n"
            )

    rig = Rig()
    await rig.start()
    rig.generator = Stopping()
    group = await rig.run(fakes.make_lease(sampling=types.Sampling(stop=("\n",))))
    assert rig.grading.items[0].completion == "4"
    assert list(group.trajectories[0].tokens)[3:] == list(map(ord, "4\n5"))


async def test_a_group_tells_what_of_its_prompts_the_engine_had_before() -> None:
    class Caching:
        async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
            result = await rig.gate.generate(request)
            return dataclasses.replace(result, repeated_tokens=32, cached_tokens=16)

    rig = Rig()
    await rig.start()
    rig.generator = Caching()
    group = await rig.run(fakes.make_lease())
    assert len(group.trajectories) == 2
    assert (group.repeated_tokens, group.cached_tokens) == (64, 32)


@pytest.mark.covers("workflows 11")
async def test_rows_of_an_evaluation_carry_the_texts_that_were_sent_and_sampled() -> None:
    rig = Rig()
    await rig.start()
    evaluated = await rig.run(fakes.make_lease(kind=enums.GroupKind.EVALUATION, pinned_version=types.VersionId(0)))
    trained = await rig.run(fakes.make_lease())
    for row in evaluated.trajectories:
        assert row.prompt_text == "2+2"
        assert row.output_text == fakes.FakeTokens().decode_exact(list(row.tokens)[3:]) != ""
    assert {row.prompt_text + row.output_text for row in trained.trajectories} == {""}


class Shouting(fakes.FakeTokens):
    """A template that puts an exclamation mark before the question."""

    def prompt_ids(self, record: types.PromptRecord) -> tuple[int, ...]:
        return (ord("!"), *super().prompt_ids(record))


@pytest.mark.covers("workflows 11")
@pytest.mark.parametrize(
    ("kind", "prompt", "suite"),
    [(enums.GroupKind.EVALUATION, "!2+2", "train"), (enums.GroupKind.TRAIN, "2+2", "")],
)
async def test_a_suite_with_a_template_of_its_own_is_asked_by_it_and_training_of_the_same_name_is_not(
    kind: enums.GroupKind, prompt: str, suite: str
) -> None:
    rig = Rig()
    await rig.start()
    tokens = Shouting()
    own = rlvr.RlvrCollector(tokens=tokens, template="raw", max_model_len=64)
    rig.flow_by_suite = {"train": group.Flow(tokens=tokens, collector=own)}
    lease = dataclasses.replace(fakes.make_lease(), kind=kind)
    assert lease.prompt.source == "train"
    await rig.run(lease)
    assert [(item.prompt, item.suite) for item in rig.grading.items] == [(prompt, suite)] * 2


@pytest.mark.covers("workflows 6.2")
@pytest.mark.parametrize(("kind", "rejected"), [(enums.GroupKind.TRAIN, True), (enums.GroupKind.EVALUATION, False)])
async def test_the_users_predicate_is_asked_about_groups_of_training_alone(
    kind: enums.GroupKind, rejected: bool
) -> None:
    rig = Rig()
    await rig.start()
    rig.predicate = lambda group: False
    group = await rig.run(dataclasses.replace(fakes.make_lease(), kind=kind))
    assert (len(group.trajectories), group.rejected) == (2, rejected)


@pytest.mark.covers("workflows 6.2")
async def test_a_predicate_that_raises_fails_the_group_as_data_and_hands_in_no_row() -> None:
    rig = Rig()
    await rig.start()
    rig.predicate = lambda group: bool(group["nothing"])
    group = await rig.run(fakes.make_lease())
    assert (list(group.trajectories), group.rejected) == ([], False)
    assert [(failure.sample_index, failure.infra) for failure in group.failures] == [(0, False), (1, False)]
    assert "KeyError" in group.failures[0].detail


@pytest.mark.covers("workflows 9")
async def test_a_row_says_the_characters_of_the_answer_that_was_graded() -> None:
    rig = Rig()
    await rig.start()
    group = await rig.run(fakes.make_lease())
    assert [row.output_chars for row in group.trajectories] == [len(item.completion) for item in rig.grading.items]


def sources(most: int, *, drops: bool) -> filters.Sources:
    invalid = "Drop" if drops else "Fail"
    return filters.Sources([section(DataSourceSpec, name="train", max_prompt_tokens=most, on_invalid_record=invalid)])


@pytest.mark.covers("graders 4.3")
@pytest.mark.parametrize("drops", [True, False])
async def test_a_prompt_that_is_too_long_is_handed_in_as_such_before_anything_is_generated(drops: bool) -> None:
    rig = Rig()
    rig.sources = sources(2, drops=drops)
    await rig.start()
    group = await rig.run(fakes.make_lease())
    assert (rig.events, group.trajectories) == ([], [])
    assert [(failure.sample_index, failure.reason, failure.infra) for failure in group.failures] == [
        (0, "too_long", False), (1, "too_long", False),
    ]  # fmt: skip
    assert "has 3 prompt tokens, but maxPromptTokens of source 'train' is 2" in group.failures[0].detail


async def test_a_prompt_that_just_fits_is_generated() -> None:
    rig = Rig()
    rig.sources = sources(3, drops=True)
    await rig.start()
    assert len((await rig.run(fakes.make_lease())).trajectories) == 2


@pytest.mark.covers("graders 4.3")
async def test_a_record_that_no_grader_can_judge_is_left_out_where_its_source_drops_such() -> None:
    rig = Rig()
    rig.sources = sources(3, drops=True)
    rig.grading.fault = errors.RecordError("sample s, reward 'r': no gold")
    await rig.start()
    group = await rig.run(fakes.make_lease())
    assert [(failure.role, failure.reason) for failure in group.failures] == [("verifier", "invalid_record")] * 2


async def test_records_that_cannot_be_used_are_told_one_by_one_only_at_first(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.sources = sources(2, drops=True)
    await rig.start()
    runner = rig.runner()
    for _ in range(group.NUM_TOLD + 1):
        await runner.run(fakes.make_lease(), rig.slots.open_slot())
    told = [record.getMessage() for record in caplog.records if "cannot use a record" in record.getMessage()]
    assert len(told) == group.NUM_TOLD


async def test_an_example_is_handed_in_without_generating_grading_or_waiting_for_its_version() -> None:
    rig = Rig()
    await rig.start()
    lease = fakes.make_lease(kind=enums.GroupKind.EXAMPLE, group_size=1, from_version=types.VersionId(5))
    group = await rig.run(lease, seconds=0.0)
    assert rig.events == []
    (row,) = group.trajectories
    assert ([chr(token) for token in row.tokens], list(row.loss_mask)) == (["2", "+", "2", "4"], [0, 0, 0, 1])
    assert (row.version_runs(), group.failures) == ([(5, 1)], [])


@pytest.mark.parametrize(
    ("columns", "reason"),
    [({"prompt": "2+2"}, "DataError"), ({"prompt": "2+2", "answer": "four!"}, enums.DropReason.TOO_LONG)],
)
async def test_an_example_that_cannot_be_learned_has_no_row(columns: dict[str, object], reason: str) -> None:
    rig = Rig()
    await rig.start()
    prompt = types.PromptRecord(prompt_id="p", source="train", columns=columns)
    lease = fakes.make_lease(kind=enums.GroupKind.EXAMPLE, group_size=1, prompt=prompt)
    group = await rig.run(lease, seconds=0.0)
    assert (list(group.trajectories), [failure.reason for failure in group.failures]) == ([], [reason])


class Losing:
    """A collector whose first `num_lost` attempts lose their place; then it is one answer."""

    def __init__(self, num_lost: int) -> None:
        self.num_lost, self.num_attempts = num_lost, 0
        self.inner = rlvr.RlvrCollector(tokens=fakes.FakeTokens(), template="raw", max_model_len=64)

    async def arun_episode(self, **arguments: object) -> protocols.Episode | None:
        self.num_attempts += 1
        if self.num_attempts <= self.num_lost:
            raise errors.PlaceError("the place of p1 was lost")
        return await self.inner.arun_episode(**arguments)  # type: ignore[arg-type]  # as it was called


async def test_an_attempt_that_loses_its_place_is_made_again_and_its_end_is_the_environments() -> None:
    rig = Rig(max_attempts=3)
    await rig.start()
    rig.collector = Losing(2)
    group = await rig.run(fakes.make_lease(group_size=1))
    assert (len(group.trajectories), group.failures) == (1, [])
    rig.collector = Losing(3)
    group = await rig.run(fakes.make_lease(group_size=1))
    (failure,) = group.failures
    assert (group.trajectories, failure.role, failure.infra) == ([], enums.Role.ENVIRONMENT, True)


async def test_each_request_has_the_pictures_of_the_prompt_and_the_group_has_them_once() -> None:
    rig = Rig()
    rig.picture_tokens = vision.PictureTokens(token_id=ord("#"), count=2)
    asked: list[generation.GenerationRequest] = []

    class Watched:
        async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
            asked.append(request)
            return await rig.gate.generate(request)

    rig.generator = Watched()
    await rig.start()
    lease = fakes.make_lease()
    prompt = dataclasses.replace(lease.prompt, columns={"prompt": "a##b##?"}, pictures=(b"one", b"two"))
    group = await rig.run(dataclasses.replace(lease, prompt=prompt))
    assert [request.pictures for request in asked] == [(b"one", b"two")] * 2
    assert group.pictures == (types.Picture(start=1, data=b"one"), types.Picture(start=4, data=b"two"))
    pinned = dataclasses.replace(
        lease, prompt=prompt, kind=enums.GroupKind.EVALUATION, pinned_version=types.VersionId(0)
    )
    assert (await rig.run(pinned)).pictures == (), "nothing is trained on them"
