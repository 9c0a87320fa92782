"""math_code_single_step: the answer of one generation, verified by the environment. Source: workflow reference 4."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import pydantic

from rljob_api import errors, names, types
from rljob_workers.rollout import generation, templates
from rljob_workers.rollout.episodes import agent_loop, protocols

SAMPLE_MARK = "@"


class SingleStepConfig(pydantic.BaseModel):
    """`workflow.config` of math_code_single_step: it has no options yet."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    type: Literal["math_code_single_step"] = "math_code_single_step"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The observation."""

    query_id: str
    prompt_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The action."""

    query_id: str
    text: str
    truncated: bool = False


class SingleStepAgent:
    """Answers a question with one generation; remembers nothing."""

    def __init__(self, *, tokens: protocols.Tokens, template: str) -> None:
        """`template` decides the stop rules."""
        self._tokens, self._template = tokens, template

    async def areset(self) -> None:
        """There is nothing to forget."""

    async def aact(self, agent_input: protocols.AgentInput[Question]) -> protocols.AgentOutput[Answer]:
        """Generate once."""
        question = agent_input.obs
        sampling = templates.with_stop_rules(self._template, agent_input.gconfig, eos_ids=self._tokens.eos_ids)
        request = generation.GenerationRequest(
            rid=question.query_id, input_ids=question.prompt_ids, sampling=sampling, seed=0
        )
        result = await agent_input.llm_client.generate(request)
        answer = Answer(
            query_id=question.query_id,
            text=generation.completion_text(self._tokens.decode(result.output_ids), result, sampling),
            truncated=result.stop_reason == "length",
        )
        return protocols.AgentOutput(action=answer, llm_req=request, llm_resp=result)


class MathCodeEnvironment:
    """Verifies one answer by the record's task and ends."""

    def __init__(self, *, grader: protocols.Grader) -> None:
        """`grader` holds the record's gold; it never reaches the agent."""
        self._grader = grader
        self._prompt, self._task = "", "math"

    async def reset(
        self,
        *,
        seed: int | None = None,  # noqa: ARG002  # gymnasium's signature; nothing here is random
        options: Mapping[str, object] | None = None,
    ) -> tuple[Question, Mapping[str, object]]:
        """Return the question. Raises EpisodeError naming a key that is missing."""
        given = options or {}
        for key in ("input_ids", "query_id", "prompt"):
            if key not in given:
                raise errors.EpisodeError(f"the environment's options have no {key!r}")
        # Graders read the text that the ids spell, template and all.
        self._prompt = str(given.get("prompt_text", given["prompt"]))
        self._task = str(given.get("task", "math"))
        ids = given["input_ids"]
        if not isinstance(ids, Sequence) or isinstance(ids, str):
            raise errors.EpisodeError(f"options input_ids is {type(ids).__name__}, not a list of ids")
        return Question(query_id=str(given["query_id"]), prompt_ids=tuple(int(token) for token in ids)), {}

    async def step(self, action: Answer) -> tuple[None, float, bool, bool, Mapping[str, object]]:
        """Return (None, reward, True, False, task, query_id and verdict). Raises SandboxError without a verdict."""
        verdict = await self._grader.grade(prompt=self._prompt, completion=action.text, truncated=action.truncated)
        info = {"task": self._task, "query_id": bare_id(action.query_id), agent_loop.VERDICT: verdict}
        return None, _reward(verdict), True, False, info

    async def aclose(self) -> None:
        """There is nothing to free."""


def bare_id(query_id: str) -> str:
    """Return the id without its sample number: what stands before the first "@"."""
    return query_id.split(SAMPLE_MARK, 1)[0]


def _reward(verdict: types.Verdict) -> float:
    if verdict.reason is names.VerdictReason.INFRA_FAILURE or verdict.reward is None:
        raise errors.SandboxError(f"no verdict: {verdict.detail or verdict.reason}")
    return verdict.reward


def make_collector(
    *, tokens: protocols.Tokens, template: str, max_model_len: int
) -> agent_loop.AgentCollector[Question, Answer]:
    """Return the collector of this workflow."""
    return agent_loop.AgentCollector(
        make_agent=lambda: SingleStepAgent(tokens=tokens, template=template),
        make_environment=lambda grader: MathCodeEnvironment(grader=grader),
        max_model_len=max_model_len,
    )
