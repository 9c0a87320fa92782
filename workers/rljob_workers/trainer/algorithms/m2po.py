"""M2PO (arXiv 2510.01161): tokens with the largest squared log-ratio leave until the second moment is small.

Over all sampled tokens of a minibatch on all ranks: drop the largest s = (logp_behavior - logp_proximal)^2 until the
mean of the rest is below the threshold. Equal squares leave together, so the result does not depend on any order; the
smallest always stay. Deviation from AReaL: it cuts per micro-batch, which depends on the split.
"""

import math
from collections.abc import Callable, Sequence

import torch

Reduce = Callable[[Sequence[float]], list[float]]
# Bits of the largest finite fp32 number: squares are searched as integers, which order like the numbers.
_LARGEST = 0x7F7FFFFF


def squares(behavior: torch.Tensor, proximal: torch.Tensor) -> torch.Tensor:
    """Return (logp_behavior - logp_proximal)^2 [N], fp32; non-finite entries count as 0; the loss reports them."""
    difference = behavior.float() - proximal.float()
    return torch.where(torch.isfinite(difference), difference, torch.zeros_like(difference)).square()


def cuts(parts: Sequence[torch.Tensor], threshold: float, *, total: Reduce, largest: Reduce) -> list[float]:
    """Return, per minibatch, the largest square that is kept. parts: this rank's squares of each minibatch.

    total, largest: over ranks, collective. The mean of the kept ones grows with the cut, so 31 halvings find it.
    """
    squares_ = [part.double() for part in parts]
    smallest = [-value for value in largest([float(-part.min()) if len(part) else -math.inf for part in squares_])]
    low = [_bits(value) if math.isfinite(value) else 0 for value in smallest]
    high = [_LARGEST] * len(squares_)
    while any(at < above for at, above in zip(low, high, strict=True)):
        middle = [(at + above + 1) // 2 for at, above in zip(low, high, strict=True)]
        below = [part[part <= _number(bits)] for part, bits in zip(squares_, middle, strict=True)]
        sums = total([*(float(part.sum()) for part in below), *(float(len(part)) for part in below)])
        for index, bits in enumerate(middle):
            fits = sums[index] < threshold * sums[len(squares_) + index] or sums[len(squares_) + index] == 0
            low[index], high[index] = (bits, high[index]) if fits else (low[index], bits - 1)
            high[index] = max(high[index], low[index])
    return [_number(bits) for bits in low]


def _bits(value: float) -> int:
    return int(torch.tensor(value, dtype=torch.float32).view(torch.int32))


def _number(bits: int) -> float:
    return float(torch.tensor(bits, dtype=torch.int32).view(torch.float32))
