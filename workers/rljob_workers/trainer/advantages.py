"""Advantages that the trainer makes: rewards, KL and values through GAE, then normalised over the tokens of the step.

Algorithms reference 5. One home for the order: rewards -> less KL -> GAE -> normalizeAdvantage. With the turn as unit
the KL is taken off afterwards, token by token, and is not carried to earlier ones.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

import torch

from rljob_api import errors, names, roles
from rljob_workers.trainer import batch, correction, gae

Stat = names.StepStat


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
    tensors: batch.BatchTensors,
    config: roles.ReturnsConfig,
    *,
    penalty: torch.Tensor | None = None,
    values: Values | None = None,
) -> gae.Estimated:
    """Return advantages and returns [N] of one micro-batch, float64. penalty [N]: the KL term of each token's reward.

    Raises WireError if the batch carries no rewards.
    """
    if len(tensors.rewards) != len(tensors.targets):
        raise errors.WireError(f"the batch has no rewards for its {len(tensors.targets)} sampled tokens")
    rows = correction.Rows(tensors.row_index, tensors.row_tokens)
    rewards = tensors.rewards.double()
    states = torch.zeros_like(rewards) if values is None else values.tokens.double()
    ends = torch.zeros_like(tensors.row_tokens, dtype=torch.float64)
    if values is not None and config.bootstrap_truncated:
        ends = torch.where(tensors.row_truncated, values.ends.double(), ends)
    lost = torch.zeros_like(rewards) if penalty is None else penalty.double()
    if config.unit == "turn":
        decay = gae.decay(config.decay, gae.num_turns(tensors.turns, rows))
        made = gae.over_turns(rewards, states, tensors.turns, rows, gamma=config.gamma, decay=decay, bootstrap=ends)
        return dataclasses.replace(made, advantages=made.advantages - lost)
    decay = gae.decay(config.decay, tensors.row_tokens)
    return gae.over_tokens(rewards - lost, states, rows, gamma=config.gamma, decay=decay, bootstrap=ends)


def describe(parts: Sequence[batch.BatchTensors], ranks: Ranks) -> dict[Stat, float]:
    """Return adv/* over the rows of the step, a row's advantage being the mean of its tokens, and how many groups have
    advantages that are all exactly 0. parts: this rank's micro-batches, each row once.
    """
    means = [float(mean) for part in parts for mean in _row_means(part).tolist()]
    seen = [int(group) for part in parts for group in part.row_group.tolist()]
    moved = {
        int(group) for part in parts for group in part.row_group[part.row_index[part.advantages != 0].unique()].tolist()
    }
    (last,) = ranks.largest([float(max(seen, default=-1))])
    flags = [[0.0] * (int(last) + 1) for _ in range(2)]
    for number, groups in enumerate((seen, moved)):
        for group in groups:
            flags[number][group] = 1.0
    top, bottom, *found = ranks.largest(
        [max(means, default=-math.inf), max((-mean for mean in means), default=-math.inf), *flags[0], *flags[1]]
    )
    count, total, squares = ranks.total([float(len(means)), math.fsum(means), math.fsum(mean**2 for mean in means)])
    if count == 0:
        return {}
    half = len(found) // 2
    return {
        Stat.ADVANTAGE_MEAN: total / count,
        Stat.ADVANTAGE_STD: math.sqrt(max(0.0, squares / count - (total / count) ** 2)),
        Stat.ADVANTAGE_MIN: -bottom,
        Stat.ADVANTAGE_MAX: top,
        Stat.ZERO_ADVANTAGE_GROUPS: float(
            sum(present > other for present, other in zip(found[:half], found[half:], strict=True))
        ),
    }


def _row_means(part: batch.BatchTensors) -> torch.Tensor:
    return correction.Rows(part.row_index, part.row_tokens).mean(part.advantages)
