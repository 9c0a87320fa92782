"""Rows 1, 2, 3, 5, 9, 10 and 16: the policy loss."""

from collections.abc import Iterator

from rljob_api import effective
from rljob_api.manifest.base import number, optional_number
from rljob_api.manifest.job import JobSpec
from rljob_api.messages import ignored, refuse

LOSS = "algorithm.loss"


def kl_loss_with_k1(spec: JobSpec) -> Iterator[str]:
    """Row 1."""
    if spec.algorithm.loss.kl_estimator == "k1" and effective.kl_placement(spec) == "loss":
        yield refuse(
            f"{LOSS}.klEstimator",
            "k1",
            "klPlacement is 'loss', where k1 has zero expected gradient: use k3 or k2, or klPlacement: reward",
        )


def kl_and_reference_model(spec: JobSpec) -> Iterator[str]:
    """Row 2."""
    loss, reference = spec.algorithm.loss, spec.model.reference
    if number(loss.kl_coef) > 0:
        if reference is None:
            yield refuse(
                f"{LOSS}.klCoef",
                loss.kl_coef,
                "spec.model.reference is not set: name the model to compare with, or use 0",
            )
        return
    if reference is not None:
        yield ignored("model.reference", reference.name, f"spec.{LOSS}.klCoef is 0, so no KL term would read it")
    for key, value in (("klEstimator", loss.kl_estimator), ("klPlacement", loss.kl_placement)):
        if value is not None:
            yield ignored(f"{LOSS}.{key}", value, f"spec.{LOSS}.klCoef is 0")


def reuse_with_several_updates(spec: JobSpec) -> Iterator[str]:
    """Row 3."""
    algorithm = spec.algorithm
    if algorithm.loss.proximal == "reuse" and algorithm.minibatches * algorithm.epochs > 1:
        yield refuse(
            f"{LOSS}.proximal",
            "reuse",
            f"minibatches x epochs = {algorithm.minibatches * algorithm.epochs}, and the policy moves between updates:"
            " use recompute",
        )


def needs_proximal_before_the_split(spec: JobSpec) -> Iterator[str]:
    """Row 5."""
    loss = spec.algorithm.loss
    block = loss.rollout_correction
    normalized = block is not None and block.batch_normalize
    before = "which needs the proximal policy before the batch is split: use proximal: recompute"
    if loss.proximal in ("loglinear", "reuse"):
        if loss.m2_threshold is not None:
            yield refuse(f"{LOSS}.proximal", loss.proximal, f"m2Threshold is '{loss.m2_threshold}', {before}")
        if normalized:
            yield refuse(f"{LOSS}.proximal", loss.proximal, f"rolloutCorrection.batchNormalize is true, {before}")
        if number(loss.kl_coef) > 0 and effective.kl_placement(spec) == "reward":
            yield refuse(f"{LOSS}.proximal", loss.proximal, f"klPlacement is 'reward', {before}")
    if loss.type == "reinforce" and normalized:
        yield refuse(
            f"{LOSS}.rolloutCorrection.batchNormalize",
            True,
            "loss.type is 'reinforce', which has no proximal policy: use false",
        )


def field_outside_its_surrogate(spec: JobSpec) -> Iterator[str]:
    """Row 9."""
    loss = spec.algorithm.loss
    written = {
        "clipLow": loss.clip_low,
        "clipHigh": loss.clip_high,
        "dualClip": loss.dual_clip,
        "m2Threshold": loss.m2_threshold,
        "proximal": loss.proximal,
        "tauPos": loss.tau_pos,
        "tauNeg": loss.tau_neg,
    }
    for key in _foreign_fields(loss.type):
        if written[key] is not None:
            yield ignored(f"{LOSS}.{key}", written[key], f"loss.type {loss.type} does not use it")
    if loss.type == "gspo" and loss.aggregation not in (None, "sequenceMean"):
        yield refuse(f"{LOSS}.aggregation", loss.aggregation, "loss.type gspo averages over rows: use sequenceMean")
    if loss.type == "cispo" and (loss.clip_high is None or number(loss.clip_high) <= 0):
        yield refuse(f"{LOSS}.clipHigh", loss.clip_high, 'loss.type cispo needs one above 0: "4.0" is usual')
    for key in ("tauPos", "tauNeg"):
        tau = optional_number(written[key])
        if loss.type == "sapo" and tau is not None and tau <= 0:
            yield refuse(f"{LOSS}.{key}", written[key], "a temperature must be above 0")


