"""From the wire's flat arrays to tensors on this rank's device. Nothing is padded."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from rljob_api import errors, types
from rljob_workers.trainer.model import attention


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """Which sampled tokens of rows are one token of the stream, so that the head computes it once.

    first [M]: of each distinct one its index among all [N]; which [N]: of each one its index among the distinct.
    """

    first: torch.Tensor
    which: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BatchTensors:
    """One micro-batch. tokens, position_ids [1, T] int64; per sampled token of a row [N]; per row [rows].

    targets: token ids; predictors: positions whose output predicts them; row_index: into the rows. A row is whole:
    `row_tokens` is its sum(m). `masked` rows (maskTruncated) give no loss but count in denominators. row_idle: all
    advantages are 0. rewards, turns: what advantages are made of, empty where they come ready. ends [rows]: place of a
    row's last sampled token. repeats: None where no token was sampled in two rows. pictures: as they came.
    """

    update: int
    tokens: torch.Tensor
    position_ids: torch.Tensor
    plan: attention.AttentionPlan
    predictors: torch.Tensor
    targets: torch.Tensor
    behavior: torch.Tensor
    advantages: torch.Tensor
    version_steps: torch.Tensor
    row_index: torch.Tensor
    row_tokens: torch.Tensor
    row_masked: torch.Tensor
    row_truncated: torch.Tensor
    row_group: torch.Tensor
    row_idle: torch.Tensor
    rewards: torch.Tensor
    turns: torch.Tensor
    ends: torch.Tensor
    oldest_step: int
    repeats: Repeats | None
    pictures: Sequence[types.Picture] = ()

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What `policy.Policy.forward` is given, in its order."""
        places = self.predictors, self.targets
        return self.tokens, self.position_ids, self.plan, *places, self.repeats, self.pictures


def to_tensors(batch: types.MicroBatch, device: torch.device) -> BatchTensors:
    """Raises WireError if the arrays or segments of the batch contradict one another."""
    _check(batch)
    tokens = _tensor(batch.tokens, torch.int32).long()
    places = _tensor(batch.target_index, torch.int32).long()
    row_tokens = torch.tensor([row.num_tokens for row in batch.rows], dtype=torch.float32)
    row_index = _tensor(batch.row_index, torch.int32).long()
    version_steps = _tensor(batch.version_steps, torch.int32)
    moving = (_tensor(batch.advantages, torch.float32) != 0) & (version_steps >= batch.oldest_step)
    row_idle = torch.zeros(len(batch.rows)).index_add_(0, row_index, moving.float()) == 0
    return BatchTensors(
        update=batch.update,
        tokens=tokens[None].to(device),
        position_ids=_tensor(batch.position_ids, torch.int32).long()[None].to(device),
        plan=attention.make_plan(batch.segments, device),
        predictors=_tensor(batch.predictor_index, torch.int32).long().to(device),
        targets=tokens[places].to(device),
        behavior=_tensor(batch.logprobs, torch.float32).to(device),
        advantages=_tensor(batch.advantages, torch.float32).to(device),
        version_steps=version_steps.to(device),
        row_index=row_index.to(device),
        row_tokens=row_tokens.to(device),
        row_masked=torch.tensor([row.masked for row in batch.rows], dtype=torch.bool, device=device),
        row_truncated=torch.tensor([row.truncated for row in batch.rows], dtype=torch.bool, device=device),
        row_group=torch.tensor([row.group for row in batch.rows], dtype=torch.int64, device=device),
        row_idle=row_idle.to(device),
        rewards=_tensor(batch.rewards, torch.float32).to(device),
        turns=_tensor(batch.turn_ids, torch.int32).long().to(device),
        ends=places[row_tokens.long().cumsum(0) - 1].to(device),
        oldest_step=batch.oldest_step,
        repeats=_repeats(batch, device),
        pictures=batch.pictures,
    )


def idle_batch(update: int) -> types.MicroBatch:
    """Return the smallest micro-batch that touches every parameter; for ranks that must take part without work."""
    return types.MicroBatch(
        update=update,
        tokens=types.ints([0, 0]),
        position_ids=types.ints([0, 1]),
        segments=[types.Segment(start=0, end=2)],
        target_index=types.ints([1]),
        predictor_index=types.ints([0]),
        logprobs=types.floats([0.0]),
        advantages=types.floats([0.0]),
        version_steps=types.ints([0]),
        row_index=types.ints([0]),
        rows=[
            types.RowHeader(
                group_id=types.GroupId(""), sample_index=0, num_tokens=1, row=0, raw_reward=0.0, shaped_reward=0.0
            )
        ],
    )


def _tensor(view: "memoryview[int] | memoryview[float]", dtype: torch.dtype) -> torch.Tensor:
    # A copy: the views are read-only and torch has no read-only tensors. These arrays are small.
    return torch.frombuffer(bytearray(view), dtype=dtype) if len(view) else torch.empty(0, dtype=dtype)


def _repeats(batch: types.MicroBatch, device: torch.device) -> Repeats | None:
    targets, predictors = (numpy.frombuffer(view, numpy.int32) for view in (batch.target_index, batch.predictor_index))
    distinct, first, which = numpy.unique(targets, return_index=True, return_inverse=True)
    if len(distinct) == len(targets):
        return None
    if not numpy.array_equal(predictors[first][which], predictors):
        raise errors.WireError("one token has two places that predict it")
    return Repeats(torch.from_numpy(first).to(device), torch.from_numpy(which).to(device))


def _check(batch: types.MicroBatch) -> None:
    length, sampled = len(batch.tokens), len(batch.target_index)
    for name in ("predictor_index", "logprobs", "advantages", "version_steps", "row_index"):
        if len(getattr(batch, name)) != sampled:
            raise errors.WireError(f"{name} has {len(getattr(batch, name))} entries for {sampled} sampled tokens")
    for name in ("rewards", "turn_ids"):
        if len(getattr(batch, name)) not in (0, sampled):
            raise errors.WireError(f"{name} has {len(getattr(batch, name))} entries for {sampled} sampled tokens")
    if sum(row.num_tokens for row in batch.rows) != sampled or any(row.num_tokens < 1 for row in batch.rows):
        raise errors.WireError(f"rows have {sum(row.num_tokens for row in batch.rows)} of {sampled} sampled tokens")
    if len(batch.position_ids) != length or not length or not sampled:
        raise errors.WireError(f"{length} tokens, {len(batch.position_ids)} positions and {sampled} sampled tokens")
    _check_segments(batch.segments, length)
    for name, bound in (("target_index", length), ("predictor_index", length), ("row_index", len(batch.rows))):
        values = getattr(batch, name)
        if min(values) < 0 or max(values) >= bound:
            raise errors.WireError(f"{name} leaves [0, {bound})")


def _check_segments(segments: Sequence[types.Segment], length: int) -> None:
    position = 0
    # The segment before and its ancestors, of which one must be the parent: descendants follow without a gap.
    path: list[int] = []
    for index, segment in enumerate(segments):
        if segment.start != position or segment.end <= segment.start:
            raise errors.WireError(f"segment {index} is [{segment.start}, {segment.end}) where {position} was expected")
        while path and path[-1] != segment.parent:
            path.pop()
        if segment.parent >= 0 and not path:
            raise errors.WireError(f"segment {index} does not follow its parent {segment.parent}")
        path.append(index)
        position = segment.end
    if position != length:
        raise errors.WireError(f"segments end at {position} of {length} tokens")
