from collections.abc import Mapping

import pytest

from rljob_api import errors, types
from rljob_testing import episodes
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import agent as agent_loop
from rljob_workers.rollout.episodes import protocols

EOS = episodes.EOS
RECORD = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "hi", "level": 3})
TASK = protocols.Task(record=RECORD, input_ids=(10, 11), prompt_text="hi")


class FakeAgent:
    """Appends the observation's ids to its context; `rewrites` restarts each time."""

    def __init__(self, *, rewrites: bool = False) -> None:
        self.rewrites = rewrites
        self.context: tuple[int, ...] = (99,)

    async def areset(self) -> None:
        self.context = ()

    async def aact(self, agent_input: protocols.AgentInput[tuple[int, ...]]) -> protocols.AgentOutput[tuple[int, ...]]:
        self.context = agent_input.obs if self.rewrites else self.context + agent_input.obs
        request = generation.GenerationRequest(rid="r", input_ids=self.context, sampling=agent_input.gconfig, seed=0)
        result = await agent_input.llm_client.generate(request)
        self.context += result.output_ids
        return protocols.AgentOutput(action=result.output_ids, llm_req=request, llm_resp=result)


class FakeEnvironment:
    """Gives `rewards` step by step and says 20, 21 in between. `events` lists the calls."""

    def __init__(self, *rewards: float, truncates: bool = False, ends: bool = True) -> None:
        self.rewards, self.truncates, self.ends = rewards, truncates, ends
        self.events: list[str] = []
        self.options: Mapping[str, object] = {}

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[tuple[int, ...], Mapping[str, object]]:
        self.events.append("reset")
        self.options = options or {}
        return TASK.input_ids, {}

    async def step(
        self, action: tuple[int, ...]
    ) -> tuple[tuple[int, ...] | None, float, bool, bool, Mapping[str, object]]:
        count = sum(event.startswith("step") for event in self.events)
        self.events.append(f"step {action}")
        last = count == len(self.rewards) - 1
        over = last and not self.truncates and self.ends
        return None if last else (20, 21), self.rewards[count], over, last and self.truncates, {}

    async def aclose(self) -> None:
        self.events.append("close")


async def run(
    model: episodes.FakeModel,
    environment: FakeEnvironment,
    *,
    agent: FakeAgent | None = None,
    max_model_len: int = 64,
) -> types.Trajectory:
    collector = agent_loop.AgentCollector(
        make_agent=lambda: agent or FakeAgent(),
        make_environment=lambda _grader: environment,
        max_model_len=max_model_len,
    )
    episode = await collector.arun_episode(
        llm_client=model,
        gconfig=types.Sampling(max_tokens=8),
        task=TASK,
        grader=episodes.FakeGrader(),
        seed=1,
    )
    assert episode is not None
    return episode.rows[0]


@pytest.mark.covers("workflows 2")
async def test_steps_that_append_make_one_row_whose_reward_is_their_sum() -> None:
    row = await run(episodes.FakeModel((65, EOS), (66, EOS)), FakeEnvironment(0.25, 0.5))
    assert list(row.tokens) == [10, 11, 65, EOS, 20, 21, 66, EOS]
    assert list(row.loss_mask) == [0, 0, 1, 1, 0, 0, 1, 1]
    assert list(row.turn_ids) == [-1, -1, 0, 0, -1, -1, 1, 1]
    assert list(row.versions) == [-1, -1, 0, 0, -1, -1, 1, 1]
    assert (row.reward, row.raw_reward, row.num_turns) == (0.75, 0.75, 2)


@pytest.mark.covers("workflows 2")
async def test_a_rewritten_context_fails_the_attempt_with_the_remedy() -> None:
    with pytest.raises(errors.EpisodeError, match="context of step 1 does not begin with the ids of step 0: append"):
        await run(episodes.FakeModel((65, EOS), (66, EOS)), FakeEnvironment(0.0, 1.0), agent=FakeAgent(rewrites=True))


@pytest.mark.covers("workflows 2")
async def test_the_agent_forgets_before_and_the_environment_is_closed_after_the_episode() -> None:
    environment = FakeEnvironment(1.0)
    await run(episodes.FakeModel((65, EOS)), environment)
    assert environment.events == ["reset", "step (65, 2)", "close"]


@pytest.mark.covers("workflows 2")
async def test_the_environment_is_closed_after_a_failure_too() -> None:
    environment = FakeEnvironment(float("nan"))
    with pytest.raises(errors.EpisodeError, match="reward is nan, but must be a finite number"):
        await run(episodes.FakeModel((65, EOS)), environment)
    assert environment.events[-1] == "close"


@pytest.mark.covers("workflows 2")
async def test_the_environment_gets_the_record_with_ids_and_query_id() -> None:
    environment = FakeEnvironment(1.0)
    await run(episodes.FakeModel((65, EOS)), environment)
    assert environment.options == {
        "prompt": "hi",
        "level": 3,
        "input_ids": [10, 11],
        "query_id": "p",
        "prompt_text": "hi",
    }


async def test_a_truncated_environment_ends_the_episode_truncated() -> None:
    row = await run(episodes.FakeModel((65, EOS)), FakeEnvironment(1.0, truncates=True))
    assert (row.truncated, row.stop_reason) == (True, "stop")


async def test_an_episode_that_neither_ends_nor_goes_on_is_an_error() -> None:
    with pytest.raises(errors.EpisodeError, match="step 1 did not end the episode but returned no observation"):
        await run(episodes.FakeModel((65, EOS)), FakeEnvironment(1.0, ends=False))


async def test_calls_of_an_episode_have_unlike_seeds_and_ids() -> None:
    model = episodes.FakeModel((65, EOS), (66, EOS))
    await run(model, FakeEnvironment(0.0, 1.0))
    assert len({request.seed for request in model.requests}) == 2
    assert len({request.rid for request in model.requests}) == 2


async def test_a_full_context_ends_the_episode_truncated_with_what_was_earned() -> None:
    """Prompt 2, answer 2, reply 2: a context of 6 has no room for the second answer of an episode of three."""
    environment = FakeEnvironment(0.25, 0.5, 1.0)
    row = await run(episodes.FakeModel((65, EOS), (66, EOS)), environment, max_model_len=6)
    assert list(row.tokens) == [10, 11, 65, EOS]
    assert row.truncated
    assert (row.reward, row.num_turns) == (0.25, 1)
    assert environment.events == ["reset", "step (65, 2)", "close"]


async def test_a_prompt_that_leaves_no_room_for_the_first_answer_fails() -> None:
    environment = FakeEnvironment(0.25)
    with pytest.raises(errors.EpisodeError, match="2 tokens leaves no room in a context of 2"):
        await run(episodes.FakeModel((65, EOS)), environment, max_model_len=2)
    assert environment.events[-1] == "close"
