"""An agent acts in an environment until the episode ends; its steps become ONE row. Source:
docs/design/workflows.md#s-2 and #s-4.

The steps of an episode join where the context of each begins with the ids of the one before, as an agent that only
appends makes them. A context that was rewritten cannot join, and fails the attempt with that sentence.
"""

import asyncio
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from rljob_api import enums, errors, types
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import protocols, rows, turns
from rljob_workers.runtime import redaction

ObsT = TypeVar("ObsT")
ActionT = TypeVar("ActionT")
SeenT = TypeVar("SeenT", covariant=True)
TakenT = TypeVar("TakenT", contravariant=True)

MAX_STEPS = 256
VERDICT = "verdict"
Observation = str | Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[ActionT]):
    """One decision and what it earned. `verdict` is the environment's, if it asked a grader."""

    taken: protocols.AgentOutput[ActionT]
    reward: float
    truncated: bool
    verdict: types.Verdict | None

    @property
    def raw_reward(self) -> float:
        """Return the verifier's value where the environment asked one, else the environment's own."""
        return self.reward if self.verdict is None or self.verdict.reward is None else self.verdict.reward

    @property
    def record(self) -> protocols.TurnRecord:
        """Return what dumps report on the step; its raw reward is the environment's."""
        verdict = self.verdict or verdict_of(self.reward)
        return turns.record_of(self.taken.llm_req, self.taken.llm_resp, verdict, raw_reward=self.raw_reward)


class AgentCollector(Generic[ObsT, ActionT]):
    """Holds no state between episodes: each has an agent and an environment of its own."""

    def __init__(
        self,
        *,
        make_agent: Callable[[], protocols.Agent[ObsT, ActionT]],
        make_environment: Callable[[protocols.Grader], protocols.Environment[ObsT, ActionT]],
        max_model_len: int,
    ) -> None:
        """`max_model_len` bounds prompt + answer of each call, tokens."""
        self._make_agent, self._make_environment, self._max_model_len = make_agent, make_environment, max_model_len

    async def arun_episode(
        self,
        *,
        llm_client: generation.Generator,
        gconfig: types.Sampling,
        task: protocols.Task,
        grader: protocols.Grader,
        seed: int,
    ) -> protocols.Episode | None:
        """Run to the end, of the context too; the environment is closed whatever happens.

        Raises EpisodeError for a broken contract, and where not even the first answer has room.
        """
        client = turns.EpisodeClient(inner=llm_client, seed=seed, max_model_len=self._max_model_len)
        environment = self._make_environment(grader)
        try:
            steps = await self._steps(self._make_agent(), environment, client, gconfig, task, seed)
        finally:
            await environment.aclose()
        return as_episode(steps)

    async def _steps(
        self,
        agent: protocols.Agent[ObsT, ActionT],
        environment: protocols.Environment[ObsT, ActionT],
        client: turns.EpisodeClient,
        gconfig: types.Sampling,
        task: protocols.Task,
        seed: int,
    ) -> list[Step[ActionT]]:
        await agent.areset()
        obs, _ = await environment.reset(seed=seed, options=reset_options(task))
        steps: list[Step[ActionT]] = []
        while len(steps) < MAX_STEPS:
            try:
                taken = await agent.aact(protocols.AgentInput(obs=obs, llm_client=client, gconfig=gconfig))
            except generation.ContextFullError:
                if not steps:
                    raise
                # Failing instead would take long episodes out of training; the rewards so far are earned.
                steps[-1] = dataclasses.replace(steps[-1], truncated=True)
                return steps
            observation, reward, terminated, truncated, info = await environment.step(taken.action)
            steps.append(_step(taken, reward, truncated, info))
            if terminated or truncated:
                return steps
            if observation is None:
                raise errors.EpisodeError(f"step {len(steps)} did not end the episode but returned no observation")
            obs = observation
        raise errors.EpisodeError(f"the environment did not end within {MAX_STEPS} steps")


def reset_options(task: protocols.Task) -> dict[str, object]:
    """Return what an environment is reset with: the record's columns, input_ids, query_id and prompt_text, which is
    what the ids spell.
    """
    added = {"input_ids": list(task.input_ids), "query_id": task.query_id, "prompt_text": task.prompt_text}
    return {"prompt": task.prompt_text, **task.record.columns, **added}


def _step(
    taken: protocols.AgentOutput[ActionT], reward: float, truncated: bool, info: Mapping[str, object]
) -> Step[ActionT]:
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise errors.EpisodeError(f"the environment's reward is {redaction.brief(reward)}, but must be a finite number")
    verdict = info.get(VERDICT)
    return Step(
        taken=taken,
        reward=float(reward),
        truncated=truncated,
        verdict=verdict if isinstance(verdict, types.Verdict) else None,
    )


