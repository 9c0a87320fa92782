"""Thresholds over tokens of all ranks, exact to the last bit of fp32 and without bringing the tokens together."""

from collections.abc import Callable, Sequence

import torch

# (values of this rank) -> their sums, or maxima, over ranks; collective.
Reduce = Callable[[Sequence[float]], list[float]]
# Bits of the largest finite fp32 number: numbers from 0 on are searched as integers, which order like them.
_LARGEST = 0x7F7FFFFF


def highest(low: Sequence[float], fits: Callable[[Sequence[float]], Sequence[bool]]) -> list[float]:
    """Return, at each place, the largest fp32 number that fits, found by at most 31 halvings.

    low: a number from 0 on that fits, by definition. fits: answers for one number at each place, equally on all ranks;
    what fits does so from `low` up to the number that is looked for.
    """
    lowest, above = [_bits(value) for value in low], [_LARGEST] * len(low)
    while any(at < most for at, most in zip(lowest, above, strict=True)):
        middle = [(at + most + 1) // 2 for at, most in zip(lowest, above, strict=True)]
        for index, fit in enumerate(fits([_number(bits) for bits in middle])):
            if fit:
                lowest[index] = middle[index]
            else:
                above[index] = max(middle[index] - 1, lowest[index])
    return [_number(bits) for bits in lowest]


def _bits(value: float) -> int:
    return int(torch.tensor(value, dtype=torch.float32).view(torch.int32))


def _number(bits: int) -> float:
    return float(torch.tensor(bits, dtype=torch.int32).view(torch.float32))
