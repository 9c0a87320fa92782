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
    with_parts,
)

Level = Literal["Token", "Sequence"]
Metric = Literal["Ratio", "K1", "K2", "K3", "BinaryKL"]
Agg = Literal["Mean", "Sum", "Max"]
Surrogate = Literal["ppo", "gspo", "cispo", "sapo", "reinforce", "custom"]


class RejectSpec(Section):
    """A second filter that always masks what is out of its bounds."""

    level: Level = Field(default="Token", description="Whether tokens or whole rows are judged.")
    metric: Metric = Field(default="Ratio", description="Statistic that is compared with the bounds.")
    agg: Agg | None = Field(
        default=None, description="How a row's statistic is made of its tokens'; level Sequence only."
    )
    low: Decimal | None = Field(default=None, description="Lower bound, inclusive; open if unset.")
    high: Decimal | None = Field(default=None, description="Upper bound, inclusive; open if unset.")
    advantages: Literal["All", "Negative"] = Field(
        default="All", description="Tokens that may be masked; Negative: those with an advantage below 0."
    )

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

    level: Level = Field(default="Token", description="Whether tokens or whole rows are weighted and judged.")
    mode: Literal["None", "Truncate", "Mask"] = Field(
        default="Truncate",
        description="None: uncapped weight; Truncate: weight clamped; Mask: out of bounds is left out.",
    )
    metric: Metric = Field(default="Ratio", description="Statistic that is compared with the bounds.")
    agg: Agg | None = Field(
        default=None, description="How a row's statistic is made of its tokens'; level Sequence only."
    )
    low: Decimal | None = Field(default=None, description="Lower bound, inclusive; open if unset.")
    high: Decimal | None = Field(
        default_factory=lambda fields: Decimal("2") if fields["mode"] == "Truncate" else None,
        description="Upper bound, inclusive. Default: 2 with Truncate, else open.",
    )
    weighting: Literal["Ratio", "None"] = Field(
        default_factory=lambda: "Ratio",
        description="Ratio: the loss carries the importance weight; None: rejection only. Default: Ratio.",
    )
    batch_normalize: bool = Field(default=False, description="Divide weights by their mean over the step.")
    reject: RejectSpec | None = Field(default=None, description="A second filter that always masks.")

    @rule(
        CelRule(
            field="mode",
            rule="self.mode != 'Truncate'"
            " || (self.metric == 'Ratio' && (!has(self.weighting) || self.weighting == 'Ratio'))",
            message="mode Truncate clamps the ratio as a weight: use metric Ratio and weighting Ratio, or mode Mask",
        ),
        CelRule(
            field="mode",
            rule="self.mode != 'None' || (!has(self.low) && !has(self.high))",
            message="mode None has no bounds: leave low and high out",
        ),
    )
    def mode_reads_what_is_written(self) -> Iterator[Problem]:
        if self.mode == "Truncate" and self.metric != "Ratio":
            yield "metric", self.metric, "mode Truncate clamps the ratio itself: use Ratio, or mode: Mask"
        if self.mode == "Truncate" and self.weighting == "None":
            yield "weighting", "None", "mode Truncate clamps the weight: use Ratio, or mode: Mask"
        if self.mode == "None" and (self.low is not None or self.high is not None):
            key, value = ("high", self.high) if self.high is not None else ("low", self.low)
            yield key, value, no_effect("mode is 'None', which has no bounds")
        if self.mode == "Mask" and self.low is None and self.high is None:
            yield "mode", "Mask", "neither low nor high is set, so nothing would be masked: set one"

    @rule(
        CelRule(
            field="agg",
            rule="(self.level == 'Sequence') == has(self.agg)",
            message="agg is needed at level Sequence and ignored at level Token",
        ),
    )
    def aggregate_is_at_the_level_of_rows(self) -> Iterator[Problem]:
        yield from _aggregate(self)
        if (self.level, self.agg, self.metric, self.weighting) == ("Sequence", "Max", "Ratio", "Ratio"):
            yield "agg", "Max", "the largest ratio of a row is not a weight: use Mean or Sum, or weighting: None"

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
    if block.level == "Token" and block.agg is not None:
        yield "agg", block.agg, no_effect("level is 'Token', where nothing is aggregated")
    if block.level == "Sequence" and block.agg is None:
        yield "level", "Sequence", "agg is not set: choose Mean, Sum or Max"


