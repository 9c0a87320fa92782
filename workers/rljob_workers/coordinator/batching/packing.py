"""From rows with advantages to each rank's micro-batches. Pure and deterministic; no padding.

Rows are permuted by hash(seed, step, epoch) and cut into minibatches whose row counts differ by at most 1; with one
minibatch nothing is cut, so groups stay whole. Inside a minibatch the rows of a group form a tree (`blocks.py`),
which is one block or several; blocks go to the rank with the fewest tokens, largest first, and are halved where a
rank would have much more than its part. On each rank blocks that begin alike are one tree, also of several groups,
and what that is divided into fills micro-batches first-fit-decreasing.

Rows that add nothing to a loss numerator (masked, or all advantages exactly 0) are left out of the micro-batches and
stay in the denominators, which count all rows on all ranks before any of this. Terms and statistics over all sampled
tokens keep the one or the other. Where rows without advantage are left out, one for every 32 of the minibatch stays
in the first epoch: it stands for the others in what is said of all rows, such as entropy. A group that the policy
always or never solves is another kind of group than those that are trained, so a mean over the latter is none of the
batch.
"""

import dataclasses
import heapq
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from rljob_api import enums, types
from rljob_workers.coordinator.batching import blocks
from rljob_workers.coordinator.policy import prompts

Block = blocks.Block
# A rank may have this much less than the fullest: part of the mean over the maximum. Ranks wait for the fullest.
_EVEN = 0.95
_MOST_CUTS_PER_RANK = 8
ROWS_PER_OBSERVED = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A step's batch: micro-batches by rank, updates ascending, and the denominators of each update over all ranks.

    unique_tokens: of the trees, before any of them was divided; row_tokens: of the rows in them, each on its own. Both
    over all updates; the micro-batches hold at least the former.
    """

    micro_batches: tuple[tuple[types.MicroBatch, ...], ...]
    minibatches: tuple[types.Minibatch, ...]
    unique_tokens: int
    row_tokens: int

    @property
    def computed_tokens(self) -> int:
        """Return the tokens of all micro-batches."""
        return sum(len(batch.tokens) for rank in self.micro_batches for batch in rank)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a step is cut. `max_tokens` is the budget of a micro-batch; rows without advantage are kept on demand, or a
    few of them for statistics (`observes_skipped`). oldest_step: tokens of smaller steps leave the loss, and rows of
    nothing else are like rows without advantage.
    """

    seed: int
    minibatches: int
    epochs: int
    world_size: int
    max_tokens: int
    keep_zero_advantage: bool = False
    keep_masked: bool = False
    observes_skipped: bool = False
    oldest_step: int = 0


def pack(samples: Sequence[types.TrainSample], *, step: int, shape: Shape) -> Packed:
    by_rank: list[list[types.MicroBatch]] = [[] for _ in range(shape.world_size)]
    denominators: list[types.Minibatch] = []
    unique_tokens = row_tokens = 0
    for epoch in range(shape.epochs):
        for rows in cut(samples, key=(shape.seed, step, epoch), parts=shape.minibatches):
            update = len(denominators)
            denominators.append(
                types.Minibatch(num_tokens=sum(len(row.advantages) for row in rows), num_rows=len(rows))
            )
            trees = blocks.trees(computed(rows, shape=shape, observes=epoch == 0))
            unique_tokens += _load(blocks.merged(trees))
            row_tokens += sum(len(row.tokens) for tree in trees for row in tree.rows)
            for rank, shares in enumerate(distribute(trees, shape=shape)):
                by_rank[rank] += [lay_out(share, update=update, oldest_step=shape.oldest_step) for share in shares]
    return Packed(
        micro_batches=tuple(map(tuple, by_rank)),
        minibatches=tuple(denominators),
        unique_tokens=unique_tokens,
        row_tokens=row_tokens,
    )


