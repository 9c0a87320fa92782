"""Rollout correction: weights and rejections that turn samples of the engine's policy into the proximal one's.

The importance weight is pi_proximal / pi_behavior per token. A row is whole in its micro-batch, so sequence statistics
need no other data.
Sources: decoupled PPO (arXiv 2110.00641), truncated importance sampling (TIS), IcePop, KPop, sequence and geometric
rejection, DeepSeek-V3.2's mask of sequences with a negative advantage (arXiv 2512.02556); signs of k1, k2, k3 as in
verl: estimates of KL(behavior || proximal).
"""

import dataclasses

import torch

from rljob_api.manifest.loss import CorrectionSpec, RejectSpec
from rljob_workers.trainer.algorithms import kl
from rljob_workers.trainer.algorithms.rows import Rows

UNCORRECTED = CorrectionSpec.model_validate({"mode": "None"})


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """weights [N], detached, 0 where rejected; keep_mask [N]: False leaves the numerator and stays in the denominator.

    in_bounds [N]: what the first filter keeps; the second one, `reject`, may drop more.
    """

    weights: torch.Tensor
    keep_mask: torch.Tensor
    in_bounds: torch.Tensor


def correct(
    proximal: torch.Tensor,
    behavior: torch.Tensor,
    advantages: torch.Tensor,
    rows: Rows,
    config: CorrectionSpec | None,
) -> Correction:
    """Return weights and kept tokens. proximal, behavior, advantages [N], detached; the first two log-probabilities.

    mode none: w is the importance weight. truncate: w clamped to [low or 0, high]. mask: out of [low, high] leaves,
    equal stays. The second filter `reject` masks by bounds of its own, whatever the mode, and by `advantages` only
    what is pushed away from. batchNormalize is the caller's: it needs the whole step.
    """
    config = config or UNCORRECTED
    log_importance, _ = kl.bounded_log_ratio(proximal, behavior)
    weights = _weights(log_importance, rows, config)
    in_bounds = torch.ones_like(log_importance, dtype=torch.bool)
    if config.mode == "Truncate":
        weights = weights.clamp(min=config.low or 0.0, max=config.high)
    elif config.mode == "Mask":
        in_bounds = _in_bounds(_statistic(log_importance, proximal, behavior, rows, config), config)
    keep_mask = in_bounds
    if config.reject is not None:
        close = _in_bounds(_statistic(log_importance, proximal, behavior, rows, config.reject), config.reject)
        if config.reject.advantages == "Negative":
            close |= advantages >= 0
        keep_mask = in_bounds & close
    return Correction(torch.where(keep_mask, weights, torch.zeros_like(weights)), keep_mask, in_bounds)


def mean_weight_terms(correction: Correction, rows: Rows, config: CorrectionSpec) -> tuple[float, float]:
    """Return (sum, count) of weights for batchNormalize: over tokens, or over rows at sequence level."""
    values = rows.mean(correction.weights) if config.level == "Sequence" else correction.weights
    return float(values.double().sum()), float(len(values))


def _weights(log_importance: torch.Tensor, rows: Rows, config: CorrectionSpec) -> torch.Tensor:
    if config.weighting == "None":
        return torch.ones_like(log_importance)
    if config.level == "Sequence" and config.metric == "Ratio":
        return (
            _aggregate(log_importance, rows, config.agg)
            .clamp(-kl.LOG_RATIO_BOUND, kl.LOG_RATIO_BOUND)
            .exp()[rows.index]
        )
    return log_importance.exp()


def _statistic(
    log_importance: torch.Tensor,
    proximal: torch.Tensor,
    behavior: torch.Tensor,
    rows: Rows,
    config: CorrectionSpec | RejectSpec,
) -> torch.Tensor:
    """Return the statistic that the bounds are for, per token [N]."""
    if config.metric == "Ratio":
        if config.level == "Sequence":
            log_importance = _aggregate(log_importance, rows, config.agg)[rows.index]
        return log_importance.exp()
    values = (
        {"K1": kl.k1, "K2": kl.k2, "K3": kl.k3}[config.metric](log_importance) if config.metric != "BinaryKL" else None
    )
    if values is None:
        return kl.binary_kl(proximal, behavior)
    return _aggregate(values, rows, config.agg)[rows.index] if config.level == "Sequence" else values


def _aggregate(values: torch.Tensor, rows: Rows, agg: str | None) -> torch.Tensor:
    """Return [rows]: the arithmetic mean (default), sum or maximum of values [N]."""
    return {"Mean": rows.mean, "Sum": rows.total, "Max": rows.largest}[agg or "Mean"](values)


def _in_bounds(statistic: torch.Tensor, config: CorrectionSpec | RejectSpec) -> torch.Tensor:
    in_bounds = torch.ones_like(statistic, dtype=torch.bool)
    if config.low is not None:
        in_bounds &= statistic >= config.low
    if config.high is not None:
        in_bounds &= statistic <= config.high
    return in_bounds
