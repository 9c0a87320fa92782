"""The policy losses: per-token losses by `loss.type`, and losses of installed packages. Pure.

A loss is one function with the decorator `policy_loss`, listed in `BUILT_IN` under its name in the manifest:

    tokens, config -> l [N]      r = exp(clamp(logp - logp_proximal, +-20))

loss.py applies everything else to what the function returns: importance weights, rejection, masks, averages over
tokens, rows, micro-batches and ranks, KL and entropy terms, statistics. docs/contributing.md has the steps, and how a
package brings a loss of its own (`loss: {type: custom, name: ...}`) by an entry point of the group `rljob.losses`.
"""

import dataclasses
from collections.abc import Callable, Mapping

import torch

from rljob_api import errors, plugins
from rljob_api.manifest.loss import LossSpec
from rljob_workers.trainer.algorithms import kl
from rljob_workers.trainer.algorithms.rows import Rows


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The sampled tokens of one micro-batch. logprobs [N]: of the policy, with gradient; the rest has none.

    proximal [N]: log-probabilities of the policy that the step starts from; without a proximal policy those of the
    policy itself, so that log_ratio is 0 in value. advantages [N]. log_ratio [N]: logprobs - proximal, clamped to +-20,
    with gradient. rows: which row each token belongs to; a row is whole in its micro-batch.
    """

    logprobs: torch.Tensor
    proximal: torch.Tensor
    advantages: torch.Tensor
    log_ratio: torch.Tensor
    rows: Rows


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TokenLosses:
    """losses [N] with gradient; low, high, dual [N] bool: where a bound acted, for policy/clip_*; None: no bound."""

    losses: torch.Tensor
    low: torch.Tensor | None = None
    high: torch.Tensor | None = None
    dual: torch.Tensor | None = None


LossFunction = Callable[[Tokens, LossSpec], TokenLosses]


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A registered loss. uses_proximal: it compares the policy with the one that the step starts from.

    Without, the importance weight is that of the policy itself, pi / pi_behavior, and no forward is spent on a proximal
    policy.
    """

    function: LossFunction
    uses_proximal: bool = True

    def __call__(self, tokens: Tokens, config: LossSpec) -> TokenLosses:
        """Return l [N]."""
        return self.function(tokens, config)


def policy_loss(*, uses_proximal: bool = True) -> Callable[[LossFunction], PolicyLoss]:
    """Declare that a function is a policy loss, and what it needs."""
    return lambda function: PolicyLoss(function, uses_proximal=uses_proximal)


@policy_loss()
def ppo(tokens: Tokens, config: LossSpec) -> TokenLosses:
    """PPO, arXiv 1707.06347: l = max(-A r, -A clamp(r, 1 - clipLow, 1 + clipHigh)).

    With dualClip c and A < 0, l = min(l, -c A) (arXiv 1912.09729).
    """
    return _clipped(tokens.log_ratio, tokens.advantages, config)


@policy_loss()
def gspo(tokens: Tokens, config: LossSpec) -> TokenLosses:
    """GSPO, arXiv 2507.18071: the clipped loss of s = exp(mean over the row of log r) and the row's mean advantage.

    Every token of a row carries the row's loss, so sequenceMean gives the row's loss once; the gradient runs through s.
    """
    rows = tokens.rows
    return _clipped(rows.mean(tokens.log_ratio)[rows.index], rows.mean(tokens.advantages)[rows.index], config)


@policy_loss()
def cispo(tokens: Tokens, config: LossSpec) -> TokenLosses:
    """CISPO, arXiv 2506.13585: l = -sg(clamp(r, 1 - clipLow, 1 + clipHigh)) A logp; nothing through r."""
    ratio = tokens.log_ratio.detach().exp()
    lowest, highest = 1 - config.clip_low, 1 + config.clip_high
    losses = -ratio.clamp(lowest, highest) * tokens.advantages * tokens.logprobs
    return TokenLosses(losses, low=ratio < lowest, high=ratio > highest)


@policy_loss()
def sapo(tokens: Tokens, config: LossSpec) -> TokenLosses:
    """SAPO, arXiv 2511.20347: l = -A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A; slope 1 at r = 1."""
    tau = torch.where(tokens.advantages > 0, config.tau_pos, config.tau_neg).to(tokens.log_ratio.dtype)
    return TokenLosses(-tokens.advantages * (4.0 / tau) * torch.sigmoid(tau * (tokens.log_ratio.exp() - 1.0)))


@policy_loss(uses_proximal=False)
def reinforce(tokens: Tokens, _config: LossSpec) -> TokenLosses:
    """REINFORCE: l = -A logp."""
    return TokenLosses(-tokens.advantages * tokens.logprobs)


BUILT_IN: Mapping[str, PolicyLoss] = {"ppo": ppo, "gspo": gspo, "cispo": cispo, "sapo": sapo, "reinforce": reinforce}


def find(config: LossSpec) -> PolicyLoss:
    """Raises ManifestError for a custom one that cannot be used."""
    if config.type != "custom":
        return BUILT_IN[config.type]
    loss = plugins.load(plugins.LOSSES, config.name or "", field="spec.algorithm.loss.name")
    if not isinstance(loss, PolicyLoss):
        raise errors.ManifestError(
            f"spec.algorithm.loss.name is {config.name!r}, but its entry point is {type(loss).__name__} and not a"
            " function with the decorator policy_loss of rljob_workers.trainer.algorithms.policy_losses"
        )
    if config.normalizes_weights and not loss.uses_proximal:
        raise errors.ManifestError(
            f"spec.algorithm.loss.rolloutCorrection.batchNormalize is true, but loss {config.name!r} has no proximal"
            " policy: use false"
        )
    return loss


def compute(
    logprobs: torch.Tensor,
    proximal: torch.Tensor,
    advantages: torch.Tensor,
    rows: Rows,
    config: LossSpec,
) -> TokenLosses:
    """Return the token losses of `config`. logprobs [N] with gradient; proximal, advantages [N] without.

    Raises RLJobError if a loss does not return one number per token.
    """
    log_ratio, _ = kl.bounded_log_ratio(logprobs, proximal)
    result = find(config)(Tokens(logprobs, proximal, advantages, log_ratio, rows), config)
    if result.losses.shape != logprobs.shape:
        raise errors.RLJobError(
            f"policy loss {config.name or config.type} returned losses of shape {list(result.losses.shape)} for"
            f" {len(logprobs)} tokens"
        )
    return result


def _clipped(log_ratio: torch.Tensor, advantages: torch.Tensor, config: LossSpec) -> TokenLosses:
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    losses = torch.maximum(unclipped, clipped)
    acted = (clipped > unclipped).detach()
    low, high = acted & (ratio < 1 - config.clip_low), acted & (ratio > 1 + config.clip_high)
    if config.dual_clip is None:
        return TokenLosses(losses, low=low, high=high)
    capped = -config.dual_clip * advantages
    dual = ((advantages < 0) & (capped < losses)).detach()
    return TokenLosses(torch.where(dual, capped, losses), low=low, high=high, dual=dual)
