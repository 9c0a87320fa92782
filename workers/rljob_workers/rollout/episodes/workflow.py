"""The newer form of a workflow, `arun_episode(engine, data)`, as a collector. Source: docs/design/workflows.md#s-2.

`data` is the record with input_ids and query_id; `engine` generates and grades; padded arrays come back, or
interactions by id.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from rljob_api import errors, types
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import agent, arrays, protocols, rows, turns
from rljob_workers.runtime import redaction


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The engine as one episode sees it; `gconfig` is the job's sampling."""

    asker: turns.Asker
    client: generation.Generator
    gconfig: types.Sampling
    task: protocols.Task
    grader: protocols.Grader

    async def agenerate(self, input_ids: Sequence[int], *, max_new_tokens: int | None = None) -> turns.Answer:
        """Generate after these ids; the answer has `result` (ids, logprobs, versions) and `text`. Raises EngineError,
        or EpisodeError if no context is left.
        """
        return await self.asker.ask(
            self.client,
            name=self.task.query_id,
            context=tuple(input_ids),
            gconfig=self.gconfig,
            max_new_tokens=max_new_tokens,
        )

    async def agrade(self, answer: turns.Answer) -> float:
        """Return the raw reward that the job's verifiers give. Raises SandboxError without a verdict."""
        return (await turns.graded(answer, self.grader, prompt=self.task.prompt_text)).raw_reward


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """One answer of the engine and what it earned; None counts 0."""

    answer: turns.Answer
    reward: float | None = None


class Workflow(Protocol):
    """What the user's class offers."""

    async def arun_episode(self, engine: Engine, data: Mapping[str, object]) -> Mapping[str, object] | None:
        """Return padded arrays by name, or interactions by id; None or no interaction: rejected."""


class WorkflowCollector:
    """One workflow, made once, as a collector has it."""

    def __init__(self, workflow: Workflow, *, tokens: protocols.Tokens, template: str, max_model_len: int) -> None:
        """`template` decides the stop rules."""
        self._workflow, self._max_model_len = workflow, max_model_len
        self._asker = turns.Asker(tokens=tokens, template=template)

    async def arun_episode(
        self,
        *,
        llm_client: generation.Generator,
        gconfig: types.Sampling,
        task: protocols.Task,
        grader: protocols.Grader,
        seed: int,
    ) -> protocols.Episode | None:
        """Run the workflow and make rows of what it returns. Raises EpisodeError for what is neither form."""
        client = turns.EpisodeClient(inner=llm_client, seed=seed, max_model_len=self._max_model_len)
        engine = Engine(asker=self._asker, client=client, gconfig=gconfig, task=task, grader=grader)
        returned = await self._workflow.arun_episode(engine, agent.reset_options(task))
        if returned is None:
            return None
        if not isinstance(returned, Mapping):
            raise errors.EpisodeError(
                f"the workflow returned {type(returned).__name__}, not arrays by name, interactions by id or None"
            )
        if not returned:
            return None
        by_id = {key: value for key, value in returned.items() if isinstance(value, Interaction)}
        if by_id and len(by_id) < len(returned):
            raise errors.EpisodeError("the workflow returned interactions and other values: return one form")
        rows = rows_of(by_id) if by_id else arrays.rows_of(returned)
        return protocols.Episode(rows=rows, total_reward=sum(row.reward for row in rows), num_turns=client.num_calls)


def rows_of(by_id: Mapping[str, Interaction]) -> tuple[types.Trajectory, ...]:
    """Return a row for each interaction, in the mapping's order, with its own reward. Raises EpisodeError for a reward
    that is not finite and for an answer that is under two ids: its tokens would be trained twice.
    """
    rewarded: set[int] = set()
    trajectories: list[types.Trajectory] = []
    # Their ids are the user's, and may be texts: errors tell them by their numbers.
    for turn, interaction in enumerate(by_id.values()):
        answer, reward = interaction.answer, 0.0 if interaction.reward is None else interaction.reward
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise errors.EpisodeError(
                f"the reward of interaction {turn + 1} is {redaction.brief(reward)}, but must be a finite number"
            )
        if id(answer) in rewarded:
            raise errors.EpisodeError(f"interaction {turn + 1} has the answer of another one")
        rewarded.add(id(answer))
        row = rows.RowBuilder.begin(answer.request.input_ids)
        row.sample(answer.result, turn=turn)
        verdict = agent.verdict_of(reward, grader="workflow")
        trajectories.append(
            row.finished(last=answer.result, reward=float(reward), raw_reward=float(reward), verdict=verdict)
        )
    return tuple(trajectories)
