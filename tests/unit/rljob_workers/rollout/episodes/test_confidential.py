"""Nothing that a rollout logs, counts or says of a failure quotes a prompt, an answer or a gold: whatever a user's code
raises or returns, a verifier refuses or an engine does.
"""

import asyncio
import logging
import pathlib
import textwrap
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from rljob_api import enums, errors, process_config, types
from rljob_testing import makers, marked
from rljob_testing import rollout as fakes
from rljob_testing.clock import FakeClock
from rljob_testing.marked import COMPLETION, GOLD, PROMPT
from rljob_workers.rollout import dumps, filters, generation, group, prompts, request_gate, wait_accounting
from rljob_workers.rollout.engines import fake
from rljob_workers.rollout.episodes import protocols, registry, rlvr
from rljob_workers.rollout.sync import receiver
from rljob_workers.runtime import metrics

RECORD = types.PromptRecord(prompt_id="p1", source="train", columns={"prompt": PROMPT, "answer": GOLD})
TEXT, IDS = types.Sampling(max_tokens=64), tuple(map(ord, COMPLETION))

# A file of a user's: classes that fail in every way in which one may, with all that they know in hand.
USERS_CODE = """
    import json


    class Raises:
        def __init__(self, config):
            pass

        async def arun_episode(self, *, llm_client, gconfig, task, grader, seed):
            raise ValueError(f"{task.prompt_text} {task.record.columns} {task.input_ids}")


    class RaisesFromACause(Raises):
        async def arun_episode(self, *, llm_client, gconfig, task, grader, seed):
            try:
                json.loads(task.record.columns["answer"])
                int(task.prompt_text)
            except ValueError as error:
                raise RuntimeError(task.prompt_text) from error


    class RaisesSeveral(Raises):
        async def arun_episode(self, *, llm_client, gconfig, task, grader, seed):
            raise ExceptionGroup(task.prompt_text, [KeyError(task.prompt_text), OSError(2, task.prompt_text)])


    class Array:
        values = {}

        def __init__(self, config):
            pass

        async def arun_episode(self, engine, data):
            answer = await engine.agenerate(data["input_ids"])
            ids = list(data["input_ids"]) + list(answer.result.output_ids)
            sampled = [0] * len(data["input_ids"]) + [1] * len(answer.result.output_ids)
            own = {key: [value(answer.text)] for key, value in self.values.items()}
            return {
                "input_ids": [ids], "loss_mask": [sampled], "logprobs": [[-0.5 * one for one in sampled]],
                "versions": [[one - 1 for one in sampled]], "rewards": [1.0],
            } | own


    class ArrayWithAText(Array):
        values = {"rewards": str}


    class ArrayWithAList(Array):
        values = {"rewards": lambda text: [text]}


    class ArrayOfATextOnly(Array):
        values = {"loss_mask": str}


    class Interactions(Array):
        async def arun_episode(self, engine, data):
            from rljob_workers.rollout.episodes.workflow import Interaction

            answer = await engine.agenerate(data["input_ids"])
            return {answer.text: Interaction(answer=answer, reward=answer.text)}


    class OneAnswerTwice(Interactions):
        async def arun_episode(self, engine, data):
            from rljob_workers.rollout.episodes.workflow import Interaction

            answer = await engine.agenerate(data["input_ids"])
            return {text: Interaction(answer=answer, reward=1.0) for text in (data["prompt"], answer.text)}


    class NoForm(Array):
        async def arun_episode(self, engine, data):
            answer = await engine.agenerate(data["input_ids"])
            return {data["prompt"]: answer.text}


    class Text(Array):
        async def arun_episode(self, engine, data):
            return data["prompt"]


    class Environment:
        reward, info = 0.0, {}

        def __init__(self, config):
            pass

        async def reset(self, *, seed=None, options=None):
            return options["prompt"], {}

        async def step(self, action):
            return action, self.reward or action, True, False, self.info

        async def aclose(self):
            pass


    class EnvironmentThatRaises(Environment):
        async def step(self, action):
            raise LookupError(action)


    class EnvironmentOfAnotherKind(Environment):
        async def reset(self, *, seed=None, options=None):
            return {"asked": options["prompt"]}, {}


    class Agent:
        def __init__(self, config):
            pass

        async def ask(self, data, base_url, http_client, api_key, **more):
            body = {"messages": [{"role": "user", "content": data["prompt"]}], **more}
            headers = {"Authorization": f"Bearer {api_key}"}
            return await http_client.post(f"{base_url}/chat/completions", json=body, headers=headers)

        async def run(self, *, data, base_url, http_client, api_key):
            answer = await self.ask(data, base_url, http_client, api_key)
            return answer.json()["choices"][0]["message"]["content"]


    class AgentThatRewardsAnAnswer(Agent):
        async def run(self, *, data, base_url, http_client, api_key):
            answer = await self.ask(data, base_url, http_client, api_key)
            return {answer.json()["choices"][0]["message"]["content"]: 1.0}


    class AgentThatRaisesItsAnswer(Agent):
        async def run(self, *, data, base_url, http_client, api_key):
            answer = await self.ask(data, base_url, http_client, api_key)
            raise RuntimeError(f"{answer.text} {answer.request.content}")


    class AgentThatIsRefused(Agent):
        async def run(self, *, data, base_url, http_client, api_key):
            text = data["prompt"]
            answer = await self.ask(data, base_url, http_client, api_key, tool_choice=text, tools=text)
            raise RuntimeError(answer.text)
"""
CLASSES = (
    "Raises", "RaisesFromACause", "RaisesSeveral", "ArrayWithAText", "ArrayWithAList", "ArrayOfATextOnly",
    "Interactions", "OneAnswerTwice", "NoForm", "Text", "AgentThatRewardsAnAnswer",
    "Environment", "EnvironmentThatRaises", "EnvironmentOfAnotherKind",
    "Agent", "AgentThatRaisesItsAnswer", "AgentThatIsRefused",
)  # fmt: skip


