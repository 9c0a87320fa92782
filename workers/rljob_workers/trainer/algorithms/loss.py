"""The policy loss: pure, one micro-batch at a time, exact under any split.

    L = aggregate(w * l) + [klPlacement loss] klCoef * aggregate(k) - alpha * H
    l from policy_losses.py by `loss.type`,  w from correction.py (behavior -> proximal), detached,  alpha: entropyCoef,
    or what entropy.py makes of it

Sources: decoupled PPO arXiv 2110.00641 and AReaL arXiv 2505.24298;
loglinear A-3PO (AReaL). Aggregations: DAPO token mean, GRPO sequence mean, Dr.GRPO constant. Every denominator is
that of the minibatch over all ranks, so micro-batches add up to the same loss and gradient whatever the split.
Deviation from the papers: rejected and masked tokens stay in denominators, else filtering would raise the step size.
"""

import dataclasses

import torch

from rljob_api import types
from rljob_api.manifest.loss import LossSpec
from rljob_workers.trainer.algorithms import correction, kl, policy_losses, statistics
from rljob_workers.trainer.algorithms.rows import Rows
from rljob_workers.trainer.algorithms.statistics import Peak, Sum


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
    """Of one micro-batch. logprobs, entropies [N]: of theta, with gradient; the rest has none.

    behavior, advantages, version_steps, row_index [N]; row_tokens, row_masked [rows]. proximal [N]: computed before the
    step's first update, or None to derive it. reference [N]: logprobs of the reference model, None without a KL term.
    keep_mask [N]: what M2PO leaves, entropy_mask [N]: what is chosen for its entropy; None without. entropy_coef: of
    the bonus, None for the manifest's. trainer_version: V, completed steps before this one. oldest_step: tokens that
    versions of smaller steps sampled are left out, as rejected ones are. mean_weight: divisor of batchNormalize,
    1.0 without. row_observed [rows]: rows that are not a part of the loss, whose tokens represent others in statistics,
    as many as `observed` says; None without such.
    """

    logprobs: torch.Tensor
    entropies: torch.Tensor
    behavior: torch.Tensor
    advantages: torch.Tensor
    version_steps: torch.Tensor
    row_index: torch.Tensor
    row_tokens: torch.Tensor
    row_masked: torch.Tensor
    minibatch: types.Minibatch
    trainer_version: int
    oldest_step: int = 0
    proximal: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    keep_mask: torch.Tensor | None = None
    entropy_mask: torch.Tensor | None = None
    entropy_coef: float | None = None
    mean_weight: float = 1.0
    row_observed: torch.Tensor | None = None
    observed: statistics.Observed = dataclasses.field(default_factory=statistics.Observed)

    @property
    def observed_mask(self) -> torch.Tensor:
        """Return, for each row, whether it is only looked at."""
        return torch.zeros_like(self.row_masked) if self.row_observed is None else self.row_observed

    @property
    def token_weights(self) -> torch.Tensor:
        """Return how many of the batch's tokens each one stands for [N], fp64."""
        observed = self.observed_mask[self.row_index]
        return torch.where(observed, self.observed.tokens, 1.0).double()

    @property
    def row_weights(self) -> torch.Tensor:
        """Return how many of the batch's rows each one stands for [rows], fp64."""
        return torch.where(self.observed_mask, self.observed.rows, 1.0).double()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LossOutputs:
    """`loss`: this micro-batch's share of L, scalar with gradient; `tally`: its sums."""

    loss: torch.Tensor
    tally: statistics.Tally


