"""The per-token policy losses l, one function per `loss.type`. Pure; weights, masks and averaging are loss.py's.

r = exp(clamp(logp_theta - logp_prox, +-20)); every denominator and the weight w of the rollout correction come later.
"""

import dataclasses

import torch

from rljob_api import roles
from rljob_workers.trainer.algorithms import kl
from rljob_workers.trainer.algorithms.rows import Rows


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Surrogate:
    """losses [N] with gradient; ratio, log_ratio [N] detached; low, high, dual [N]: where a bound acted."""

    losses: torch.Tensor
    ratio: torch.Tensor
    log_ratio: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    dual: torch.Tensor


def compute(
    logprobs: torch.Tensor,
    proximal: torch.Tensor,
    advantages: torch.Tensor,
    rows: Rows,
    config: roles.LossConfig,
) -> Surrogate:
    """Return the surrogate of `config.type`. logprobs [N] with gradient; proximal, advantages [N] without."""
    log_ratio, _ = kl.bounded_log_ratio(logprobs, proximal)
    if config.type == "gspo":
        return gspo(log_ratio, advantages, rows, config)
    if config.type == "cispo":
        return cispo(logprobs, log_ratio, advantages, config)
    if config.type == "sapo":
        return sapo(log_ratio, advantages, config)
    if config.type == "reinforce":
        return _unbounded(-advantages * logprobs, log_ratio)
    return clipped(log_ratio, advantages, config)


def clipped(log_ratio: torch.Tensor, advantages: torch.Tensor, config: roles.LossConfig) -> Surrogate:
    """PPO, arXiv 1707.06347: l = max(-A r, -A clamp(r, 1 - clipLow, 1 + clipHigh)).

    With dualClip c and A < 0, l = min(l, -c A) (arXiv 1912.09729).
    """
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    banded = -advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    losses = torch.maximum(unclipped, banded)
    acted = (banded > unclipped).detach()
    dual = torch.zeros_like(acted)
    if config.dual_clip is not None:
        capped = -config.dual_clip * advantages
        dual = ((advantages < 0) & (capped < losses)).detach()
        losses = torch.where(dual, capped, losses)
    low, high = acted & (ratio < 1 - config.clip_low), acted & (ratio > 1 + config.clip_high)
    return Surrogate(losses, ratio.detach(), log_ratio.detach(), low, high, dual)


def gspo(log_ratio: torch.Tensor, advantages: torch.Tensor, rows: Rows, config: roles.LossConfig) -> Surrogate:
    """GSPO, arXiv 2507.18071: the clipped loss of s = exp(mean over the row of log r) and the row's mean advantage.

    Every token of a row carries the row's loss, so sequenceMean gives the row's loss once; the gradient runs through s.
    """
    sequence = rows.mean(log_ratio)[rows.index]
    made = clipped(sequence, rows.mean(advantages)[rows.index], config)
    return dataclasses.replace(made, ratio=log_ratio.detach().exp(), log_ratio=log_ratio.detach())


def cispo(
    logprobs: torch.Tensor, log_ratio: torch.Tensor, advantages: torch.Tensor, config: roles.LossConfig
) -> Surrogate:
    """CISPO, arXiv 2506.13585: l = -sg(clamp(r, 1 - clipLow, 1 + clipHigh)) A logp_theta; nothing through r."""
    ratio = log_ratio.detach().exp()
    losses = -ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * advantages * logprobs
    low, high = ratio < 1 - config.clip_low, ratio > 1 + config.clip_high
    return Surrogate(losses, ratio, log_ratio.detach(), low, high, torch.zeros_like(low))


def sapo(log_ratio: torch.Tensor, advantages: torch.Tensor, config: roles.LossConfig) -> Surrogate:
    """SAPO, arXiv 2511.20347: l = -A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A; slope 1 at r = 1."""
    tau = torch.where(advantages > 0, config.tau_pos, config.tau_neg).to(log_ratio.dtype)
    return _unbounded(-advantages * (4.0 / tau) * torch.sigmoid(tau * (log_ratio.exp() - 1.0)), log_ratio)


def _unbounded(losses: torch.Tensor, log_ratio: torch.Tensor) -> Surrogate:
    never = torch.zeros_like(log_ratio, dtype=torch.bool)
    return Surrogate(losses, log_ratio.detach().exp(), log_ratio.detach(), never, never, never)
