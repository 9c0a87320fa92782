"""multi_turn_math with layout legacy: AReaL's multi-turn agent as published. One row per turn, shaped and
back-propagated rewards, no early stop. Source: docs/design/workflows.md#s-5-2.

Each row lists the whole conversation so far and trains its newest answer alone, so no token is trained twice.
"""

import math
from collections.abc import Sequence
from typing import Literal

import pydantic
import pydantic.alias_generators

from rljob_api import types
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import multi_turn, protocols, rows, turns

RETRY_TEXT = "Unfortunately your answer is wrong. Let's try again."


class LegacyConfig(pydantic.BaseModel):
    """`workflow.config` of multi_turn_math with layout legacy."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=pydantic.alias_generators.to_camel, populate_by_name=True
    )

    layout: Literal["legacy"] = "legacy"
    num_turns: int = pydantic.Field(default=5, ge=1, le=64)
    turn_discount: float = pydantic.Field(default=1.0, allow_inf_nan=False)
    reward_scale: float = pydantic.Field(default=1.0, allow_inf_nan=False)
    reward_bias: float = pydantic.Field(default=0.0, allow_inf_nan=False)
    retry_text: str = pydantic.Field(default=RETRY_TEXT, min_length=1, max_length=4096)
    success_text: str = pydantic.Field(default=multi_turn.SUCCESS_TEXT, min_length=1, max_length=4096)
    legacy_feedback: bool = False
    max_new_tokens_per_turn: int | None = pydantic.Field(default=None, ge=1)


class LegacyCollector:
    """Holds no state between episodes."""

    def __init__(self, config: LegacyConfig, *, tokens: protocols.Tokens, template: str, max_model_len: int) -> None:
        """Render both feedback texts once. Raises ManifestError if the chat template breaks the prefix rule; with
        `legacyFeedback` it is not asked for: a lone user message would be in mid-conversation, as in the original.
        """
        self._config, self._asker = config, turns.Asker(tokens=tokens, template=template)
        self._max_model_len = max_model_len
        rendered = tokens.lone_message_ids if config.legacy_feedback else tokens.feedback_ids
        self._retry, self._success = rendered(config.retry_text), rendered(config.success_text)

    async def arun_episode(
        self,
        *,
        llm_client: generation.Generator,
        gconfig: types.Sampling,
        task: protocols.Task,
        grader: protocols.Grader,
        seed: int,
    ) -> protocols.Episode | None:
        """Generate and grade `num_turns` turns, success or not; return a row for each."""
        client = turns.EpisodeClient(inner=llm_client, seed=seed, max_model_len=self._max_model_len)
        context, out_of_context = task.input_ids, False
        taken: list[turns.GradedTurn] = []
        for index in range(self._config.num_turns):
            if taken:
                context = self._continued(context, taken[-1])
                out_of_context = len(context) >= self._max_model_len
                if out_of_context:
                    break
            answer = await self._asker.ask(
                client,
                name=f"{task.query_id}-{index}",
                context=context,
                gconfig=gconfig,
                max_new_tokens=self._config.max_new_tokens_per_turn,
            )
            taken.append(await turns.graded(answer, grader, prompt=task.prompt_text, turn=index))
        return self._episode(taken, out_of_context=out_of_context)

    def _continued(self, context: tuple[int, ...], last: turns.GradedTurn) -> tuple[int, ...]:
        ids = context + last.answer.result.output_ids
        closing = () if self._config.legacy_feedback else self._asker.closing_ids(ids)
        return ids + closing + (self._success if last.raw_reward > 0 else self._retry)

    def _episode(self, taken: Sequence[turns.GradedTurn], *, out_of_context: bool) -> protocols.Episode:
        config = self._config
        shaped = [turns.signed(turn.raw_reward, bias=config.reward_bias, scale=config.reward_scale) for turn in taken]
        returns = turns.back_propagated(shaped, discount=config.turn_discount)
        rows = tuple(
            _row(turn, index, reward, num_turns=len(taken), out_of_context=out_of_context and index == len(taken) - 1)
            for index, (turn, reward) in enumerate(zip(taken, returns, strict=True))
        )
        return protocols.Episode(
            rows=rows,
            total_reward=math.fsum(returns),
            num_turns=len(taken),
            turns=tuple(turn.record for turn in taken),
        )


def _row(
    turn: turns.GradedTurn, index: int, reward: float, *, num_turns: int, out_of_context: bool
) -> types.Trajectory:
    row = rows.RowBuilder.begin(turn.answer.request.input_ids)
    row.sample(turn.answer.result, turn=index)
    return row.finished(
        last=turn.answer.result,
        reward=reward,
        raw_reward=turn.raw_reward,
        verdict=turn.verdict,
        num_turns=num_turns,
        out_of_context=out_of_context,
    )