def as_episode(steps: list[Step[ActionT]]) -> protocols.Episode:
    """Return the steps as one row whose reward is their sum. Raises EpisodeError if a context was rewritten."""
    row = rows.RowBuilder()
    for index, step in enumerate(steps):
        context = step.taken.llm_req.input_ids
        if context[: len(row.ids)] != tuple(row.ids):
            raise errors.EpisodeError(
                f"the context of step {index} does not begin with the ids of step {index - 1}: append to the ids,"
                " do not render the conversation again"
            )
        row.insert(context[len(row.ids) :])
        row.sample(step.taken.llm_resp, turn=index)
    total = math.fsum(step.reward for step in steps)
    raw = math.fsum(step.raw_reward for step in steps)
    last = steps[-1]
    trajectory = row.finished(
        last=last.taken.llm_resp,
        reward=total,
        raw_reward=raw,
        verdict=last.verdict or verdict_of(total),
        num_turns=len(steps),
        out_of_context=last.truncated,
    )
    return protocols.Episode(
        rows=(trajectory,), total_reward=total, num_turns=len(steps), turns=tuple(step.record for step in steps)
    )


def verdict_of(reward: float, *, grader: str = "environment") -> types.Verdict:
    """Return the verdict of a reward that no verifier gave."""
    right = reward > 0
    return types.Verdict(
        reward=reward,
        reason=enums.VerdictReason.OK if right else enums.VerdictReason.WRONG,
        outcome=enums.VerifyOutcome.PASS if right else enums.VerifyOutcome.FAIL,
        formatted=True,
        grader=grader,
    )


class TextAgent:
    """Remembers the ids of its conversation until it is reset."""

    def __init__(self, *, tokens: protocols.Tokens, template: str) -> None:
        """`template` renders the first observation and decides the stop rules."""
        self._asker = turns.Asker(tokens=tokens, template=template)
        self._context: tuple[int, ...] = ()

    async def areset(self) -> None:
        self._context = ()

    async def aact(self, agent_input: protocols.AgentInput[Observation]) -> protocols.AgentOutput[str]:
        """Generate once; the action is the completion's text. Raises EpisodeError for another observation."""
        context = self._context + self._ids(agent_input.obs)
        answer = await self._asker.ask(
            agent_input.llm_client, name="agent", context=context, gconfig=agent_input.gconfig
        )
        self._context = context + answer.result.output_ids
        return protocols.AgentOutput(action=answer.text, llm_req=answer.request, llm_resp=answer.result)

    def _ids(self, obs: object) -> tuple[int, ...]:
        if isinstance(obs, str):
            return self._turn(obs) if self._context else self._prompt(obs)
        if isinstance(obs, Sequence) and obs and all(type(token) is int for token in obs):
            return tuple(obs)
        raise errors.EpisodeError(
            f"the environment's observation is {type(obs).__name__}, but the built-in agent reads a text or a list of"
            " token ids; set a custom agent in spec.workflow.config.agent"
        )

    def _prompt(self, text: str) -> tuple[int, ...]:
        record = types.PromptRecord(prompt_id="obs", source="agent", columns={"prompt": text})
        return self._asker.tokens.prompt_ids(record)

    def _turn(self, text: str) -> tuple[int, ...]:
        return self._asker.closing_ids(self._context) + self._asker.tokens.feedback_ids(text)


class GymEnv(Protocol[SeenT, TakenT]):
    """What gymnasium.Env offers."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[SeenT, Mapping[str, object]]:
        """Start."""

    def step(self, action: TakenT) -> tuple[SeenT, float, bool, bool, Mapping[str, object]]:
        """Return obs, reward, terminated, truncated, info."""


class GymAdapter(Generic[ObsT, ActionT]):
    """Wraps one environment for one episode; satisfies protocols.Environment."""

    def __init__(self, inner: GymEnv[ObsT, ActionT]) -> None:
        """`inner` is used by one thread at a time."""
        self._inner = inner

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[ObsT, Mapping[str, object]]:
        return await asyncio.to_thread(lambda: self._inner.reset(seed=seed, options=dict(options or {})))

    async def step(self, action: ActionT) -> tuple[ObsT | None, float, bool, bool, Mapping[str, object]]:
        return await asyncio.to_thread(self._inner.step, action)

    async def aclose(self) -> None:
        """Close, if there is something to close."""
        close = getattr(self._inner, "close", None)
        if callable(close):
            await asyncio.to_thread(close)


def as_async(candidate: object) -> protocols.Environment[ObsT, ActionT]:
    environment: protocols.Environment[ObsT, ActionT] = GymAdapter(candidate)  # type: ignore[arg-type]  # checked by forms
    return environment
