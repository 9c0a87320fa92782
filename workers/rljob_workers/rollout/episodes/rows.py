"""A row while it grows: prompt, sampled and inserted tokens in order. Ids are only ever appended."""

import dataclasses

from rljob_api import types
from rljob_workers.rollout import generation


@dataclasses.dataclass(slots=True)
class RowBuilder:
    """All lists [L], as types.Trajectory has them."""

    ids: list[int] = dataclasses.field(default_factory=list)
    loss_mask: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    turn_ids: list[int] = dataclasses.field(default_factory=list)

    @classmethod
    def begin(cls, prompt: tuple[int, ...]) -> "RowBuilder":
        """Return the row that holds the prompt alone."""
        builder = cls()
        builder.insert(prompt)
        return builder

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

    def finished(
        self,
        *,
        last: generation.GenerationResult,
        reward: float,
        raw_reward: float,
        verdict: types.Verdict,
        num_turns: int = 1,
        out_of_context: bool = False,
        output_chars: int | None = None,
    ) -> types.Trajectory:
        """Return the row, which the last generation, or want of context, may have cut. Raises WireError if it breaks
        a rule of rows.
        """
        return types.Trajectory(
            tokens=types.ints(self.ids),
            loss_mask=types.mask(self.loss_mask),
            logprobs=types.floats(self.logprobs),
            versions=types.ints(self.versions),
            turn_ids=types.ints(self.turn_ids),
            truncated=out_of_context or last.truncated,
            reward=reward,
            raw_reward=raw_reward,
            verdict=verdict,
            sample_index=0,
            stop_reason=last.stop_reason,
            num_turns=num_turns,
            output_chars=output_chars,
        )
