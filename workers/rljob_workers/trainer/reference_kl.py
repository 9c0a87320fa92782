"""KL of the policy to the reference model, per sampled token (Schulman, "Approximating KL divergence", 2020).

d = clamp(logp_theta - logp_ref, +-20);   k1 = d,   k2 = d^2 / 2,   k3 = exp(-d) - 1 + d
"""

import torch

from rljob_workers.trainer import correction

# In the reward one token must not outweigh the answer.
REWARD_BOUND = 10.0


def estimate(logprobs: torch.Tensor, reference: torch.Tensor, estimator: str) -> torch.Tensor:
    """Return k [N], nats, with the gradient of logprobs [N]; a log-ratio that is not finite counts as 0."""
    minus_d, _ = correction.bounded_log_ratio(reference, logprobs)
    return {"k1": correction.k1, "k2": correction.k2, "k3": correction.k3}[estimator](minus_d)


def penalty(proximal: torch.Tensor, reference: torch.Tensor, *, coef: float, estimator: str) -> torch.Tensor:
    """Return what the reward of each token loses, klCoef * clamp(k, +-10) [N], float64; both inputs detached."""
    k = estimate(proximal.double(), reference.double(), estimator)
    return coef * k.clamp(-REWARD_BOUND, REWARD_BOUND)