def policy_loss(inputs: LossInputs, config: LossSpec) -> LossOutputs:
    """Return the loss share and the sums of one micro-batch."""
    proximal = proximal_logprobs(inputs, config)
    rows = Rows(inputs.row_index, inputs.row_tokens)
    corrected = correction.correct(proximal, inputs.behavior, inputs.advantages, rows, config.rollout_correction)
    weights = corrected.weights / inputs.mean_weight
    token_losses = policy_losses.compute(inputs.logprobs, proximal, inputs.advantages, rows, config)
    trained = ~inputs.row_masked[inputs.row_index]
    young = inputs.version_steps >= inputs.oldest_step
    close = torch.ones_like(trained) if inputs.keep_mask is None else inputs.keep_mask
    uncertain = torch.ones_like(trained) if inputs.entropy_mask is None else inputs.entropy_mask
    in_loss = young & corrected.keep_mask & close & uncertain & trained & ~inputs.observed_mask[inputs.row_index]
    numerators = torch.where(in_loss, weights * token_losses.losses, torch.zeros_like(weights))
    shares = token_shares(inputs, config)
    loss = (numerators * shares).sum()
    terms: dict[Sum, torch.Tensor] = {}
    if inputs.reference is not None:
        k = kl.estimate(inputs.logprobs, inputs.reference, config.kl_estimator)
        if config.kl_placement == "Loss":
            # Rejection and w are about the policy loss; the distance to the reference holds for every trained token.
            distance = config.kl_coef * (k * shares * trained).sum()
            terms[Sum.KL_LOSS], loss = distance.detach().double(), loss + distance
    coef = config.entropy_coef if inputs.entropy_coef is None else inputs.entropy_coef
    if coef:
        bonus = -coef * (inputs.entropies * trained).sum() / inputs.minibatch.num_tokens
        terms[Sum.ENTROPY_LOSS], loss = bonus.detach().double(), loss + bonus
    tally = _tally(inputs, token_losses, proximal, rows, weights, trained, loss, config)
    # Each token counts once: for the first reason that takes it.
    counts = inputs.token_weights
    tally.put(
        {
            Sum.TRUNCATED_MASKED: (counts * ~trained).sum(),
            Sum.STALE_MASKED: (counts * (~young & trained)).sum(),
            Sum.CORRECTION_MASKED: (counts * (~corrected.in_bounds & young & trained)).sum(),
            Sum.REJECT_MASKED: (counts * (corrected.in_bounds & ~corrected.keep_mask & young & trained)).sum(),
            Sum.M2_MASKED: (~close & corrected.keep_mask & young & trained).sum(),
            Sum.ENTROPY_MASKED: (~uncertain & close & corrected.keep_mask & young & trained).sum(),
            **terms,
        },
        {},
    )
    if inputs.reference is not None:
        tally.put({Sum.REF_TOKENS: trained.sum(), Sum.REF_KL: (k.detach() * trained).double().sum()}, {})
    return LossOutputs(loss, tally)


def proximal_logprobs(inputs: LossInputs, config: LossSpec) -> torch.Tensor:
    """Return log pi_proximal [N], detached.

    recompute and reuse without a computed proximal policy: stop-gradient of the training forward (r = 1 in value),
    which is the same number when the step has one update. loglinear: behavior + alpha (theta - behavior), alpha =
    clamp((v - 1 - v_tok) / (v - v_tok), 0, 1) with v = V + 1, and 0 for tokens that are not older than this step's
    result. A loss without a proximal policy: theta itself, so that the importance weight is sg(pi_theta / pi_behavior).
    """
    theta = inputs.logprobs.detach()
    if not policy_losses.find(config).uses_proximal:
        return theta
    if inputs.proximal is not None:
        return inputs.proximal
    if config.proximal == "Behavior":
        return inputs.behavior
    if config.proximal == "LogLinear":
        version = inputs.trainer_version + 1
        age = (version - inputs.version_steps).float()
        alpha = ((age - 1) / age.clamp(min=1.0)).clamp(0.0, 1.0)
        alpha = torch.where((inputs.version_steps < 0) | (age <= 0), torch.zeros_like(alpha), alpha)
        return inputs.behavior + alpha * (theta - inputs.behavior)
    return theta


def token_shares(inputs: LossInputs, config: LossSpec) -> torch.Tensor:
    """Return what each token's w * l is multiplied with [N]: 1 / tokens, 1 / (rows tokens_i) or 1 / (rows C)."""
    if config.aggregation == "TokenMean":
        return torch.full_like(inputs.behavior, 1.0 / inputs.minibatch.num_tokens)
    if config.aggregation == "SequenceMean":
        return 1.0 / (inputs.minibatch.num_rows * inputs.row_tokens[inputs.row_index])
    return torch.full_like(inputs.behavior, 1.0 / (inputs.minibatch.num_rows * config.constant_denominator))


