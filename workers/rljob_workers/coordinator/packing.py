"""From rows with advantages to each rank's micro-batches. Pure and deterministic; no padding.

Rows are permuted by hash(seed, step, epoch) and cut into minibatches whose row counts differ by at most 1; with one
minibatch nothing is cut, so groups stay whole. Inside a minibatch rows form blocks (`blocks.py`), blocks go to the rank
with the fewest tokens, largest first, and fill micro-batches first-fit-decreasing. Rows that add nothing to a loss
numerator (masked, or all advantages exactly 0) are left out of the micro-batches and stay in the denominators, which
count all rows on all ranks before any of this. Terms and statistics over all sampled tokens keep the one or the other.
"""

import array
import dataclasses
from collections.abc import Sequence

from rljob_api import types
from rljob_workers.coordinator import blocks as blocks_module
from rljob_workers.coordinator import seeds

Block = blocks_module.Block


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A step's batch: micro-batches by rank, updates ascending, and the denominators of each update over all ranks."""

    micro_batches: tuple[tuple[types.MicroBatch, ...], ...]
    minibatches: tuple[types.Minibatch, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a step is cut. `max_tokens` is the budget of a micro-batch; rows without advantage are kept on demand."""

    seed: int
    minibatches: int
    epochs: int
    world_size: int
    max_tokens: int
    keep_zero_advantage: bool = False
    keep_masked: bool = False


def pack(samples: Sequence[types.TrainSample], *, step: int, shape: Shape) -> Packed:
    """Return the packed batch of `step`."""
    by_rank: list[list[types.MicroBatch]] = [[] for _ in range(shape.world_size)]
    denominators: list[types.Minibatch] = []
    for epoch in range(shape.epochs):
        for rows in cut(samples, key=(shape.seed, step, epoch), parts=shape.minibatches):
            update = len(denominators)
            denominators.append(
                types.Minibatch(num_tokens=sum(len(row.advantages) for row in rows), num_rows=len(rows))
            )
            for rank, shares in enumerate(distribute(rows, shape=shape)):
                by_rank[rank] += [lay_out(share, update=update) for share in shares]
    return Packed(micro_batches=tuple(map(tuple, by_rank)), minibatches=tuple(denominators))


def cut(
    samples: Sequence[types.TrainSample], *, key: tuple[int, int, int], parts: int
) -> list[list[types.TrainSample]]:
    """Return the rows permuted by hash(*key) in `parts` parts whose sizes differ by at most 1."""
    permuted = sorted(samples, key=lambda row: (seeds.derive("rows", *key, row.row), row.row))
    sizes = [len(permuted) // parts + (part < len(permuted) % parts) for part in range(parts)]
    starts = [sum(sizes[:part]) for part in range(parts)]
    return [permuted[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def is_active(row: types.TrainSample, *, shape: Shape) -> bool:
    """Return whether the row adds anything to a loss numerator, or to statistics that its trainer takes."""
    return shape.keep_masked if row.masked else shape.keep_zero_advantage or any(row.advantages)


def distribute(rows: Sequence[types.TrainSample], *, shape: Shape) -> list[list[list[Block]]]:
    """Return, for each rank, its micro-batches as lists of blocks."""
    active = [row for row in rows if is_active(row, shape=shape)]
    blocks = blocks_module.make_blocks(active, max_tokens=shape.max_tokens)
    blocks = _enough_for_all(blocks, shape.world_size)
    return [_fill(share, shape.max_tokens) for share in _balance(blocks, shape.world_size)]


def _enough_for_all(blocks: list[Block], world_size: int) -> list[Block]:
    while len(blocks) < world_size:
        divisible = [block for block in blocks if len(block.rows) > 1]
        if not divisible:
            break
        largest = max(divisible, key=lambda block: (block.num_tokens, -block.first_row))
        blocks = [block for block in blocks if block is not largest] + list(blocks_module.halve(largest))
    return blocks


def _largest_first(blocks: Sequence[Block]) -> list[Block]:
    return sorted(blocks, key=lambda block: (-block.num_tokens, block.first_row))


def _balance(blocks: Sequence[Block], world_size: int) -> list[list[Block]]:
    shares: list[list[Block]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for block in _largest_first(blocks):
        rank = loads.index(min(loads))
        shares[rank].append(block)
        loads[rank] += block.num_tokens
    return shares


def _fill(blocks: Sequence[Block], max_tokens: int) -> list[list[Block]]:
    bins: list[list[Block]] = []
    used: list[int] = []
    for block in _largest_first(blocks):
        place = next((i for i, tokens in enumerate(used) if tokens + block.num_tokens <= max_tokens), len(bins))
        if place == len(bins):
            bins.append([])
            used.append(0)
        bins[place].append(block)
        used[place] += block.num_tokens
    return bins


class _Layout:
    """The arrays of a micro-batch while it is laid out."""

    def __init__(self) -> None:
        self.tokens, self.positions = array.array("i"), array.array("i")
        self.targets, self.predictors = array.array("i"), array.array("i")
        self.logprobs, self.advantages = array.array("f"), array.array("f")
        self.version_steps, self.row_index = array.array("i"), array.array("i")
        self.rewards, self.turn_ids = array.array("f"), array.array("i")
        self.segments: list[types.Segment] = []
        self.rows: list[types.RowHeader] = []

    def add_segment(self, row: types.TrainSample, *, first: int, end: int, parent: int = -1) -> int:
        """Append tokens [first, end) of a row, position ids as in the row, and return the segment's start."""
        start = len(self.tokens)
        self.tokens.frombytes(row.tokens[first:end].tobytes())
        self.positions.extend(range(first, end))
        self.segments.append(types.Segment(start=start, end=len(self.tokens), parent=parent))
        return start

    def add_targets(self, row: types.TrainSample, *, start: int, first: int, opener: int) -> None:
        """Append the row's sampled tokens. Row token `first` stands at `start`; `opener` predicts the one at
        `start`.
        """
        flags = row.loss_mask.tobytes()
        sampled = [index for index in range(first, len(flags)) if flags[index]]
        places = [start + index - first for index in sampled]
        self.targets.extend(places)
        self.predictors.extend(opener if place == start else place - 1 for place in places)
        self.logprobs.extend(row.logprobs[index] for index in sampled)
        self.advantages.frombytes(row.advantages.tobytes())
        self.version_steps.frombytes(row.version_steps.tobytes())
        self.rewards.frombytes(row.rewards.tobytes())
        self.turn_ids.frombytes(row.turn_ids.tobytes())
        self.row_index.extend([len(self.rows)] * len(sampled))
        self.rows.append(_row_header(row))


def _row_header(row: types.TrainSample) -> types.RowHeader:
    return types.RowHeader(
        group_id=row.group_id,
        sample_index=row.sample_index,
        num_tokens=len(row.advantages),
        row=row.row,
        raw_reward=row.raw_reward,
        shaped_reward=row.shaped_reward,
        truncated=row.truncated,
        masked=row.masked,
        group=row.group,
    )


def lay_out(blocks: Sequence[Block], *, update: int) -> types.MicroBatch:
    """Return one micro-batch of the blocks, in order."""
    layout = _Layout()
    for block in blocks:
        if block.prompt_len:
            _lay_out_shared(layout, block)
        else:
            row = block.rows[0]
            start = layout.add_segment(row, first=0, end=len(row.tokens))
            layout.add_targets(row, start=start, first=0, opener=-1)
    return types.MicroBatch(
        update=update,
        tokens=memoryview(layout.tokens),
        position_ids=memoryview(layout.positions),
        segments=tuple(layout.segments),
        target_index=memoryview(layout.targets),
        predictor_index=memoryview(layout.predictors),
        logprobs=memoryview(layout.logprobs),
        advantages=memoryview(layout.advantages),
        version_steps=memoryview(layout.version_steps),
        row_index=memoryview(layout.row_index),
        rows=tuple(layout.rows),
        rewards=memoryview(layout.rewards),
        turn_ids=memoryview(layout.turn_ids),
    )


def _lay_out_shared(layout: _Layout, block: Block) -> None:
    root = len(layout.segments)
    layout.add_segment(block.rows[0], first=0, end=block.prompt_len)
    opener = len(layout.tokens) - 1
    for row in block.rows:
        start = layout.add_segment(row, first=block.prompt_len, end=len(row.tokens), parent=root)
        layout.add_targets(row, start=start, first=block.prompt_len, opener=opener)