def _foreign_fields(loss_type: str) -> tuple[str, ...]:
    taus = ("tauPos", "tauNeg")
    return {
        "ppo": taus,
        "gspo": ("dualClip", "m2Threshold", *taus),
        "cispo": ("dualClip", "m2Threshold", *taus),
        "sapo": ("clipLow", "clipHigh", "dualClip", "m2Threshold"),
        "reinforce": ("clipLow", "clipHigh", "dualClip", "proximal", "m2Threshold", *taus),
    }[loss_type]


def out_of_range(spec: JobSpec) -> Iterator[str]:
    """Row 10."""
    loss, algorithm = spec.algorithm.loss, spec.algorithm
    if loss.dual_clip is not None and number(loss.dual_clip) <= 1:
        yield refuse(f"{LOSS}.dualClip", loss.dual_clip, 'it caps ratios above 1 and must be above 1: "3.0" is usual')
    if loss.clip_low is not None and number(loss.clip_low) > 1:
        yield refuse(f"{LOSS}.clipLow", loss.clip_low, 'a ratio cannot fall by more than 1: use at most "1"')
    overlong, critic = algorithm.rewards.overlong, algorithm.critic
    never_negative = {
        f"{LOSS}.clipLow": loss.clip_low,
        f"{LOSS}.clipHigh": loss.clip_high,
        f"{LOSS}.klCoef": loss.kl_coef,
        f"{LOSS}.entropyCoef": loss.entropy_coef,
        f"{LOSS}.constantDenominator": loss.constant_denominator,
        f"{LOSS}.m2Threshold": loss.m2_threshold,
        "algorithm.rewards.clip": algorithm.rewards.clip,
        "algorithm.rewards.overlong.factor": None if overlong is None else overlong.factor,
        "algorithm.critic.valueClip": None if critic is None else critic.value_clip,
        "algorithm.critic.vfCoef": None if critic is None else critic.vf_coef,
    }
    for path, value in never_negative.items():
        if value is not None and number(value) < 0:
            yield refuse(path, value, "it must not be negative")
    yield from _gae_out_of_range(spec)
    if loss.constant_denominator is not None and number(loss.constant_denominator) == 0:
        yield refuse(
            f"{LOSS}.constantDenominator", loss.constant_denominator, "it is divided by: use a number of tokens"
        )


def _gae_out_of_range(spec: JobSpec) -> Iterator[str]:
    gae, decay = spec.algorithm.gae, effective.decay(spec)
    if gae.gamma is not None and not 0 <= number(gae.gamma) <= 1:
        yield refuse("algorithm.gae.gamma", gae.gamma, "a discount lies between 0 and 1")
    if gae.lambda_ is None:
        return
    if decay.kind == "vapo" and decay.value <= 0:
        yield refuse("algorithm.gae.lambda", gae.lambda_, 'alpha must be above 0: "vapo{0.05}" is usual')
    elif decay.kind != "vapo" and not 0 <= decay.value <= 1:
        yield refuse("algorithm.gae.lambda", gae.lambda_, "a trace decay lies between 0 and 1")


def constant_denominator_without_constant(spec: JobSpec) -> Iterator[str]:
    """Row 16."""
    loss = spec.algorithm.loss
    if loss.constant_denominator is not None and effective.aggregation(spec) != "constant":
        yield ignored(
            f"{LOSS}.constantDenominator", loss.constant_denominator, f"aggregation is '{effective.aggregation(spec)}'"
        )