def _tally(
    inputs: LossInputs,
    token_losses: policy_losses.TokenLosses,
    proximal: torch.Tensor,
    rows: Rows,
    weights: torch.Tensor,
    trained: torch.Tensor,
    loss: torch.Tensor,
    config: LossSpec,
) -> statistics.Tally:
    """Return the sums of the statistics of docs/design/algorithms.md#s-11, over m of the micro-batch."""
    tally = statistics.Tally(loss.device)
    theta = inputs.logprobs.detach()
    # With behavior and loglinear, `proximal` holds the engine's own numbers.
    ours = theta if config.proximal in ("Behavior", "LogLinear") else proximal
    log_importance, nonfinite = kl.bounded_log_ratio(ours, inputs.behavior)
    counts, updated = inputs.token_weights, ~inputs.observed_mask[inputs.row_index]
    tally.put(_behavior_sums(log_importance, rows, inputs), {})
    tally.put(_mismatch_sums(ours, rows, inputs), {})
    log_ratio, _ = kl.bounded_log_ratio(theta, proximal)
    ratio = log_ratio.exp()
    nowhere = torch.zeros_like(updated)
    low, high, dual = (
        nowhere if acted is None else acted & updated
        for acted in (token_losses.low, token_losses.high, token_losses.dual)
    )
    sums = {
        Sum.TOKENS: counts.sum(),
        Sum.UPDATE_TOKENS: updated.sum(),
        Sum.WEIGHT: (counts * weights).sum(),
        Sum.LOSS: loss.detach().double(),
        Sum.ENTROPY_TOKENS: (counts * trained).sum(),
        Sum.ENTROPY: (counts * inputs.entropies.detach() * trained).sum(),
        Sum.RATIO: (ratio.double() * updated).sum(),
        Sum.MINUS_LOG_RATIO: -(log_ratio.double() * updated).sum(),
        Sum.CLIP_LOW: low.sum(),
        Sum.CLIP_HIGH: high.sum(),
        Sum.CLIP_DUAL: dual.sum(),
        Sum.NONFINITE: nonfinite.sum() + (~torch.isfinite(theta - proximal)).sum(),
        Sum.NONFINITE_LOSS: (~torch.isfinite(loss)).sum(),
    }
    peaks = {Peak.RATIO: (ratio * updated).max(), Peak.WEIGHT: (weights * updated).max()}
    tally.put(sums, peaks)
    return tally


def _behavior_sums(log_importance: torch.Tensor, rows: Rows, inputs: LossInputs) -> dict[Sum, torch.Tensor]:
    importance_weight, counts, of_rows = log_importance.double().exp(), inputs.token_weights, inputs.row_weights
    bound = kl.LOG_RATIO_BOUND
    product = rows.total(log_importance.double()).clamp(-bound, bound).exp()
    return {
        Sum.ROWS: of_rows.sum(),
        Sum.IMPORTANCE_WEIGHT: (counts * importance_weight).sum(),
        Sum.IMPORTANCE_WEIGHT_SQUARED: (counts * importance_weight.square()).sum(),
        Sum.BEHAVIOR_K3: (counts * kl.k3(log_importance.double())).sum(),
        Sum.ROW_CHI2: (of_rows * (product.square() - 1)).sum(),
        Sum.ROW_PPL: (of_rows * (-rows.mean(log_importance.double())).exp()).sum(),
    }


def _mismatch_sums(ours: torch.Tensor, rows: Rows, inputs: LossInputs) -> dict[Sum, torch.Tensor]:
    """Sums of the gap between the policy that the step starts from and what the engine said when it sampled.

    MISMATCH: rows that this policy sampled whole, so that nothing but the two programs differs. STALE: its tokens in
    rows that older weights began, whose cached keys and values are of those. GAP: all tokens, of any age.
    """
    own = inputs.version_steps == inputs.trainer_version
    whole = (rows.total((~own).double()) == 0)[inputs.row_index]
    log_ratio, _ = kl.bounded_log_ratio(ours.double(), inputs.behavior.double())
    fresh, stale = (inputs.token_weights * part for part in (own & whole, own & ~whole))
    gap = log_ratio.abs()
    return {
        Sum.MISMATCH_TOKENS: fresh.sum(),
        Sum.MISMATCH_K3: (fresh * kl.k3(log_ratio)).sum(),
        Sum.MISMATCH_ABS: (fresh * gap).sum(),
        Sum.MISMATCH_EXP_ABS: (fresh * gap.exp()).sum(),
        Sum.GAP_TOKENS: inputs.token_weights.sum(),
        Sum.GAP_ABS: (inputs.token_weights * gap).sum(),
        Sum.STALE_TOKENS: stale.sum(),
        Sum.STALE_ABS: (stale * gap).sum(),
    }
