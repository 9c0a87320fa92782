"""multi_turn_math: answer, hear whether it was right, try again; the whole conversation is ONE row.

The context of a turn is the ids of the turn before, what was sampled, EOS where the answer lacks it, and the feedback
ids: text is never decoded and encoded again. Feedback holds one bit. Source: workflow reference 5.1.
"""

import dataclasses
import uuid
from typing import Literal

import pydantic
import pydantic.alias_generators

from rljob_api import errors, names, types
from rljob_workers.rollout import generation, templates
from rljob_workers.rollout.episodes import protocols, turn_rewards

RETRY_TEXT = (
    "Your answer is either wrong or not parsable to the reward function. You may misunderstand the original question."
    " Please carefully read the original question, check the previous errors, and try to answer it again."
)
SUCCESS_TEXT = "Congratulations! You are correct!"


class MultiTurnConfig(pydantic.BaseModel):
    """`workflow.config` of multi_turn_math."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=pydantic.alias_generators.to_camel, populate_by_name=True
    )

    type: Literal["multi_turn_math"] = "multi_turn_math"
    layout: Literal["concat"] = "concat"
    num_turns: int = pydantic.Field(default=5, ge=1, le=64)
    turn_discount: float = pydantic.Field(default=1.0, gt=0, le=1)
    stop_on_success: bool = True
    train_after_success: bool = False
    retry_text: str = pydantic.Field(default=RETRY_TEXT, min_length=1, max_length=4096)
    success_text: str = pydantic.Field(default=SUCCESS_TEXT, min_length=1, max_length=4096)
    max_new_tokens_per_turn: int | None = pydantic.Field(default=None, ge=1)


@dataclasses.dataclass(slots=True)
class Conversation:
    """A row while it grows; all lists [L]."""

    ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    versions: list[int]
    turn_ids: list[int]

    @classmethod
    def begin(cls, prompt: tuple[int, ...]) -> "Conversation":
        """Return the row that holds the prompt alone."""
        made = cls([], [], [], [], [])
        made.insert(prompt)
        return made

    def insert(self, ids: tuple[int, ...]) -> None:
        """Append tokens that the policy did not sample, or does not train."""
        count = len(ids)
        self.ids += ids
        self.loss_mask += [0] * count
        self.logprobs += [0.0] * count
        self.versions += [types.NO_VERSION] * count
        self.turn_ids += [types.NO_TURN] * count

    def sample(self, result: generation.GenerationResult, *, turn: int) -> None:
        """Append the sampled tokens of a turn."""
        count = len(result.output_ids)
        self.ids += result.output_ids
        self.loss_mask += [1] * count
        self.logprobs += result.logprobs
        self.versions += result.versions
        self.turn_ids += [turn] * count


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    result: generation.GenerationResult
    verdict: types.Verdict
    raw_reward: float


class MultiTurnCollector:
    """Holds no state between episodes."""

    def __init__(self, config: MultiTurnConfig, *, tokens: protocols.Tokens, template: str, max_model_len: int) -> None:
        """Render both feedback texts once. Raises ManifestError if the chat template breaks the prefix rule."""
        self._config, self._tokens, self._template = config, tokens, template
        self._max_model_len = max_model_len
        self._retry = tokens.feedback_ids(config.retry_text)
        self._success = tokens.feedback_ids(config.success_text)

    async def arun_episode(
        self,
        *,
        llm_client: generation.Generator,
        gconfig: types.Sampling,
        task: protocols.Task,
        grader: protocols.Grader,
        seed: int,
    ) -> protocols.Episode | None:
        """Generate and grade up to `num_turns` turns; return one row with all of them."""
        row = Conversation.begin(task.input_ids)
        turns: list[_Turn] = []
        out_of_context = False
        for index in range(self._config.num_turns):
            if turns:
                self._answer(row, turns[-1], solved=_solved(turns))
                out_of_context = len(row.ids) >= self._max_model_len
                if out_of_context:
                    break
            turn = await self._turn(row, index, llm_client, gconfig, task, grader, seed)
            self._take(row, turn, index, solved=_solved(turns))
            turns.append(turn)
            if self._config.stop_on_success and _solved(turns):
                break
        return self._episode(row, turns, out_of_context=out_of_context)

    def _answer(self, row: Conversation, last: _Turn, *, solved: bool) -> None:
        eos = self._tokens.eos_ids[0]
        if last.result.output_ids[-1] != eos:
            row.insert((eos,))
        row.insert(self._success if solved else self._retry)

    async def _turn(
        self,
        row: Conversation,
        index: int,
        llm_client: generation.Generator,
        gconfig: types.Sampling,
        task: protocols.Task,
        grader: protocols.Grader,
        seed: int,
    ) -> _Turn:
        request = generation.GenerationRequest(
            rid=f"{task.query_id}-{index}-{uuid.uuid4().hex}",
            input_ids=tuple(row.ids),
            sampling=self._sampling(gconfig, prompt_len=len(row.ids)),
            seed=generation.derived_seed(seed, index),
        )
        result = await llm_client.generate(request)
        verdict = await grader.grade(
            prompt=task.prompt_text,
            completion=generation.completion_text(self._tokens.decode(result.output_ids), result, request.sampling),
            truncated=result.stop_reason == "length",
        )
        if verdict.reason is names.VerdictReason.INFRA_FAILURE or verdict.reward is None:
            raise errors.SandboxError(f"no verdict for turn {index}: {verdict.detail or verdict.reason}")
        return _Turn(result=result, verdict=verdict, raw_reward=verdict.reward)

    def _sampling(self, gconfig: types.Sampling, *, prompt_len: int) -> types.Sampling:
        ruled = templates.with_stop_rules(self._template, gconfig, eos_ids=self._tokens.eos_ids)
        budget = self._config.max_new_tokens_per_turn or ruled.max_tokens
        ruled = dataclasses.replace(ruled, max_tokens=budget)
        return generation.within_context(ruled, prompt_len=prompt_len, max_model_len=self._max_model_len)

    def _take(self, row: Conversation, turn: _Turn, index: int, *, solved: bool) -> None:
        if solved and not self._config.train_after_success:
            row.insert(turn.result.output_ids)
        else:
            row.sample(turn.result, turn=index)

    def _episode(self, row: Conversation, turns: list[_Turn], *, out_of_context: bool) -> protocols.Episode:
        raw = [turn.raw_reward for turn in turns]
        deciding = turn_rewards.deciding_turn(raw)
        reward = turn_rewards.final_reward(raw, discount=self._config.turn_discount)
        last = turns[-1].result
        made = types.Trajectory(
            tokens=types.ints(row.ids),
            loss_mask=types.mask(row.loss_mask),
            logprobs=types.floats(row.logprobs),
            versions=types.ints(row.versions),
            turn_ids=types.ints(row.turn_ids),
            truncated=out_of_context or last.stop_reason == "length",
            reward=reward,
            raw_reward=raw[deciding],
            verdict=turns[deciding].verdict,
            sample_index=0,
            stop_reason=last.stop_reason,
            num_turns=len(turns),
        )
        return protocols.Episode(rows=(made,), total_reward=reward, num_turns=len(turns))


def _solved(turns: list[_Turn]) -> bool:
    return any(turn.raw_reward != 0.0 for turn in turns)
