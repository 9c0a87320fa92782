"""Log-ratios of two policies per sampled token, and estimates of the KL divergence made of them.

    d = clamp(logp_theta - logp_ref, +-20);   k1 = d,   k2 = d^2 / 2,   k3 = exp(-d) - 1 + d

Source: Schulman, "Approximating KL divergence" (2020). The correction uses the same estimators with d = -log of its
importance weight; there they estimate KL(behavior || proximal), with signs as in verl.
"""

import torch

LOG_RATIO_BOUND = 20.0
# In the reward one token must not outweigh the answer.
REWARD_BOUND = 10.0
_PROB_BOUND = 1e-8


def bounded_log_ratio(above: torch.Tensor, below: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (clamp(above - below, +-20), which entries were not finite and count as 0), both [N]."""
    difference = above - below
    finite = torch.isfinite(difference)
    safe = torch.where(finite, difference, torch.zeros_like(difference))
    return safe.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND), ~finite


def estimate(logprobs: torch.Tensor, reference: torch.Tensor, estimator: str) -> torch.Tensor:
    """Return k [N], nats, with the gradient of logprobs [N]; a log-ratio that is not finite counts as 0."""
    minus_d, _ = bounded_log_ratio(reference, logprobs)
    return {"K1": k1, "K2": k2, "K3": k3}[estimator](minus_d)


def penalty(proximal: torch.Tensor, reference: torch.Tensor, *, coef: float, estimator: str) -> torch.Tensor:
    """Return what the reward of each token loses, klCoef * clamp(k, +-10) [N], float64; both inputs detached."""
    k = estimate(proximal.double(), reference.double(), estimator)
    return coef * k.clamp(-REWARD_BOUND, REWARD_BOUND)


def k1(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return -log_ratio."""
    return -log_ratio


def k2(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return log_ratio^2 / 2."""
    return log_ratio.square() / 2


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return exp(log_ratio) - 1 - log_ratio, never negative."""
    return torch.expm1(log_ratio) - log_ratio


def binary_kl(proximal: torch.Tensor, behavior: torch.Tensor) -> torch.Tensor:
    """Return max(KL(p || q), KL(q || p)) of the Bernoullis p = pi_proximal, q = pi_behavior of the token (KPop)."""
    p = proximal.double().exp().clamp(_PROB_BOUND, 1 - _PROB_BOUND)
    q = behavior.double().exp().clamp(_PROB_BOUND, 1 - _PROB_BOUND)
    return torch.maximum(_bernoulli_kl(p, q), _bernoulli_kl(q, p)).to(proximal.dtype)


def _bernoulli_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
