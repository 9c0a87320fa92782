"""The newer form of a workflow, `arun_episode(engine, data)`, as a collector. Source: workflow reference 2.

`data` is the record with input_ids and query_id; `engine` generates and grades; padded arrays come back.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from rljob_api import errors, types
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import agent_loop, arrays, protocols, turns


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


class Workflow(Protocol):
    """What the user's class offers."""

    async def arun_episode(self, engine: Engine, data: Mapping[str, object]) -> Mapping[str, object] | None:
        """Return padded arrays, or None: rejected."""


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
        """Run the workflow and take its arrays apart. Raises EpisodeError for arrays that are none."""
        client = turns.EpisodeClient(inner=llm_client, seed=seed, max_model_len=self._max_model_len)
        engine = Engine(asker=self._asker, client=client, gconfig=gconfig, task=task, grader=grader)
        returned = await self._workflow.arun_episode(engine, agent_loop.options(task))
        if returned is None:
            return None
        if not isinstance(returned, Mapping):
            raise errors.EpisodeError(f"the workflow returned {type(returned).__name__}, not arrays by name or None")
        rows = arrays.rows_of(returned)
        return protocols.Episode(rows=rows, total_reward=sum(row.reward for row in rows), num_turns=client.num_calls)