def cut(
    samples: Sequence[types.TrainSample], *, key: tuple[int, int, int], parts: int
) -> list[list[types.TrainSample]]:
    """Return the rows permuted by hash(*key) in `parts` parts whose sizes differ by at most 1."""
    permuted = sorted(samples, key=lambda row: (prompts.derive("rows", *key, row.row), row.row))
    sizes = [len(permuted) // parts + (part < len(permuted) % parts) for part in range(parts)]
    ends = itertools.accumulate(sizes)
    return [permuted[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def is_active(row: types.TrainSample, *, shape: Shape) -> bool:
    """Return whether the row adds anything to a loss numerator, or to statistics that its trainer takes."""
    if row.masked:
        return shape.keep_masked
    if shape.keep_zero_advantage:
        return True
    young = blocks.ints(row.version_steps) >= shape.oldest_step
    return bool(blocks.floats(row.advantages)[young].any())


def observed(rows: Sequence[types.TrainSample], *, shape: Shape) -> list[types.TrainSample]:
    """Return those of a minibatch's rows without advantage that are computed for statistics alone: its first ones."""
    if not shape.observes_skipped or shape.keep_zero_advantage or shape.keep_masked:
        return []
    skipped = (row for row in rows if not row.masked and not is_active(row, shape=shape))
    return list(itertools.islice(skipped, -(-len(rows) // ROWS_PER_OBSERVED)))


def computed(rows: Sequence[types.TrainSample], *, shape: Shape, observes: bool = False) -> list[types.TrainSample]:
    """Return the rows that are computed; with rows to be observed if it `observes`."""
    observed_rows = {row.row for row in observed(rows, shape=shape)} if observes else set()
    return [row for row in rows if row.row in observed_rows or is_active(row, shape=shape)]


def distribute(trees: Sequence[Block], *, shape: Shape) -> list[list[list[Block]]]:
    """Return, for each rank, its micro-batches as lists of blocks."""
    most = shape.max_tokens
    return [
        _fill(_divided(blocks.merged(share), most), most) for share in balance(_divided(trees, most), shape.world_size)
    ]


def _divided(trees: Iterable[Block], max_tokens: int) -> list[Block]:
    return [block for tree in trees for block in blocks.split(tree, max_tokens=max_tokens)]


def balance(divided: Sequence[Block], world_size: int) -> list[list[Block]]:
    """Return each rank's blocks. While the fullest rank has more than its part, one of its blocks is halved, and that
    is where it makes the largest load smaller: a halved block costs what it begins with once more, so not every cut
    pays.
    """
    part = _load(divided) / world_size
    best = shares = _assign(divided, world_size)
    current = list(divided)
    for _ in range(_MOST_CUTS_PER_RANK * world_size):
        fullest = max(shares, key=_load)
        if _load(fullest) * _EVEN <= part:
            break
        block = _to_cut(fullest, part) or _to_cut(current, part)
        if block is None:
            break
        current = [other for other in current if other is not block] + list(blocks.halve(block))
        shares = _assign(current, world_size)
        if max(map(_load, shares)) < max(map(_load, best)):
            best = shares
    return best


def _load(share: Iterable[Block]) -> int:
    return sum(block.num_tokens for block in share)


def _to_cut(among: Sequence[Block], part: float) -> Block | None:
    """Return the largest block if it alone is more than a rank's part, else the smallest: what is over is little."""
    divisible = _largest_first([block for block in among if len(block.rows) > 1])
    if not divisible:
        return None
    return divisible[0] if divisible[0].num_tokens > part else divisible[-1]


def _largest_first(among: Sequence[Block]) -> list[Block]:
    return sorted(among, key=lambda block: (-block.num_tokens, block.first_row))


def _assign(among: Sequence[Block], world_size: int) -> list[list[Block]]:
    """Return the blocks by rank, largest first, each to the rank with the fewest tokens so far."""
    shares: list[list[Block]] = [[] for _ in range(world_size)]
    loads = [(0, rank) for rank in range(world_size)]
    for block in _largest_first(among):
        load, rank = loads[0]
        shares[rank].append(block)
        heapq.heapreplace(loads, (load + block.num_tokens, rank))
    return shares


def _fill(among: Sequence[Block], max_tokens: int) -> list[list[Block]]:
    bins: list[list[Block]] = []
    used: list[tuple[int, int]] = []
    for block in _largest_first(among):
        tokens, shown = block.num_tokens, block.picture_bytes
        place = next(
            (
                index
                for index, (before, shown_before) in enumerate(used)
                if before + tokens <= max_tokens and shown_before + shown <= enums.MAX_BATCH_PICTURES_BYTES
            ),
            len(bins),
        )
        if place == len(bins):
            bins.append([])
            used.append((0, 0))
        bins[place].append(block)
        used[place] = used[place][0] + tokens, used[place][1] + shown
    return bins


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """A segment on the path of a row: the row's token `first` is at `start`, and those after it follow."""

    first: int
    start: int
    segment: int

    def place(self, index: int) -> int:
        """Return where a token of the row stands in the stream."""
        return index - self.first + self.start


def _places(indices: blocks.Array, path: Sequence[_Piece]) -> blocks.Array:
    """Return where tokens of a row stand in the stream, given their indices in the row, ascending [n]."""
    bounds = np.searchsorted(indices, [piece.first for piece in path[1:]])
    shifts = np.array([piece.start - piece.first for piece in path], dtype=np.int32)
    counts = np.diff(bounds, prepend=0, append=len(indices))
    return indices + shifts.repeat(counts)


def _sampled_places(sampled: blocks.Array, path: Sequence[_Piece]) -> tuple[blocks.Array, blocks.Array]:
    """Return where sampled tokens of a row stand, and where those before them do."""
    last = path[-1]
    if sampled[0] < last.first:
        return _places(sampled, path), _places(sampled - np.int32(1), path)
    # All behind the last fork, as with one prompt for all rows: a shift, but for what opens the segment.
    targets = sampled + np.int32(last.start - last.first)
    predictors = targets - np.int32(1)
    if sampled[0] == last.first:
        predictors[0] = path[-2].place(last.first - 1)
    return targets, predictors


class _Layout:
    """The arrays of a micro-batch while it is laid out: pieces of rows, copied once when it is whole."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._tokens: list[blocks.Array] = []
        self._positions: list[blocks.Array] = []
        self._targets: list[blocks.Array] = []
        self._predictors: list[blocks.Array] = []
        self._logprobs: list[blocks.Array] = []
        self._counts: list[int] = []
        self._samples: list[types.TrainSample] = []
        self._pictures: list[types.Picture] = []
        self.segments: list[types.Segment] = []

    def add_block(self, block: Block) -> None:
        """Append the tree's segments, depth first, and its rows."""
        path: list[_Piece] = []
        for row, common, cuts in zip(block.rows, block.common, blocks.forks(block), strict=True):
            # A row without tokens of its own may end within a piece.
            while path and path[-1].first >= common:
                path.pop()
            for first, end in itertools.pairwise((common, *cuts, len(row.tokens))):
                if first < end:
                    path.append(self._add_segment(row, first=first, end=end, parent=path[-1].segment if path else -1))
            if not common:
                # All rows of the tree begin with the prompt, and its first row stands on the path that has it.
                self._add_pictures(row, path)
            self._add_row(row, path)

    def _add_pictures(self, row: types.TrainSample, path: Sequence[_Piece]) -> None:
        for picture in row.pictures:
            (start,) = _places(np.array([picture.start], dtype=np.int32), path)
            self._pictures.append(dataclasses.replace(picture, start=int(start)))

    def _add_segment(self, row: types.TrainSample, *, first: int, end: int, parent: int) -> _Piece:
        start = self._num_tokens
        self._tokens.append(blocks.ints(row.tokens)[first:end])
        self._positions.append(np.arange(first, end, dtype=np.int32))
        self._num_tokens += end - first
        self.segments.append(types.Segment(start=start, end=self._num_tokens, parent=parent))
        return _Piece(first=first, start=start, segment=len(self.segments) - 1)

    def _add_row(self, row: types.TrainSample, path: Sequence[_Piece]) -> None:
        """Append the row's sampled tokens, which stand on the path."""
        sampled = np.frombuffer(row.loss_mask, dtype=np.uint8).nonzero()[0].astype(np.int32)
        targets, predictors = _sampled_places(sampled, path)
        self._targets.append(targets)
        self._predictors.append(predictors)
        self._logprobs.append(blocks.floats(row.logprobs)[sampled])
        self._counts.append(len(sampled))
        self._samples.append(row)

    def micro_batch(self, update: int, oldest_step: int) -> types.MicroBatch:
        rows = self._samples
        return types.MicroBatch(
            update=update,
            tokens=blocks.joined(self._tokens, np.int32),
            position_ids=blocks.joined(self._positions, np.int32),
            segments=tuple(self.segments),
            target_index=blocks.joined(self._targets, np.int32),
            predictor_index=blocks.joined(self._predictors, np.int32),
            logprobs=blocks.joined(self._logprobs, np.float32),
            advantages=blocks.joined([blocks.floats(row.advantages) for row in rows], np.float32),
            version_steps=blocks.joined([blocks.ints(row.version_steps) for row in rows], np.int32),
            row_index=blocks.view(np.repeat(np.arange(len(rows), dtype=np.int32), self._counts)),
            rows=tuple(map(_row_header, rows)),
            rewards=blocks.joined([blocks.floats(row.rewards) for row in rows], np.float32),
            turn_ids=blocks.joined([blocks.ints(row.turn_ids) for row in rows], np.int32),
            oldest_step=oldest_step,
            pictures=tuple(self._pictures),
        )


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


def lay_out(share: Sequence[Block], *, update: int, oldest_step: int = 0) -> types.MicroBatch:
    """Return one micro-batch of the blocks, in order."""
    layout = _Layout()
    for block in share:
        layout.add_block(block)
    return layout.micro_batch(update, oldest_step)
