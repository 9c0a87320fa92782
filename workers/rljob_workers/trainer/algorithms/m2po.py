"""M2PO (arXiv 2510.01161): tokens with the largest squared log-ratio leave until the second moment is small.

Over all sampled tokens of a minibatch on all ranks: drop the largest s = (logp_behavior - logp_proximal)^2 until the
mean of the rest is below the threshold. Equal squares leave together, so the result does not depend on any order; the
smallest always stay. Deviation from AReaL: it cuts per micro-batch, which depends on the split.
"""

import math
from collections.abc import Sequence

import torch

from rljob_workers.trainer.algorithms import thresholds


def squares(behavior: torch.Tensor, proximal: torch.Tensor) -> torch.Tensor:
    """Return (logp_behavior - logp_proximal)^2 [N], fp32; non-finite entries count as 0; the loss reports them."""
    difference = behavior.float() - proximal.float()
    return torch.where(torch.isfinite(difference), difference, torch.zeros_like(difference)).square()


def cuts(
    parts: Sequence[torch.Tensor], threshold: float, *, total: thresholds.Reduce, largest: thresholds.Reduce
) -> list[float]:
    """Return, per minibatch, the largest square that is kept. parts: this rank's squares of each minibatch.

    total, largest: over ranks, collective. The mean of the kept ones grows with the cut, so that halving finds it.
    """
    squares_ = [part.double() for part in parts]
    smallest = [-value for value in largest([float(-part.min()) if len(part) else -math.inf for part in squares_])]

    def fits(numbers: Sequence[float]) -> list[bool]:
        below = [part[part <= number] for part, number in zip(squares_, numbers, strict=True)]
        sums = total([*(float(part.sum()) for part in below), *(float(len(part)) for part in below)])
        means = zip(sums[: len(below)], sums[len(below) :], strict=True)
        return [whole < threshold * count or count == 0 for whole, count in means]

    return thresholds.highest([value if math.isfinite(value) else 0.0 for value in smallest], fits)
