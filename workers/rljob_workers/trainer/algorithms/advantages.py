"""Advantages that the trainer makes: rewards, KL and values through GAE, then normalised over the tokens of the step.

docs/design/algorithms.md#s-5. One home for the order: rewards -> less KL -> GAE -> normalizeAdvantage. With the turn as
unit the KL is taken off afterwards, token by token, and is not carried to earlier ones.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from rljob_api import enums, errors
from rljob_api.manifest.algorithm import Decay, GaeSpec, NormalizeSpec
from rljob_workers.trainer.algorithms.rows import Rows
from rljob_workers.trainer.model import batch_tensors


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Estimated:
    """advantages, returns [N], float64."""

    advantages: torch.Tensor
    returns: torch.Tensor


def over_tokens(
    rewards: torch.Tensor,
    values: torch.Tensor,
    rows: Rows,
    *,
    gamma: float,
    decay: torch.Tensor,
    bootstrap: torch.Tensor,
) -> Estimated:
    """Return advantages with the token as unit. rewards, values [N]; decay (lambda), bootstrap [rows].

    Tokens of a row are together and in order.
    """
    columns = _columns(rows)
    length = int(columns.max()) + 1
    # Rows end in the last column; what is before their first token is never read.
    place = (rows.index, columns)
    padded = rewards.new_zeros((2, len(rows.tokens), length + 1), dtype=torch.float64)
    padded[0][place], padded[1][place] = rewards.double(), values.double()
    padded[1][:, length] = bootstrap.double()
    deltas = padded[0][:, :length] + gamma * padded[1][:, 1:] - padded[1][:, :length]
    sums = _discounted_sums(deltas, gamma * decay.double())[place]
    return Estimated(sums, sums + values.double())


def _discounted_sums(deltas: torch.Tensor, discount: torch.Tensor) -> torch.Tensor:
    """Return A with A_j = delta_j + discount A_{j+1} along the columns of deltas [rows, T]; discount [rows].

    By doubling: where each column holds the sum over its next s, adding discount^s times the column s further on makes
    it 2 s. Log2(T) passes instead of T, and as stable as the recursion, since the discount is at most 1.
    """
    sums, stride = deltas, 1
    while stride < deltas.shape[1]:
        later = discount.pow(stride)[:, None] * sums[:, stride:]
        sums = torch.cat([sums[:, :-stride] + later, sums[:, -stride:]], dim=1)
        stride *= 2
    return sums


def _columns(rows: Rows) -> torch.Tensor:
    """Return the column of each token [N] when rows are aligned at their ends."""
    tokens = rows.tokens.long()
    ends = tokens.cumsum(0)
    return torch.arange(len(rows.index), device=rows.index.device) - ends[rows.index] + int(tokens.max())


def num_turns(turns: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Return how many turns each row holds tokens of [rows]."""
    return torch.bincount(rows.index[_opens(turns, rows)], minlength=len(rows.tokens))


