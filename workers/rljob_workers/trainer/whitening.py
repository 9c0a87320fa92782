"""Normalisation over all sampled tokens of the step, each of weight 1, on all ranks (algorithms reference, 5.1).

x' = (x - mu) / (sigma + eps),   sigma^2 = sum (x_i - c_i)^2 / (n - ddof),   float64

A level is divided into cells: one for the batch, one per group. A group may lie on several ranks.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from rljob_api import roles

Reduce = Callable[[Sequence[float]], list[float]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some tokens: values [N], groups [N] (index of each token's group within the step)."""

    values: torch.Tensor
    groups: torch.Tensor


def normalize(
    parts: Sequence[Part], config: roles.NormalizeConfig, *, counted: int, total: Reduce, largest: Reduce
) -> list[torch.Tensor]:
    """Return the values of `parts` normalised by the statistics of the first `counted` of them, float64.

    The counted parts are this rank's tokens, each once; later ones repeat them. total, largest: over ranks, collective.
    Equal values inside a cell that a mean is subtracted from give exactly 0.
    """
    empty = torch.zeros(0, dtype=torch.float64, device=parts[0].values.device if parts else None)
    values = torch.cat([empty, *(part.values.double() for part in parts[:counted])])
    groups = torch.cat([empty.long(), *(part.groups for part in parts[:counted])])
    (last,) = largest([float(groups.max()) if len(groups) else -1.0])
    cells = {"none": 1, "batch": 1, "group": int(last) + 1}
    mean = _Mean.of(values, _cells(groups, config.mean), cells[config.mean], total=total, largest=largest)
    sigma = values.new_ones(cells[config.std])
    if config.std != "none":
        places = _cells(groups, config.std)
        if config.std_center == "own":
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


def _normalized(part: Part, mean: "_Mean", sigma: torch.Tensor, config: roles.NormalizeConfig) -> torch.Tensor:
    values, places = part.values.double(), _cells(part.groups, config.mean)
    made = (values - mean.subtracted(values, places, config)) / sigma[_cells(part.groups, config.std)]
    flat = mean.flat[places] if config.mean != "none" else torch.zeros_like(values, dtype=torch.bool)
    return torch.where(flat, torch.zeros_like(made), made)


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

    def subtracted(self, values: torch.Tensor, places: torch.Tensor, config: roles.NormalizeConfig) -> torch.Tensor:
        """Return what each value loses [N]: 0 without a mean; leaving one out, the mean of the others."""
        if config.mean == "none":
            return torch.zeros_like(values)
        if not config.leave_one_out:
            return self.values[places]
        others = (self.counts - 1).clamp(min=1)[places]
        return torch.where(self.counts[places] > 1, (self.sums[places] - values) / others, self.values[places])


def _cells(groups: torch.Tensor, level: str) -> torch.Tensor:
    return groups if level == "group" else torch.zeros_like(groups)


def _sums(values: torch.Tensor, places: torch.Tensor, cells: int) -> torch.Tensor:
    return values.new_zeros(cells).index_add_(0, places, values)
