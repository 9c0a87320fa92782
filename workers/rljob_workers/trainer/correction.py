"""Rollout correction: weights and rejections that turn samples of the engine's policy into samples of prox.

rho = pi_prox / pi_behave per token. A row stands whole in its micro-batch, so sequence statistics need no other data.
Sources: decoupled PPO (arXiv 2110.00641), truncated importance sampling (TIS), IcePop, KPop, sequence and geometric
rejection; signs of k1, k2, k3 as in verl: estimates of KL(behave || prox).
"""

import dataclasses

import torch

from rljob_api import roles

LOG_RATIO_BOUND = 20.0
_PROB_BOUND = 1e-8
UNCORRECTED = roles.CorrectionConfig(mode="none", high=None)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Which row each sampled token belongs to: index [N], tokens [rows] = sum(m) of each row."""

    index: torch.Tensor
    tokens: torch.Tensor

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Sum values [N] per row -> [rows]."""
        return values.new_zeros(len(self.tokens)).index_add_(0, self.index, values)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Average values [N] per row -> [rows]."""
        return self.total(values) / self.tokens

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """Largest of values [N] per row -> [rows]."""
        lowest = values.new_full((len(self.tokens),), float("-inf"))
        return lowest.scatter_reduce(0, self.index, values, reduce="amax")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """weights [N], detached, 0 where rejected; kept [N]: False leaves the numerator and stays in the denominator.

    in_bounds [N]: what the first filter keeps; the second one, `reject`, may drop more.
    """

    weights: torch.Tensor
    kept: torch.Tensor
    in_bounds: torch.Tensor


def bounded_log_ratio(above: torch.Tensor, below: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (clamp(above - below, +-20), which entries were not finite and count as 0), both [N]."""
    difference = above - below
    finite = torch.isfinite(difference)
    safe = torch.where(finite, difference, torch.zeros_like(difference))
    return safe.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND), ~finite


def correct(
    proximal: torch.Tensor, behave: torch.Tensor, rows: Rows, config: roles.CorrectionConfig | None
) -> Correction:
    """Return weights and kept tokens. proximal, behave [N]: log-probabilities, detached.

    mode none: w = rho. truncate: w clamped to [low or 0, high]. mask: out of [low, high] leaves, equal stays. The
    second filter `reject` masks by bounds of its own, whatever the mode.
    batchNormalize is the caller's: it needs the whole step.
    """
    config = config or UNCORRECTED
    log_rho, _ = bounded_log_ratio(proximal, behave)
    weights = _weights(log_rho, rows, config)
    in_bounds = torch.ones_like(log_rho, dtype=torch.bool)
    if config.mode == "truncate":
        weights = weights.clamp(min=config.low or 0.0, max=config.high)
    elif config.mode == "mask":
        in_bounds = _in_bounds(_statistic(log_rho, proximal, behave, rows, config), config)
    kept = in_bounds
    if config.reject is not None:
        kept = in_bounds & _in_bounds(_statistic(log_rho, proximal, behave, rows, config.reject), config.reject)
    return Correction(torch.where(kept, weights, torch.zeros_like(weights)), kept, in_bounds)


def mean_weight_terms(correction: Correction, rows: Rows, config: roles.CorrectionConfig) -> tuple[float, float]:
    """Return (sum, count) of weights for batchNormalize: over tokens, or over rows at sequence level."""
    values = rows.mean(correction.weights) if config.level == "sequence" else correction.weights
    return float(values.double().sum()), float(len(values))


def _weights(log_rho: torch.Tensor, rows: Rows, config: roles.CorrectionConfig) -> torch.Tensor:
    if config.weighting == "none":
        return torch.ones_like(log_rho)
    if config.level == "sequence" and config.metric == "ratio":
        return _aggregate(log_rho, rows, config.agg).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()[rows.index]
    return log_rho.exp()


def _statistic(
    log_rho: torch.Tensor, proximal: torch.Tensor, behave: torch.Tensor, rows: Rows, config: roles.RejectConfig
) -> torch.Tensor:
    """Return the statistic that the bounds are for, per token [N]."""
    if config.metric == "ratio":
        if config.level == "sequence":
            log_rho = _aggregate(log_rho, rows, config.agg)[rows.index]
        return log_rho.exp()
    values = {"k1": k1, "k2": k2, "k3": k3}[config.metric](log_rho) if config.metric != "binaryKl" else None
    if values is None:
        return binary_kl(proximal, behave)
    return _aggregate(values, rows, config.agg)[rows.index] if config.level == "sequence" else values


def _aggregate(values: torch.Tensor, rows: Rows, agg: str | None) -> torch.Tensor:
    """Return [rows]: the arithmetic mean (default), sum or maximum of values [N]."""
    return {"mean": rows.mean, "sum": rows.total, "max": rows.largest}[agg or "mean"](values)


def _in_bounds(statistic: torch.Tensor, config: roles.RejectConfig) -> torch.Tensor:
    kept = torch.ones_like(statistic, dtype=torch.bool)
    if config.low is not None:
        kept &= statistic >= config.low
    if config.high is not None:
        kept &= statistic <= config.high
    return kept


def k1(log_rho: torch.Tensor) -> torch.Tensor:
    """Return -log rho."""
    return -log_rho


def k2(log_rho: torch.Tensor) -> torch.Tensor:
    """Return (log rho)^2 / 2."""
    return log_rho.square() / 2


def k3(log_rho: torch.Tensor) -> torch.Tensor:
    """Return rho - 1 - log rho, never negative."""
    return torch.expm1(log_rho) - log_rho


def binary_kl(proximal: torch.Tensor, behave: torch.Tensor) -> torch.Tensor:
    """Return max(KL(p || q), KL(q || p)) of the Bernoullis p = pi_prox and q = pi_behave of the taken token (KPop)."""
    p = proximal.double().exp().clamp(_PROB_BOUND, 1 - _PROB_BOUND)
    q = behave.double().exp().clamp(_PROB_BOUND, 1 - _PROB_BOUND)
    return torch.maximum(_bernoulli_kl(p, q), _bernoulli_kl(q, p)).to(proximal.dtype)


def _bernoulli_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