class Model:
    """Says the same marked answer to everything, as version 0."""

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        return generation.GenerationResult(
            output_ids=IDS, logprobs=(-0.5,) * len(IDS), versions=(0,) * len(IDS), stop_reason="length"
        )


class Rig:
    """A group runner whose neighbours are fakes; two attempts a member."""

    def __init__(self) -> None:
        self.clock, self.model, self.tokens = FakeClock(), Model(), fakes.FakeTokens()
        self.metrics = metrics.Metrics(
            role=enums.Role.ROLLOUT, job=process_config.JobIdentity(name="job", namespace="default", uid="u")
        )
        engine = fake.FakeEngine(clock=self.clock)
        self.receiver = receiver.WeightReceiver(
            engine=engine, gate=request_gate.RequestGate(engine), stager=fakes.FakeStager([]),
            options=receiver.UpdateOptions(
                in_flight=True, recompute=False, pause_deadline_s=10.0, restart_deadline_s=600.0
            ), clock=self.clock,
            on_pause=lambda paused: None, to_thread=fakes.at_once,
        )  # fmt: skip
        self.grading = fakes.FakeGrading([])
        self.collector: protocols.RolloutCollector = rlvr.RlvrCollector(
            tokens=self.tokens, template="raw", max_model_len=1024
        )
        self.predicate: filters.Predicate | None = None

    async def run(self, **changes: object) -> group.ScoredGroup:
        session = types.Session(
            token=types.SessionToken("s"), head_version=types.VersionId(0), head_step=0, heartbeat_s=1.0
        )
        await self.receiver.start(session)
        updates = asyncio.ensure_future(self.receiver.run())
        runner = group.GroupRunner(
            generator=self.model, flow=group.Flow(tokens=self.tokens, collector=self.collector), flow_by_suite={},
            verifiers=self.grading, receiver=self.receiver, max_attempts=2, clock=self.clock, metrics=self.metrics,
            predicate=self.predicate,
        )  # fmt: skip
        slot = wait_accounting.SlotWaits(num_slots=1, clock=self.clock).open_slot()
        running = asyncio.ensure_future(runner.run(lease(**changes), slot))
        while not running.done():
            await self.clock.advance(1.0)
            # An agent's calls go over real sockets.
            await asyncio.to_thread(lambda: None)
        updates.cancel()
        return running.result()


def lease(**changes: object) -> types.GroupLease:
    return fakes.make_lease(prompt=RECORD, sampling=TEXT, **changes)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    close = getattr(made.collector, "close", None)
    if close is not None:
        await close()