def _bounds(block: CorrectionSpec | RejectSpec) -> Iterator[Problem]:
    low, high = block.low, block.high
    if block.metric == "Ratio":
        if high is not None and high <= 1:
            yield "high", high, 'an upper bound of a ratio must be above 1: "2" is usual'
        if low is not None and low <= 0:
            yield "low", low, "a ratio is always above 0: leave it out, or use a bound between 0 and 1"
        if low is not None and low >= 1:
            yield "low", low, 'a lower bound of a ratio must be below 1: "0.5" is usual'
    elif block.metric != "K1":
        if low is not None:
            yield "low", low, f"metric {block.metric} is never negative and has no lower bound: leave it out"
        if high is not None and high <= 0:
            yield "high", high, f"metric {block.metric} needs an upper bound above 0"
    if low is not None and high is not None and block.is_written("high") and low > high:
        yield "low", low, f"it is above high '{high}', so nothing would be kept"
    if block.metric == "BinaryKL" and block.level == "Sequence":
        yield "metric", "BinaryKL", "it is defined for single tokens: use level: Token, or K3"


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
    return None if fields["proximal"] == "Behavior" else CorrectionSpec()


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
    proximal: Literal["Recompute", "Reuse", "LogLinear", "Behavior"] = Field(
        default_factory=lambda: "Recompute",
        description="Policy that the clip band is centred on. Default: Behavior with type ppo where samples may be old"
        " (async.maxOffPolicySteps above 0) and a step makes one update, else Recompute.",
    )
    aggregation: Literal["TokenMean", "SequenceMean", "Constant"] = Field(
        default_factory=lambda fields: "SequenceMean" if fields["type"] == "gspo" else "TokenMean",
        description="How token losses become one number. Default: TokenMean; SequenceMean with gspo.",
    )
    # The job fills in the default.
    constant_denominator: Decimal = Field(
        default_factory=lambda: Decimal("1"),
        description="Denominator of aggregation Constant, tokens. Default: rollout.sampling.maxTokens.",
    )
    kl_coef: Decimal = Field(
        default=Decimal("0"), description="Coefficient of the KL term to the reference model; 0: no such term."
    )
    kl_placement: Literal["Loss", "Reward"] = Field(
        default_factory=lambda: "Loss",
        description="Whether the KL term is part of the loss or of the reward. Default: Loss.",
    )
    kl_estimator: Literal["K1", "K2", "K3"] = Field(
        default_factory=lambda fields: "K1" if fields["kl_placement"] == "Reward" else "K3",
        description="KL estimator. Default: K3 in the loss, K1 in the reward.",
    )
    entropy_coef: Decimal = Field(
        default=Decimal("0"), description="Coefficient of the entropy bonus; with entropy.target its first value."
    )
    rollout_correction: CorrectionSpec | None = Field(
        default_factory=_correction,
        description="Correction for staleness and engine mismatch."
        " Default: Token, Truncate, Ratio, high 2; none with Behavior.",
    )

    def centred(self, *, samples_may_be_old: bool, updates_per_step: int) -> "LossSpec":
        """Return the loss with the default of `proximal`, which depends on other sections.

        The one update of a step is made at the very policy that Recompute centres the band on, so nothing would bound
        what old samples do (docs/learning.md). What is written, or needs another centre, decides instead.
        """
        decided = self.is_written("proximal") or self.is_written("rollout_correction")
        elsewhere = self.type != "ppo" or self.m2_threshold is not None or self.kl_in_reward
        if decided or elsewhere or updates_per_step > 1 or not samples_may_be_old:
            return self
        return with_parts(self, proximal="Behavior", rollout_correction=None)

    @property
    def kl_in_reward(self) -> bool:
        """Whether rewards of tokens hold a KL term."""
        return self.kl_coef > 0 and self.kl_placement == "Reward"

    @property
    def normalizes_weights(self) -> bool:
        """Whether weights of the correction are divided by their mean over the step."""
        return self.rollout_correction is not None and self.rollout_correction.batch_normalize

    def unused(self) -> Mapping[str, str]:
        """Return what the surrogate, the aggregation and the KL coefficient leave unread."""
        unread = dict.fromkeys(_UNREAD[self.type], f"loss.type {self.type} does not use it")
        if self.kl_coef == 0.0:
            unread |= dict.fromkeys(("klEstimator", "klPlacement"), "spec.algorithm.loss.klCoef is 0")
        if self.aggregation != "Constant":
            unread["constantDenominator"] = f"aggregation is '{self.aggregation}'"
        if self.proximal == "Behavior":
            unread["rolloutCorrection"] = "proximal is 'Behavior', where the weight is always 1"
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
            rule="!has(self.klEstimator) || self.klEstimator != 'K1'"
            " || (has(self.klPlacement) && self.klPlacement == 'Reward')",
            message="K1 in the loss has zero expected gradient: use K3 or K2, or klPlacement Reward",
        ),
    )
    def estimator_has_a_gradient(self) -> Iterator[Problem]:
        """The expected gradient of k1 in the loss is zero."""
        if self.is_written("kl_estimator") and self.kl_estimator == "K1" and self.kl_placement == "Loss":
            because = "klPlacement is 'Loss', where K1 has zero expected gradient: use K3 or K2, or klPlacement: Reward"
            yield "klEstimator", "K1", because

    @rule(
        CelRule(
            field="klCoef",
            rule="double(self.klCoef) > 0.0 || (!has(self.klEstimator) && !has(self.klPlacement))",
            message="klEstimator and klPlacement are ignored when klCoef is 0: leave them out",
        ),
        CelRule(
            field="rolloutCorrection",
            reason=FORBIDDEN,
            rule="!has(self.proximal) || self.proximal != 'Behavior' || !has(self.rolloutCorrection)",
            message="with proximal Behavior the weight is always 1: leave rolloutCorrection out",
        ),
        CelRule(
            field="constantDenominator",
            reason=FORBIDDEN,
            rule="!has(self.constantDenominator) || (has(self.aggregation) && self.aggregation == 'Constant')",
            message="constantDenominator is for aggregation Constant: leave it out",
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
            rule="self.type != 'gspo' || !has(self.aggregation) || self.aggregation == 'SequenceMean'",
            message="loss.type gspo averages over rows: use SequenceMean",
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
        if self.type == "gspo" and self.aggregation != "SequenceMean":
            yield "aggregation", self.aggregation, "loss.type gspo averages over rows: use SequenceMean"

    @rule()
    def proximal_policy_is_there_before_the_split(self) -> Iterator[Problem]:
        """Statistics over the step need the proximal policy before the batch is split into minibatches."""
        before = "which needs the proximal policy before the batch is split: use proximal: Recompute"
        if self.proximal in ("LogLinear", "Reuse"):
            if self.m2_threshold is not None:
                yield "proximal", self.proximal, f"m2Threshold is '{self.m2_threshold}', {before}"
            if self.normalizes_weights:
                yield "proximal", self.proximal, f"rolloutCorrection.batchNormalize is true, {before}"
            if self.kl_in_reward:
                yield "proximal", self.proximal, f"klPlacement is 'Reward', {before}"
        if self.type == "reinforce" and self.normalizes_weights:
            because = "loss.type is 'reinforce', which has no proximal policy: use false"
            yield "rolloutCorrection.batchNormalize", True, because
