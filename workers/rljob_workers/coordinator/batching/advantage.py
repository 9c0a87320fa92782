"""Advantages from shaped rewards, in float64 on plain lists. One pipeline; the estimators are presets of its settings.

grpo = group mean / group std, drgrpo = group mean, rloo = group mean leaving one out, liteppo = group mean / batch std
around its own mean. With gamma = lambda = 1 and no critic every sampled token of a row gets the row's value.
Lists hold one value per row of the step, rows in group order.
"""

import itertools
import math
from collections.abc import Sequence

from rljob_api.manifest.algorithm import NormalizeSpec


def normalize(config: NormalizeSpec, rewards: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Return (x - mu) / (sigma + eps) per row. `sizes` are the true sizes of the groups, in order.

    A level (group or batch) whose values are all equal, and which the mean is taken over, gives exactly 0; so does a
    single row. std none divides by exactly 1. Raises ValueError unless sizes are positive and sum to the rows.
    """
    if any(size < 1 for size in sizes) or sum(sizes) != len(rewards):
        raise ValueError(f"group sizes {list(sizes)} do not partition {len(rewards)} rows")
    mean_levels = _levels(config.mean, sizes, len(rewards))
    means = _means(config, rewards, mean_levels)
    centers = means if config.std_center == "Subtracted" else [0.0] * len(rewards)
    scales = _scales(config, rewards, centers, _levels(config.std, sizes, len(rewards)))
    flat = _flat_rows(rewards, mean_levels)
    return [0.0 if row in flat else (reward - means[row]) / scales[row] for row, reward in enumerate(rewards)]


def _levels(level: str, sizes: Sequence[int], num_rows: int) -> list[range]:
    if level == "None":
        return []
    if level == "Batch":
        return [range(num_rows)] if num_rows else []
    return [range(end - size, end) for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]


def _flat_rows(rewards: Sequence[float], levels: Sequence[range]) -> set[int]:
    values = ((rows, [rewards[row] for row in rows]) for rows in levels)
    return {row for rows, members in values if max(members) == min(members) for row in rows}


def _means(config: NormalizeSpec, rewards: Sequence[float], levels: Sequence[range]) -> list[float]:
    means = [0.0] * len(rewards)
    for rows in levels:
        total, count = math.fsum(rewards[row] for row in rows), len(rows)
        for row in rows:
            if config.leave_one_out and count > 1:
                means[row] = (total - rewards[row]) / (count - 1)
            else:
                means[row] = total / count
    return means


def _scales(
    config: NormalizeSpec, rewards: Sequence[float], centers: Sequence[float], levels: Sequence[range]
) -> list[float]:
    scales = [1.0] * len(rewards)
    for rows in levels:
        own = math.fsum(rewards[row] for row in rows) / len(rows)
        squares = math.fsum((rewards[row] - (own if config.std_center == "Own" else centers[row])) ** 2 for row in rows)
        degrees = len(rows) - int(config.unbiased)
        sigma = math.sqrt(squares / degrees) if degrees else 1.0
        for row in rows:
            scales[row] = sigma + config.eps
    return scales
