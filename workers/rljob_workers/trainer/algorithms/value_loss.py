"""The critic's loss (PPO's clipped value loss) and what it is judged by. Pure; not a part of any step yet.

    L = vfCoef * 0.5 * tokenMean( max( (v - ret)^2, (v_old + clamp(v - v_old, +-valueClip) - ret)^2 ) )

over all sampled tokens: the rollout correction's mask is about the policy and does not apply.
"""

import dataclasses

import torch


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ValueLoss:
    """share: of the minibatch's loss over all ranks, scalar with gradient; clipped [N]: where the clip was larger."""

    share: torch.Tensor
    clipped: torch.Tensor


def value_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    *,
    value_clip: float,
    coef: float,
    num_tokens: int,
) -> ValueLoss:
    """Return the share of one micro-batch. values [N] with gradient; num_tokens: of the minibatch, on all ranks."""
    free = (values - returns).square()
    banded = (old_values + (values - old_values).clamp(-value_clip, value_clip) - returns).square()
    share = coef * 0.5 * torch.maximum(free, banded).sum() / num_tokens
    return ValueLoss(share, (banded > free).detach())


def explained_variance(residual: tuple[float, float, float], returns: tuple[float, float, float]) -> float:
    """Return 1 - Var(ret - v_old) / Var(ret) from (count, sum, sum of squares) of each over all ranks.

    1: the critic knew every return; 0: a constant would have done as well, or returns do not differ.
    """
    spread = _variance(returns)
    return 1.0 - _variance(residual) / spread if spread > 0 else 0.0


def _variance(sums: tuple[float, float, float]) -> float:
    count, total, squares = sums
    return max(0.0, squares / count - (total / count) ** 2) if count > 0 else 0.0
