"""Normalisation over all sampled tokens of the step, each of weight 1, on all ranks (algorithms reference, 5.1).

x' = (x - mu) / (sigma + eps),   sigma^2 = sum (x_i - c_i)^2 / (n - ddof),   float64
"""

import math
from collections.abc import Callable, Sequence

import torch

from rljob_api import roles

Reduce = Callable[[Sequence[float]], list[float]]


def normalize(
    parts: Sequence[torch.Tensor],
    counted: Sequence[torch.Tensor],
    config: roles.NormalizeConfig,
    *,
    total: Reduce,
    largest: Reduce,
) -> list[torch.Tensor]:
    """Return `parts` normalised by the statistics of `counted`, float64; levels are batch or none.

    counted: this rank's tokens, each once; parts may repeat them. total, largest: over ranks, collective. Equal values
    give exactly 0 where a mean is subtracted.
    """
    values = torch.cat([part.double() for part in counted]) if counted else torch.zeros(0, dtype=torch.float64)
    top, bottom = (float(values.max()), float(-values.min())) if len(values) else (-math.inf, -math.inf)
    summed, count = total([float(values.sum()), float(len(values))])
    top, bottom = largest([top, bottom])
    flat = config.mean == "batch" and top == -bottom
    sigma = 1.0
    if config.std == "batch":
        centers = _centers(values, config, summed=summed, count=count, own=config.std_center == "own")
        (squares,) = total([float((values - centers).square().sum())])
        degrees = count - int(config.unbiased)
        sigma = (math.sqrt(squares / degrees) if degrees > 0 else 1.0) + config.eps
    return [
        torch.zeros_like(part, dtype=torch.float64)
        if flat
        else (part.double() - _centers(part.double(), config, summed=summed, count=count, own=False)) / sigma
        for part in parts
    ]


def _centers(
    values: torch.Tensor, config: roles.NormalizeConfig, *, summed: float, count: float, own: bool
) -> torch.Tensor:
    """Return c [N]: the mean that is subtracted, 0 if none is; with `own` the plain mean at the level of the std."""
    if config.mean == "none" and not own:
        return torch.zeros_like(values)
    if config.leave_one_out and not own and count > 1:
        return (summed - values) / (count - 1)
    return torch.full_like(values, summed / max(count, 1.0))