@pytest.fixture
def assert_untold(caplog: pytest.LogCaptureFixture, rig: Rig) -> Callable[[group.ScoredGroup], None]:
    """Return what looks for marked texts in all that is reported a group; its rows and a dump's are data."""
    caplog.set_level(logging.DEBUG)

    def look(scored: group.ScoredGroup) -> None:
        marked.assert_untold(marked.lines_of(caplog.records))
        marked.assert_untold(rig.metrics.exposition().decode())
        for failure in scored.group.failures:
            marked.assert_untold(f"{failure}")

    return look


@pytest.mark.parametrize("name", CLASSES)
async def test_what_a_users_class_raises_or_returns_is_not_quoted(
    name: str, rig: Rig, tmp_path: pathlib.Path, assert_untold: Callable[[group.ScoredGroup], None]
) -> None:
    file = tmp_path / f"users_{name.lower()}.py"
    file.write_text(textwrap.dedent(USERS_CODE))
    rig.collector = registry.make_collector(
        workflow=f"{file.stem}:{name}", config={}, tokens=rig.tokens, template="raw", max_model_len=1024, code=str(file)
    )
    scored = await rig.run()
    assert [failure.reason for failure in scored.group.failures] == ["EpisodeError", "EpisodeError"]
    assert_untold(scored)


def raises(group: Mapping[str, object]) -> bool:
    raise AssertionError(f"{group['record']} {group['input_ids']}")


def returns(group: Mapping[str, object]) -> bool:
    return group["record"]["prompt"]  # type: ignore[index, no-any-return]  # wrong on purpose


@pytest.mark.parametrize("predicate", [raises, returns])
async def test_what_a_users_predicate_raises_or_returns_is_not_quoted(
    predicate: filters.Predicate, rig: Rig, assert_untold: Callable[[group.ScoredGroup], None]
) -> None:
    rig.predicate = predicate
    scored = await rig.run()
    assert len(scored.group.failures) == 2
    assert_untold(scored)


@pytest.mark.parametrize(
    "render",
    [
        lambda columns: {"text": columns["prompt"]},
        lambda columns: [*columns["prompt"]],
        lambda columns: str(columns[columns["prompt"]]),
        lambda columns: int(columns["prompt"]),
    ],
)
async def test_what_a_users_template_raises_or_returns_is_not_quoted(
    render: prompts.Render,
    rig: Rig,
    assert_untold: Callable[[group.ScoredGroup], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rig.tokens, "prompt_ids", lambda record: prompts.rendered(render, record))
    scored = await rig.run()
    assert [failure.reason for failure in scored.group.failures] == ["DataError", "DataError"]
    assert_untold(scored)


@pytest.mark.parametrize("kind", [enums.GroupKind.TRAIN, enums.GroupKind.EVALUATION])
async def test_a_group_that_goes_well_is_not_quoted(
    kind: enums.GroupKind, rig: Rig, assert_untold: Callable[[group.ScoredGroup], None]
) -> None:
    scored = await rig.run(kind=kind)
    assert len(scored.group.trajectories) == 2
    assert_untold(scored)


async def test_a_text_for_which_no_verdict_came_is_not_quoted(
    rig: Rig, assert_untold: Callable[[group.ScoredGroup], None]
) -> None:
    rig.grading.answer = lambda item: makers.make_verdict(None)
    scored = await rig.run()
    assert [failure.reason for failure in scored.group.failures] == ["SandboxError", "SandboxError"]
    assert_untold(scored)


async def test_a_dump_that_cannot_be_written_is_told_by_its_path(
    rig: Rig,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    assert_untold: Callable[[group.ScoredGroup], None],
) -> None:
    scored = await rig.run()
    taken = tmp_path / "dumps"
    taken.write_text("a file where the folder should be")
    dumps.Dumper(dumps.Options(folder=str(taken), text=True), rig.tokens).dump(lease(), scored)
    assert "dump number 1 failed" in caplog.text
    assert_untold(scored)


def test_errors_of_an_episode_survive_the_log_with_their_class_and_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """So that what is withheld does not leave the reader without a trace."""
    with pytest.raises(errors.EpisodeError, match=r"raised AssertionError at test_confidential\.py:\d+ in raises"):
        filters.keeps_group(raises, RECORD, makers.make_group().trajectories)
    assert "in raises" in marked.lines_of(caplog.records)