def _opens(turns: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Return which tokens [N] are the first of their turn."""
    opens = torch.ones_like(turns, dtype=torch.bool)
    opens[1:] = (turns[1:] != turns[:-1]) | (rows.index[1:] != rows.index[:-1])
    return opens


def over_turns(
    rewards: torch.Tensor,
    values: torch.Tensor,
    turns: torch.Tensor,
    rows: Rows,
    *,
    gamma: float,
    decay: torch.Tensor,
    bootstrap: torch.Tensor,
) -> Estimated:
    """Return advantages with the turn as unit, copied to its tokens. turns [N]: ids, not decreasing in a row.

    A turn's reward is the sum of its tokens', its value that of its first token; an unused id takes no step.
    """
    opens = _opens(turns, rows)
    unit = opens.long().cumsum(0) - 1
    units = rows.index[opens]
    sums = rewards.new_zeros(len(units), dtype=torch.float64).index_add_(0, unit, rewards.double())
    per_row = torch.bincount(units, minlength=len(rows.tokens))
    estimated = over_tokens(sums, values[opens], Rows(units, per_row), gamma=gamma, decay=decay, bootstrap=bootstrap)
    return Estimated(estimated.advantages[unit], estimated.returns[unit])


def row_decay(config: Decay, lengths: torch.Tensor) -> torch.Tensor:
    """Return lambda per row [rows], float64; lengths [rows]: steps of time of each row."""
    if config.kind == "vapo":
        return vapo(lengths, alpha=config.value)
    if config.kind == "relativePosition":
        return relative_position(lengths, q=config.value)
    return torch.full_like(lengths, config.value, dtype=torch.float64)


def vapo(lengths: torch.Tensor, *, alpha: float) -> torch.Tensor:
    """Return lambda = max(0, 1 - 1 / (alpha L)) per row of L steps (VAPO, arXiv 2504.05118); L = 0 gives 0."""
    steps = lengths.double()
    return torch.where(steps > 0, (1 - 1 / (alpha * steps.clamp(min=1))).clamp(min=0), torch.zeros_like(steps))


def relative_position(lengths: torch.Tensor, *, q: float) -> torch.Tensor:
    """Return lambda = q^(1 / (L - 1)) per row of L steps, so that the first step sees q of the last; L = 1 gives 1."""
    steps = lengths.double()
    powers = torch.pow(torch.full_like(steps, q), 1 / (steps - 1).clamp(min=1))
    return torch.where(steps > 1, powers, (steps == 1).double())


Stat = enums.StepStat


class Ranks(Protocol):
    """Reductions over ranks, collective."""

    def total(self, values: Sequence[float]) -> list[float]:
        """Sum over ranks."""

    def largest(self, values: Sequence[float]) -> list[float]:
        """Maximum over ranks."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Values:
    """The critic on one micro-batch before the step: of the state before each token [N], and after each row [rows]."""

    tokens: torch.Tensor
    ends: torch.Tensor


def estimate(
    tensors: batch_tensors.BatchTensors,
    gae: GaeSpec,
    *,
    penalty: torch.Tensor | None = None,
    values: Values | None = None,
) -> Estimated:
    """Return advantages and returns [N] of one micro-batch, float64. penalty [N]: the KL term of each token's reward.

    Raises WireError if the batch carries no rewards.
    """
    if len(tensors.rewards) != len(tensors.targets):
        raise errors.WireError(f"the batch has no rewards for its {len(tensors.targets)} sampled tokens")
    rows = Rows(tensors.row_index, tensors.row_tokens)
    rewards = tensors.rewards.double()
    states = torch.zeros_like(rewards) if values is None else values.tokens.double()
    ends = torch.zeros_like(tensors.row_tokens, dtype=torch.float64)
    if values is not None and gae.bootstrap_truncated:
        ends = torch.where(tensors.row_truncated, values.ends.double(), ends)
    lost = torch.zeros_like(rewards) if penalty is None else penalty.double()
    if gae.unit == "Turn":
        decay = row_decay(gae.decay, num_turns(tensors.turns, rows))
        estimated = over_turns(rewards, states, tensors.turns, rows, gamma=gae.gamma, decay=decay, bootstrap=ends)
        return dataclasses.replace(estimated, advantages=estimated.advantages - lost)
    decay = row_decay(gae.decay, tensors.row_tokens)
    return over_tokens(rewards - lost, states, rows, gamma=gae.gamma, decay=decay, bootstrap=ends)


def describe(parts: Sequence[batch_tensors.BatchTensors], ranks: Ranks) -> dict[Stat, float]:
    """Return adv/* over the rows of the step, a row's advantage being the mean of its tokens, and how many groups have
    advantages that are all exactly 0. parts: this rank's micro-batches, each row once.
    """
    means = [float(mean) for part in parts for mean in _row_means(part).tolist()]
    group_ids = [int(group) for part in parts for group in part.row_group.tolist()]
    moved = {
        int(group) for part in parts for group in part.row_group[part.row_index[part.advantages != 0].unique()].tolist()
    }
    (last,) = ranks.largest([float(max(group_ids, default=-1))])
    flags = [[0.0] * (int(last) + 1) for _ in range(2)]
    for number, groups in enumerate((group_ids, moved)):
        for group in groups:
            flags[number][group] = 1.0
    top, bottom, *statistics = ranks.largest(
        [max(means, default=-math.inf), max((-mean for mean in means), default=-math.inf), *flags[0], *flags[1]]
    )
    count, total, squares = ranks.total([float(len(means)), math.fsum(means), math.fsum(mean**2 for mean in means)])
    if count == 0:
        return {}
    half = len(statistics) // 2
    return {
        Stat.ADVANTAGE_MEAN: total / count,
        Stat.ADVANTAGE_STD: math.sqrt(max(0.0, squares / count - (total / count) ** 2)),
        Stat.ADVANTAGE_MIN: -bottom,
        Stat.ADVANTAGE_MAX: top,
        Stat.ZERO_ADVANTAGE_GROUPS: float(
            sum(present > other for present, other in zip(statistics[:half], statistics[half:], strict=True))
        ),
    }


def _row_means(part: batch_tensors.BatchTensors) -> torch.Tensor:
    return Rows(part.row_index, part.row_tokens).mean(part.advantages)


Reduce = Callable[[Sequence[float]], list[float]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some tokens: values [N], groups [N] (index of each token's group within the step)."""

    values: torch.Tensor
    groups: torch.Tensor


def normalize(
    parts: Sequence[Part], config: NormalizeSpec, *, counted: int, total: Reduce, largest: Reduce
) -> list[torch.Tensor]:
    """Return the values of `parts` normalised by the statistics of the first `counted` of them, float64.

    The counted parts are this rank's tokens, each once; later ones repeat them. total, largest: over ranks, collective.
    Equal values inside a cell that a mean is subtracted from give exactly 0.
    """
    empty = torch.zeros(0, dtype=torch.float64, device=parts[0].values.device if parts else None)
    values = torch.cat([empty, *(part.values.double() for part in parts[:counted])])
    groups = torch.cat([empty.long(), *(part.groups for part in parts[:counted])])
    (last,) = largest([float(groups.max()) if len(groups) else -1.0])
    cells = {"None": 1, "Batch": 1, "Group": int(last) + 1}
    mean = _Mean.of(values, _cells(groups, config.mean), cells[config.mean], total=total, largest=largest)
    sigma = values.new_ones(cells[config.std])
    if config.std != "None":
        places = _cells(groups, config.std)
        if config.std_center == "Own":
            own = _Mean.of(values, places, cells[config.std], total=total, largest=largest)
            centers = own.values[places]
        else:
            centers = mean.subtracted(values, _cells(groups, config.mean), config)
        squares = _sums((values - centers).square(), places, cells[config.std])
        counts = _sums(torch.ones_like(values), places, cells[config.std])
        reduced = values.new_tensor(total([*squares.tolist(), *counts.tolist()])).view(2, -1)
        degrees = reduced[1] - int(config.unbiased)
        sigma = torch.where(degrees > 0, (reduced[0] / degrees.clamp(min=1)).sqrt(), sigma) + config.eps
    return [_normalized(part, mean, sigma, config) for part in parts]


def _normalized(part: Part, mean: "_Mean", sigma: torch.Tensor, config: NormalizeSpec) -> torch.Tensor:
    values, places = part.values.double(), _cells(part.groups, config.mean)
    normalized = (values - mean.subtracted(values, places, config)) / sigma[_cells(part.groups, config.std)]
    flat = mean.flat[places] if config.mean != "None" else torch.zeros_like(values, dtype=torch.bool)
    return torch.where(flat, torch.zeros_like(normalized), normalized)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Mean:
    """Per cell of a level, over all ranks: sums, counts, and whether all values are equal."""

    sums: torch.Tensor
    counts: torch.Tensor
    flat: torch.Tensor

    @classmethod
    def of(cls, values: torch.Tensor, places: torch.Tensor, cells: int, *, total: Reduce, largest: Reduce) -> "_Mean":
        own = [*_sums(values, places, cells).tolist(), *_sums(torch.ones_like(values), places, cells).tolist()]
        sums, counts = values.new_tensor(total(own)).view(2, -1)
        lowest = values.new_full((cells,), -math.inf)
        tops = lowest.scatter_reduce(0, places, values, reduce="amax")
        bottoms = lowest.scatter_reduce(0, places, -values, reduce="amax")
        top, bottom = values.new_tensor(largest([*tops.tolist(), *bottoms.tolist()])).view(2, -1)
        return cls(sums, counts, top == -bottom)

    @property
    def values(self) -> torch.Tensor:
        return self.sums / self.counts.clamp(min=1)

    def subtracted(self, values: torch.Tensor, places: torch.Tensor, config: NormalizeSpec) -> torch.Tensor:
        """Return what each value loses [N]: 0 without a mean; leaving one out, the mean of the others."""
        if config.mean == "None":
            return torch.zeros_like(values)
        if not config.leave_one_out:
            return self.values[places]
        others = (self.counts - 1).clamp(min=1)[places]
        return torch.where(self.counts[places] > 1, (self.sums[places] - values) / others, self.values[places])


def _cells(groups: torch.Tensor, level: str) -> torch.Tensor:
    return groups if level == "Group" else torch.zeros_like(groups)


def _sums(values: torch.Tensor, places: torch.Tensor, cells: int) -> torch.Tensor:
    return values.new_zeros(cells).index_add_(0, places, values)
