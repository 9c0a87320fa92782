"""math_code_single_step: the answer of one generation, verified by the environment. Source:
docs/design/workflows.md#s-4.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, overload

import pydantic
import pydantic.alias_generators

from rljob_api import errors, types
from rljob_workers.data import record_task
from rljob_workers.rollout.episodes import agent, protocols, turns

SAMPLE_MARK = "@"


class SingleStepConfig(pydantic.BaseModel):
    """`workflow.config` of math_code_single_step. `shaping: signed` repeats AReaL's legacy agent."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=pydantic.alias_generators.to_camel, populate_by_name=True
    )

    shaping: Literal["none", "signed"] = "none"
    reward_scale: float = pydantic.Field(default=1.0, allow_inf_nan=False)
    reward_bias: float = pydantic.Field(default=0.0, allow_inf_nan=False)
    # The group filter reads them: bounds on a group's mean success, inclusive.
    success_rate_lower_bound: float = pydantic.Field(default=0.0, ge=0.0, le=1.0)
    success_rate_upper_bound: float = pydantic.Field(default=1.0, ge=0.0, le=1.0)

    @pydantic.model_validator(mode="after")
    def _only_where_it_acts(self) -> "SingleStepConfig":
        if self.shaping == "none" and (self.reward_scale, self.reward_bias) != (1.0, 0.0):
            raise ValueError("rewardScale and rewardBias belong to shaping: signed")
        bounds = (self.success_rate_lower_bound, self.success_rate_upper_bound)
        if self.shaping == "none" and bounds != (0.0, 1.0):
            raise ValueError("success rate bounds belong to shaping: signed; data.filterGroups has lower and upper")
        if bounds[0] > bounds[1]:
            raise ValueError(f"successRateLowerBound {bounds[0]} is above successRateUpperBound {bounds[1]}")
        return self

    def reward_of(self, success: float) -> float:
        """Return what a success in 0..1 earns."""
        if self.shaping == "none":
            return success
        return turns.signed(success, bias=self.reward_bias, scale=self.reward_scale)


PLAIN = SingleStepConfig()


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
    output_ids: tuple[int, ...] = ()


class SingleStepAgent:
    """Answers a question with one generation; remembers nothing."""

    def __init__(self, *, tokens: protocols.Tokens, template: str) -> None:
        """`template` decides the stop rules."""
        self._asker = turns.Asker(tokens=tokens, template=template)

    async def areset(self) -> None:
        """There is nothing to forget."""

    async def aact(self, agent_input: protocols.AgentInput[Question]) -> protocols.AgentOutput[Answer]:
        question = agent_input.obs
        answer = await self._asker.ask(
            agent_input.llm_client,
            name=question.query_id,
            context=question.prompt_ids,
            gconfig=agent_input.gconfig,
        )
        action = Answer(
            query_id=question.query_id,
            text=answer.text,
            truncated=answer.result.truncated,
            output_ids=answer.result.output_ids,
        )
        return protocols.AgentOutput(action=action, llm_req=answer.request, llm_resp=answer.result)


class MathCodeEnvironment:
    """Verifies one answer by the record's task and ends."""

    def __init__(self, *, grader: protocols.Grader, config: SingleStepConfig = PLAIN) -> None:
        """`grader` holds the record's gold; it never reaches the agent."""
        self._grader, self._config = grader, config
        self._prompt, self._task = "", record_task.assumed({})
        self._prompt_ids: tuple[int, ...] = ()

    async def reset(
        self,
        *,
        seed: int | None = None,  # noqa: ARG002  # gymnasium's signature; nothing here is random
        options: Mapping[str, object] | None = None,
    ) -> tuple[Question, Mapping[str, object]]:
        """Raises EpisodeError naming a key that is missing."""
        settings = options or {}
        for key in ("input_ids", "query_id", "prompt"):
            if key not in settings:
                raise errors.EpisodeError(f"the environment's options have no {key!r}")
        # Graders read the text that the ids spell, template and all.
        self._prompt = str(settings.get("prompt_text", settings["prompt"]))
        self._task = str(record_task.of(settings))
        ids = settings["input_ids"]
        if not isinstance(ids, Sequence) or isinstance(ids, str):
            raise errors.EpisodeError(f"options input_ids is {type(ids).__name__}, not a list of ids")
        self._prompt_ids = tuple(int(token) for token in ids)
        return Question(query_id=str(settings["query_id"]), prompt_ids=self._prompt_ids), {}

    @overload
    async def step(self, action: Answer) -> tuple[None, float, bool, bool, Mapping[str, object]]: ...
    @overload
    async def step(self, action: Sequence[Answer]) -> tuple[None, list[float], bool, bool, Mapping[str, object]]: ...
    async def step(
        self, action: Answer | Sequence[Answer]
    ) -> tuple[None, float | list[float], bool, bool, Mapping[str, object]]:
        """Return (None, reward, True, False, task, query_id and verdict); lists of the latter and of rewards for a list
        of answers, in its order. Raises SandboxError without a verdict.
        """
        if isinstance(action, Answer):
            verdict = await self._graded(action)
            info = {"task": self._task, "query_id": bare_id(action.query_id), agent.VERDICT: verdict}
            return None, self._reward(verdict), True, False, info
        verdicts = [await self._graded(answer) for answer in action]
        ids = [bare_id(answer.query_id) for answer in action]
        info = {"task": self._task, "query_id": ids, agent.VERDICT: verdicts}
        return None, [self._reward(verdict) for verdict in verdicts], True, False, info

    async def _graded(self, answer: Answer) -> types.Verdict:
        return await self._grader.grade(
            prompt=self._prompt,
            completion=answer.text,
            truncated=answer.truncated,
            prompt_ids=self._prompt_ids,
            completion_ids=answer.output_ids,
        )

    def _reward(self, verdict: types.Verdict) -> float:
        return self._config.reward_of(turns.reward_of(verdict))

    async def aclose(self) -> None:
        """There is nothing to free."""


def bare_id(query_id: str) -> str:
    """Return the id without its sample number: what is before the first "@"."""
    return query_id.split(SAMPLE_MARK, 1)[0]


def make_collector(
    config: SingleStepConfig, *, tokens: protocols.Tokens, template: str, max_model_len: int
) -> agent.AgentCollector[Question, Answer]:
    return agent.AgentCollector(
        make_agent=lambda: SingleStepAgent(tokens=tokens, template=template),
        make_environment=lambda grader: MathCodeEnvironment(grader=grader, config=config),
        max_model_len=max_model_len,
    )
