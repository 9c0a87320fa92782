"""`spec.algorithm.loss`: the policy loss (algorithms reference, section 6)."""

from typing import Literal

from pydantic import Field

from rljob_api.manifest.base import Decimal, Section

Level = Literal["token", "sequence"]
Metric = Literal["ratio", "k1", "k2", "k3", "binaryKl"]
Agg = Literal["mean", "sum", "max"]


class RejectSpec(Section):
    """A second filter that always masks what is out of its bounds."""

    level: Level = Field(default="token", description="Whether tokens or whole rows are judged.")
    metric: Metric = Field(default="ratio", description="Statistic that is compared with the bounds.")
    agg: Agg | None = Field(
        default=None, description="How a row's statistic is made of its tokens'; level sequence only."
    )
    low: Decimal | None = Field(default=None, description="Lower bound, inclusive; open if unset.")
    high: Decimal | None = Field(default=None, description="Upper bound, inclusive; open if unset.")


class CorrectionSpec(Section):
    """Weight between the policy that sampled and the one at the start of the step (rho = prox / behave)."""

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
        default=None, description="Upper bound, inclusive. Default: 2 with truncate, else open."
    )
    weighting: Literal["ratio", "none"] | None = Field(
        default=None, description="ratio: the loss carries the weight rho; none: rejection only. Default: ratio."
    )
    batch_normalize: bool = Field(default=False, description="Divide weights by their mean over the step.")
    reject: RejectSpec | None = Field(default=None, description="A second filter that always masks.")


class LossSpec(Section):
    """The policy loss."""

    type: Literal["ppo", "gspo", "cispo", "sapo", "reinforce"] = Field(default="ppo", description="The surrogate.")
    clip_low: Decimal | None = Field(default=None, description="Lower width of the clip band. Default: 0.2.")
    clip_high: Decimal | None = Field(default=None, description="Upper width of the clip band. Default: clipLow.")
    dual_clip: Decimal | None = Field(
        default=None, description="Cap on the loss of negative advantages, above 1; off if unset."
    )
    tau_pos: Decimal | None = Field(
        default=None, description="sapo: temperature for positive advantages. Default: 1.0."
    )
    tau_neg: Decimal | None = Field(default=None, description="sapo: temperature for other advantages. Default: 1.05.")
    m2_threshold: Decimal | None = Field(
        default=None, description="M2PO: bound on the mean squared log-ratio, nats squared; off if unset."
    )
    proximal: Literal["recompute", "reuse", "loglinear", "behaviour"] | None = Field(
        default=None, description="Policy that the clip band is centred on. Default: recompute."
    )
    aggregation: Literal["tokenMean", "sequenceMean", "constant"] | None = Field(
        default=None, description="How token losses become one number. Default: tokenMean; sequenceMean with gspo."
    )
    constant_denominator: Decimal | None = Field(
        default=None, description="Denominator of aggregation constant, tokens. Default: rollout.sampling.maxTokens."
    )
    kl_coef: Decimal = Field(
        default="0", description="Coefficient of the KL term to the reference model; 0: no such term."
    )
    kl_estimator: Literal["k1", "k2", "k3"] | None = Field(
        default=None, description="KL estimator. Default: k3 in the loss, k1 in the reward."
    )
    kl_placement: Literal["loss", "reward"] | None = Field(
        default=None, description="Whether the KL term is part of the loss or of the reward. Default: loss."
    )
    entropy_coef: Decimal = Field(default="0", description="Coefficient of the entropy bonus (entropy in nats).")
    rollout_correction: CorrectionSpec | None = Field(
        default=None,
        description="Correction for staleness and engine mismatch."
        " Default: token, truncate, ratio, high 2; none with behaviour.",
    )
