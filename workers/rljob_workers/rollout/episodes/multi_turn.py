"""multi_turn_math, layout concat: answer, hear whether it was right, try again; the whole conversation is ONE row.

The context of a turn is the ids of the turn before, what was sampled, EOS where the answer lacks it, and the feedback
ids: text is never decoded and encoded again. Feedback holds one bit. Source: docs/design/workflows.md#s-5-1.
"""

from collections.abc import Sequence
from typing import Literal

import pydantic
import pydantic.alias_generators

from rljob_api import types
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import protocols, rows, turns

RETRY_TEXT = (
    "Your answer is either wrong or not parsable to the reward function. You may misunderstand the original question."
    " Please carefully read the original question, check the previous errors, and try to answer it again."
)
SUCCESS_TEXT = "Congratulations! You are correct!"


class MultiTurnConfig(pydantic.BaseModel):
    """`workflow.config` of multi_turn_math with layout concat."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=pydantic.alias_generators.to_camel, populate_by_name=True
    )

    layout: Literal["concat"] = "concat"
    num_turns: int = pydantic.Field(default=5, ge=1, le=64)
    turn_discount: float = pydantic.Field(default=1.0, gt=0, le=1)
    stop_on_success: bool = True
    train_after_success: bool = False
    retry_text: str = pydantic.Field(default=RETRY_TEXT, min_length=1, max_length=4096)
    success_text: str = pydantic.Field(default=SUCCESS_TEXT, min_length=1, max_length=4096)
    max_new_tokens_per_turn: int | None = pydantic.Field(default=None, ge=1)


class MultiTurnCollector:
    """Holds no state between episodes."""

    def __init__(self, config: MultiTurnConfig, *, tokens: protocols.Tokens, template: str, max_model_len: int) -> None:
        """Render both feedback texts once. Raises ManifestError if the chat template breaks the prefix rule."""
        self._config, self._asker = config, turns.Asker(tokens=tokens, template=template)
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
        client = turns.EpisodeClient(inner=llm_client, seed=seed, max_model_len=self._max_model_len)
        row = rows.RowBuilder.begin(task.input_ids)
        taken: list[turns.GradedTurn] = []
        out_of_context = False
        for index in range(self._config.num_turns):
            if taken:
                self._reply(row, solved=_solved(taken))
                out_of_context = len(row.ids) >= self._max_model_len
                if out_of_context:
                    break
            answer = await self._asker.ask(
                client,
                name=f"{task.query_id}-{index}",
                context=tuple(row.ids),
                gconfig=gconfig,
                max_new_tokens=self._config.max_new_tokens_per_turn,
            )
            turn = await turns.graded(answer, grader, prompt=task.prompt_text, turn=index)
            self._take(row, answer.result, index, solved=_solved(taken))
            taken.append(turn)
            if self._config.stop_on_success and _solved(taken):
                break
        return self._episode(row, taken, out_of_context=out_of_context)

    def _reply(self, row: rows.RowBuilder, *, solved: bool) -> None:
        row.insert(self._asker.closing_ids(tuple(row.ids)))
        row.insert(self._success if solved else self._retry)

    def _take(self, row: rows.RowBuilder, result: generation.GenerationResult, index: int, *, solved: bool) -> None:
        if solved and not self._config.train_after_success:
            row.insert(result.output_ids)
        else:
            row.sample(result, turn=index)

    def _episode(
        self, row: rows.RowBuilder, taken: Sequence[turns.GradedTurn], *, out_of_context: bool
    ) -> protocols.Episode:
        raw = [turn.raw_reward for turn in taken]
        deciding = turns.deciding_turn(raw)
        reward = turns.final_reward(raw, discount=self._config.turn_discount)
        trajectory = row.finished(
            last=taken[-1].answer.result,
            reward=reward,
            raw_reward=raw[deciding],
            verdict=taken[deciding].verdict,
            num_turns=len(taken),
            out_of_context=out_of_context,
        )
        return protocols.Episode(
            rows=(trajectory,), total_reward=reward, num_turns=len(taken), turns=tuple(turn.record for turn in taken)
        )


def _solved(taken: Sequence[turns.GradedTurn]) -> bool:
    return any(turn.raw_reward != 0.0 for turn in taken)
