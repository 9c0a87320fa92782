"""`spec.algorithm.loss`: the policy loss (docs/design/algorithms.md#s-6)."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from rljob_api.manifest.base import (
    FORBIDDEN,
    FREE,
    REQUIRED,
    CelRule,
    Config,
    Decimal,
    Problem,
    Section,
    no_effect,
    rule,
)

Level = Literal["token", "sequence"]
Metric = Literal["ratio", "k1", "k2", "k3", "binaryKl"]
Agg = Literal["mean", "sum", "max"]
Surrogate = Literal["ppo", "gspo", "cispo", "sapo", "reinforce", "custom"]


class RejectSpec(Section):
    """A second filter that always masks what is out of its bounds."""

    level: Level = Field(default="token", description="Whether tokens or whole rows are judged.")
    metric: Metric = Field(default="ratio", description="Statistic that is compared with the bounds.")
    agg: Agg | None = Field(
        default=None, description="How a row's statistic is made of its tokens'; level sequence only."
    )
    low: Decimal | None = Field(default=None, description="Lower bound, inclusive; open if unset.")
    high: Decimal | None = Field(default=None, description="Upper bound, inclusive; open if unset.")

    @rule()
    def masks_something(self) -> Iterator[Problem]:
        """A filter that always masks has a bound."""
        if self.low is None and self.high is None:
            yield "", self, "neither low nor high is set, so nothing would be masked: set one"

    @rule()
    def bounds_have_a_meaning(self) -> Iterator[Problem]:
        yield from _bounds(self)

    @rule()
    def aggregate_is_at_the_level_of_rows(self) -> Iterator[Problem]:
        """At sequence level there is no statistic without agg, at token level none with it."""
        yield from _aggregate(self)


class CorrectionSpec(Section):
    """Weight between the policy that sampled and the one at the start of the step (proximal / behavior)."""

    level: Level = Field(default="token", description="Whether tokens or whole rows are weighted and judged.")
    mode: Literal["none", "truncate", "mask"] = Field(
        default="truncate",
        description="none: uncapped weight; truncate: weight clamped; mask: out of bounds is left out.",
    )
    metric: Metric = Field(default="ratio", description="Statistic that is compared with the bounds.")
    agg: Agg | None = Field(
        default=None, description="How a row's statistic is made of its tokens'; level sequence only."
    )
    low: Decimal | None = Field(default=None, description="Lower bound, inclusive; open if unset.")
    high: Decimal | None = Field(
        default_factory=lambda fields: Decimal("2") if fields["mode"] == "truncate" else None,
        description="Upper bound, inclusive. Default: 2 with truncate, else open.",
    )
    weighting: Literal["ratio", "none"] = Field(
        default_factory=lambda: "ratio",
        description="ratio: the loss carries the importance weight; none: rejection only. Default: ratio.",
    )
    batch_normalize: bool = Field(default=False, description="Divide weights by their mean over the step.")
    reject: RejectSpec | None = Field(default=None, description="A second filter that always masks.")

    @rule(
        CelRule(
            field="mode",
            rule="self.mode != 'truncate'"
            " || (self.metric == 'ratio' && (!has(self.weighting) || self.weighting == 'ratio'))",
            message="mode truncate clamps the ratio as a weight: use metric ratio and weighting ratio, or mode mask",
        ),
        CelRule(
            field="mode",
            rule="self.mode != 'none' || (!has(self.low) && !has(self.high))",
            message="mode none has no bounds: leave low and high out",
        ),
    )
    def mode_reads_what_is_written(self) -> Iterator[Problem]:
        if self.mode == "truncate" and self.metric != "ratio":
            yield "metric", self.metric, "mode truncate clamps the ratio itself: use ratio, or mode: mask"
        if self.mode == "truncate" and self.weighting == "none":
            yield "weighting", "none", "mode truncate clamps the weight: use ratio, or mode: mask"
        if self.mode == "none" and (self.low is not None or self.high is not None):
            key, value = ("high", self.high) if self.high is not None else ("low", self.low)
            yield key, value, no_effect("mode is 'none', which has no bounds")
        if self.mode == "mask" and self.low is None and self.high is None:
            yield "mode", "mask", "neither low nor high is set, so nothing would be masked: set one"

    @rule(
        CelRule(
            field="agg",
            rule="(self.level == 'sequence') == has(self.agg)",
            message="agg is needed at level sequence and ignored at level token",
        ),
    )
    def aggregate_is_at_the_level_of_rows(self) -> Iterator[Problem]:
        yield from _aggregate(self)
        if (self.level, self.agg, self.metric, self.weighting) == ("sequence", "max", "ratio", "ratio"):
            yield "agg", "max", "the largest ratio of a row is not a weight: use mean or sum, or weighting: none"

    @rule(
        CelRule(
            field="low",
            rule="!has(self.low) || !has(self.high) || double(self.low) <= double(self.high)",
            message="low must be at most high",
        ),
    )
    def bounds_have_a_meaning(self) -> Iterator[Problem]:
        yield from _bounds(self)


def _aggregate(block: CorrectionSpec | RejectSpec) -> Iterator[Problem]:
    if block.level == "token" and block.agg is not None:
        yield "agg", block.agg, no_effect("level is 'token', where nothing is aggregated")
    if block.level == "sequence" and block.agg is None:
        yield "level", "sequence", "agg is not set: choose mean, sum or max"


def _bounds(block: CorrectionSpec | RejectSpec) -> Iterator[Problem]:
    low, high = block.low, block.high
    if block.metric == "ratio":
        if high is not None and high <= 1:
            yield "high", high, 'an upper bound of a ratio must be above 1: "2" is usual'
        if low is not None and low <= 0:
            yield "low", low, "a ratio is always above 0: leave it out, or use a bound between 0 and 1"
        if low is not None and low >= 1:
            yield "low", low, 'a lower bound of a ratio must be below 1: "0.5" is usual'
    elif block.metric != "k1":
        if low is not None:
            yield "low", low, f"metric {block.metric} is never negative and has no lower bound: leave it out"
        if high is not None and high <= 0:
            yield "high", high, f"metric {block.metric} needs an upper bound above 0"
    if low is not None and high is not None and block.is_written("high") and low > high:
        yield "low", low, f"it is above high '{high}', so nothing would be kept"
    if block.metric == "binaryKl" and block.level == "sequence":
        yield "metric", "binaryKl", "it is defined for single tokens: use level: token, or k3"


# Fields that a surrogate does not read.
_UNREAD: Mapping[Surrogate, tuple[str, ...]] = {
    "ppo": ("tauPos", "tauNeg"),
    "gspo": ("dualClip", "m2Threshold", "tauPos", "tauNeg"),
    "cispo": ("dualClip", "m2Threshold", "tauPos", "tauNeg"),
    "sapo": ("clipLow", "clipHigh", "dualClip", "m2Threshold"),
    "custom": ("dualClip", "m2Threshold", "tauPos", "tauNeg"),
    "reinforce": ("clipLow", "clipHigh", "dualClip", "proximal", "m2Threshold", "tauPos", "tauNeg"),
}


def _correction(fields: dict[str, Any]) -> CorrectionSpec | None:
    return None if fields["proximal"] == "behavior" else CorrectionSpec()


class LossSpec(Section):
    """The policy loss."""

    type: Surrogate = Field(default="ppo", description="The policy loss; custom: that of an installed package.")
    name: str | None = Field(
        default=None, max_length=128, description="custom: name of an entry point of the group rljob.losses."
    )
    config: Config = Field(
        default={}, max_length=64, json_schema_extra=FREE, description="custom: options that the loss reads."
    )
    clip_low: Decimal = Field(
        default_factory=lambda: Decimal("0.2"), description="Lower width of the clip band. Default: 0.2."
    )
    clip_high: Decimal = Field(
        default_factory=lambda fields: fields["clip_low"],
        description="Upper width of the clip band. Default: clipLow.",
    )
    dual_clip: Decimal | None = Field(
        default=None, description="Cap on the loss of negative advantages, above 1; off if unset."
    )
    tau_pos: Decimal = Field(
        default_factory=lambda: Decimal("1.0"),
        description="sapo: temperature for positive advantages. Default: 1.0.",
    )
    tau_neg: Decimal = Field(
        default_factory=lambda: Decimal("1.05"), description="sapo: temperature for other advantages. Default: 1.05."
    )
    m2_threshold: Decimal | None = Field(
        default=None, description="M2PO: bound on the mean squared log-ratio, nats squared; off if unset."
    )
    proximal: Literal["recompute", "reuse", "loglinear", "behavior"] = Field(
        default_factory=lambda: "recompute",
        description="Policy that the clip band is centred on. Default: recompute.",
    )
    aggregation: Literal["tokenMean", "sequenceMean", "constant"] = Field(
        default_factory=lambda fields: "sequenceMean" if fields["type"] == "gspo" else "tokenMean",
        description="How token losses become one number. Default: tokenMean; sequenceMean with gspo.",
    )
    # The job fills in the default.
    constant_denominator: Decimal = Field(
        default_factory=lambda: Decimal("1"),
        description="Denominator of aggregation constant, tokens. Default: rollout.sampling.maxTokens.",
    )
    kl_coef: Decimal = Field(
        default=Decimal("0"), description="Coefficient of the KL term to the reference model; 0: no such term."
    )
    kl_placement: Literal["loss", "reward"] = Field(
        default_factory=lambda: "loss",
        description="Whether the KL term is part of the loss or of the reward. Default: loss.",
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        default_factory=lambda fields: "k1" if fields["kl_placement"] == "reward" else "k3",
        description="KL estimator. Default: k3 in the loss, k1 in the reward.",
    )
    entropy_coef: Decimal = Field(
        default=Decimal("0"), description="Coefficient of the entropy bonus (entropy in nats)."
    )
    rollout_correction: CorrectionSpec | None = Field(
        default_factory=_correction,
        description="Correction for staleness and engine mismatch."
        " Default: token, truncate, ratio, high 2; none with behavior.",
    )

    @property
    def kl_in_reward(self) -> bool:
        """Whether rewards of tokens hold a KL term."""
        return self.kl_coef > 0 and self.kl_placement == "reward"

    @property
    def normalizes_weights(self) -> bool:
        """Whether weights of the correction are divided by their mean over the step."""
        return self.rollout_correction is not None and self.rollout_correction.batch_normalize

    def unused(self) -> Mapping[str, str]:
        """Return what the surrogate, the aggregation and the KL coefficient leave unread."""
        unread = dict.fromkeys(_UNREAD[self.type], f"loss.type {self.type} does not use it")
        if self.kl_coef == 0.0:
            unread |= dict.fromkeys(("klEstimator", "klPlacement"), "spec.algorithm.loss.klCoef is 0")
        if self.aggregation != "constant":
            unread["constantDenominator"] = f"aggregation is '{self.aggregation}'"
        if self.proximal == "behavior":
            unread["rolloutCorrection"] = "proximal is 'behavior', where the weight is always 1"
        return unread

    @rule(
        CelRule(
            field="name",
            rule="(self.type == 'custom') == has(self.name)",
            message="loss.type custom has a name, and no other type has one",
        ),
    )
    def a_custom_loss_has_a_name(self) -> Iterator[Problem]:
        """A loss of an installed package is found by its name."""
        if self.type == "custom" and self.name is None:
            yield "name", None, "loss.type custom needs one: an entry point of the group rljob.losses"
        if self.type != "custom" and self.name is not None:
            yield "name", self.name, no_effect(f"loss.type is '{self.type}'")
        if self.type != "custom" and self.config:
            yield "config", dict(self.config), no_effect(f"loss.type is '{self.type}'")

    @rule(
        CelRule(
            field="klEstimator",
            reason=FORBIDDEN,
            rule="!has(self.klEstimator) || self.klEstimator != 'k1'"
            " || (has(self.klPlacement) && self.klPlacement == 'reward')",
            message="k1 in the loss has zero expected gradient: use k3 or k2, or klPlacement reward",
        ),
    )
    def estimator_has_a_gradient(self) -> Iterator[Problem]:
        """The expected gradient of k1 in the loss is zero."""
        if self.is_written("kl_estimator") and self.kl_estimator == "k1" and self.kl_placement == "loss":
            because = "klPlacement is 'loss', where k1 has zero expected gradient: use k3 or k2, or klPlacement: reward"
            yield "klEstimator", "k1", because

    @rule(
        CelRule(
            field="klCoef",
            rule="double(self.klCoef) > 0.0 || (!has(self.klEstimator) && !has(self.klPlacement))",
            message="klEstimator and klPlacement are ignored when klCoef is 0: leave them out",
        ),
        CelRule(
            field="rolloutCorrection",
            reason=FORBIDDEN,
            rule="!has(self.proximal) || self.proximal != 'behavior' || !has(self.rolloutCorrection)",
            message="with proximal behavior the weight is always 1: leave rolloutCorrection out",
        ),
        CelRule(
            field="constantDenominator",
            reason=FORBIDDEN,
            rule="!has(self.constantDenominator) || (has(self.aggregation) && self.aggregation == 'constant')",
            message="constantDenominator is for aggregation constant: leave it out",
        ),
        CelRule(
            field="dualClip",
            rule="!has(self.dualClip) || double(self.dualClip) > 1.0",
            message='dualClip must be above 1: "3.0" is usual',
        ),
        CelRule(
            field="clipLow",
            rule="!has(self.clipLow) || (double(self.clipLow) >= 0.0 && double(self.clipLow) <= 1.0)",
            message="clipLow must be from 0 to 1",
        ),
        CelRule(
            field="clipHigh",
            rule="!has(self.clipHigh) || double(self.clipHigh) >= 0.0",
            message="clipHigh must not be negative",
        ),
        CelRule(
            field="type",
            rule="self.type == 'sapo' || (!has(self.tauPos) && !has(self.tauNeg))",
            message="tauPos and tauNeg are for loss.type sapo: leave them out",
        ),
        CelRule(
            field="type",
            rule="self.type == 'ppo' || (!has(self.dualClip) && !has(self.m2Threshold))",
            message="dualClip and m2Threshold are for loss.type ppo: leave them out",
        ),
        CelRule(
            field="type",
            rule="!(self.type in ['sapo', 'reinforce']) || (!has(self.clipLow) && !has(self.clipHigh))",
            message="this loss.type has no clip band: leave clipLow and clipHigh out",
        ),
        CelRule(
            field="clipHigh",
            reason=REQUIRED,
            rule="self.type != 'cispo' || (has(self.clipHigh) && double(self.clipHigh) > 0.0)",
            message='loss.type cispo needs clipHigh above 0: "4.0" is usual',
        ),
    )
    def numbers_are_in_range(self) -> Iterator[Problem]:
        if self.dual_clip is not None and self.dual_clip <= 1:
            yield "dualClip", self.dual_clip, 'it caps ratios above 1 and must be above 1: "3.0" is usual'
        if self.clip_low > 1:
            yield "clipLow", self.clip_low, 'a ratio cannot fall by more than 1: use at most "1"'
        for key, value in (
            ("clipLow", self.clip_low),
            ("clipHigh", self.clip_high if self.is_written("clip_high") else 0.0),
            ("klCoef", self.kl_coef),
            ("entropyCoef", self.entropy_coef),
            ("constantDenominator", self.constant_denominator),
            ("m2Threshold", self.m2_threshold or 0.0),
        ):
            if value < 0:
                yield key, value, "it must not be negative"
        if self.constant_denominator == 0.0:
            yield "constantDenominator", self.constant_denominator, "it is divided by: use a number of tokens"
        if self.type == "cispo" and (not self.is_written("clip_high") or self.clip_high <= 0):
            written = self.clip_high if self.is_written("clip_high") else None
            yield "clipHigh", written, 'loss.type cispo needs one above 0: "4.0" is usual'
        for key, tau in (("tauPos", self.tau_pos), ("tauNeg", self.tau_neg)):
            if self.type == "sapo" and tau <= 0:
                yield key, tau, "a temperature must be above 0"

    @rule(
        CelRule(
            field="aggregation",
            rule="self.type != 'gspo' || !has(self.aggregation) || self.aggregation == 'sequenceMean'",
            message="loss.type gspo averages over rows: use sequenceMean",
        ),
        CelRule(
            field="proximal",
            reason=FORBIDDEN,
            rule="self.type != 'reinforce' || !has(self.proximal)",
            message="loss.type reinforce has no proximal policy: leave it out",
        ),
    )
    def rows_are_averaged_as_the_surrogate_does(self) -> Iterator[Problem]:
        """Gspo is a loss of whole rows."""
        if self.type == "gspo" and self.aggregation != "sequenceMean":
            yield "aggregation", self.aggregation, "loss.type gspo averages over rows: use sequenceMean"

    @rule()
    def proximal_policy_is_there_before_the_split(self) -> Iterator[Problem]:
        """Statistics over the step need the proximal policy before the batch is split into minibatches."""
        before = "which needs the proximal policy before the batch is split: use proximal: recompute"
        if self.proximal in ("loglinear", "reuse"):
            if self.m2_threshold is not None:
                yield "proximal", self.proximal, f"m2Threshold is '{self.m2_threshold}', {before}"
            if self.normalizes_weights:
                yield "proximal", self.proximal, f"rolloutCorrection.batchNormalize is true, {before}"
            if self.kl_in_reward:
                yield "proximal", self.proximal, f"klPlacement is 'reward', {before}"
        if self.type == "reinforce" and self.normalizes_weights:
            because = "loss.type is 'reinforce', which has no proximal policy: use false"
            yield "rolloutCorrection.batchNormalize", True, because
