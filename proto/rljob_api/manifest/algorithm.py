"""`spec.algorithm`: rewards, advantages and how many samples make a step (docs/design/algorithms.md#s-5)."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from rljob_api.manifest.base import (
    FORBIDDEN,
    LAMBDA_PATTERN,
    CelRule,
    Decimal,
    Problem,
    Section,
    filled,
    no_effect,
    rule,
)
from rljob_api.manifest.loss import LossSpec

Lambda = Annotated[str, StringConstraints(pattern=LAMBDA_PATTERN, max_length=48)]
Estimator = Literal["grpo", "drgrpo", "rloo", "liteppo", "reinforcepp", "reinforceppBaseline", "ppo"]

# Those that look at single tokens: they discount over time and normalise over tokens (docs/design/algorithms.md#s-5-1).
TOKEN_ESTIMATORS = ("reinforcepp", "reinforceppBaseline", "ppo")


class OverlongSpec(Section):
    """DAPO's length penalty: r += min(0, -(n - (maxTokens - tailTokens)) / tailTokens x factor)."""

    max_tokens: int = Field(ge=1, le=10_000_000, description="Length at which the whole penalty is due, tokens.")
    tail_tokens: int = Field(ge=1, le=10_000_000, description="Tokens before maxTokens over which the penalty grows.")
    factor: Decimal = Field(default=Decimal("1"), description="Largest penalty, in units of raw reward.")

    @rule(
        CelRule(
            field="tailTokens",
            rule="self.tailTokens <= self.maxTokens",
            message="tailTokens must be at most maxTokens",
        ),
    )
    def tail_is_a_part(self) -> Iterator[Problem]:
        if self.tail_tokens > self.max_tokens:
            yield "tailTokens", self.tail_tokens, f"it is above maxTokens {self.max_tokens}"

    @rule()
    def factor_is_a_penalty(self) -> Iterator[Problem]:
        """A negative penalty would reward length."""
        if self.factor < 0:
            yield "factor", self.factor, "it must not be negative"


class RewardsSpec(Section):
    """r' = clamp((r + bias) x scale, -clip, +clip), after the overlong penalty."""

    scale: Decimal = Field(default=Decimal("1"), description="Factor on (reward + bias).")
    bias: Decimal = Field(default=Decimal("0"), description="Added to the raw reward before scaling.")
    clip: Decimal | None = Field(
        default_factory=lambda: Decimal("20"),
        description="Bound on the absolute shaped reward. Default: 20; none where the workflow shapes rewards.",
    )
    overlong: OverlongSpec | None = Field(default=None, description="Length penalty on the raw reward; off if unset.")

    @rule()
    def clip_is_a_bound(self) -> Iterator[Problem]:
        """The bound is on an absolute value."""
        if self.clip is not None and self.clip < 0:
            yield "clip", self.clip, "it must not be negative"


class NormalizeSpec(Section):
    """x' = (x - mean) / (std + eps). A block that is written replaces the estimator's preset as a whole."""

    mean: Literal["Group", "Batch", "None"] = Field(description="Level of the mean that is subtracted.")
    std: Literal["Group", "Batch", "None"] = Field(description="Level of the standard deviation that is divided by.")
    leave_one_out: bool = Field(default=False, description="Leave the value itself out of its mean.")
    unbiased: bool = Field(default_factory=lambda: True, description="Divide squares by n - 1. Default: true.")
    eps: Decimal = Field(
        default_factory=lambda: Decimal("1e-6"), description="Added to the standard deviation. Default: 1e-6."
    )
    std_center: Literal["Subtracted", "Own"] = Field(
        default_factory=lambda: "Subtracted",
        description="Deviation from the subtracted mean, or from the mean at std's own level. Default: Subtracted.",
    )

    @property
    def is_identity(self) -> bool:
        return self.mean == self.std == "None"

    def unused(self) -> Mapping[str, str]:
        """Return what belongs to a standard deviation that nothing is divided by."""
        if self.std != "None":
            return {}
        return dict.fromkeys(("unbiased", "eps", "stdCenter"), "std is 'None'")

    @rule(
        CelRule(
            field="leaveOneOut",
            reason=FORBIDDEN,
            rule="!self.leaveOneOut || self.mean != 'None'",
            message="leaveOneOut is ignored with mean None: use false",
        ),
        CelRule(
            field="std",
            rule="self.std != 'None' || (!has(self.unbiased) && !has(self.eps) && !has(self.stdCenter))",
            message="unbiased, eps and stdCenter are ignored with std None: leave them out",
        ),
    )
    def leaves_one_out_of_something(self) -> Iterator[Problem]:
        if self.leave_one_out and self.mean == "None":
            yield "leaveOneOut", True, no_effect("mean is 'None'")


def _preset(**values: object) -> NormalizeSpec:
    return NormalizeSpec.model_validate(values)


# What each estimator does to shaped rewards, over rows (docs/design/algorithms.md#s-5-1).
REWARD_PRESETS: Mapping[Estimator, NormalizeSpec] = {
    "grpo": _preset(mean="Group", std="Group"),
    "drgrpo": _preset(mean="Group", std="None"),
    "rloo": _preset(mean="Group", std="None", leaveOneOut=True),
    "liteppo": _preset(mean="Group", std="Batch", stdCenter="Own"),
    "reinforcepp": _preset(mean="None", std="None"),
    "reinforceppBaseline": _preset(mean="Group", std="None"),
    "ppo": _preset(mean="None", std="None"),
}
WHITENING = _preset(mean="Batch", std="Batch")


def _advantage_preset(fields: dict[str, Any]) -> NormalizeSpec | None:
    return WHITENING if fields["advantage_estimator"] in TOKEN_ESTIMATORS else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decay:
    """Lambda of GAE: `value` itself, or by the steps L of a row: vapo max(0, 1 - 1 / (value L)), relativePosition
    value^(1 / (L - 1)).
    """

    kind: Literal["constant", "vapo", "relativePosition"] = "constant"
    value: float = 1.0


class GaeSpec(Section):
    """Generalised advantage estimation."""

    gamma: Decimal = Field(default_factory=lambda: Decimal("1.0"), description="Discount per unit. Default: 1.")
    lambda_: Lambda = Field(
        default_factory=lambda: "1.0",
        alias="lambda",
        description='Trace decay: a decimal, "vapo{alpha}" or "relativePosition{q}". Default: 1.',
    )
    unit: Literal["Token", "Turn"] = Field(
        default_factory=lambda: "Token", description="What one step of time is. Default: Token."
    )
    # The section above fills in the default.
    bootstrap_truncated: bool = Field(
        default_factory=lambda: False,
        description="Use the critic's value after a cut answer. Default: true unless zeroTruncated.",
    )

    @property
    def decay(self) -> Decay:
        """Lambda: a number or a rule that looks at a row's length."""
        name, _, argument = self.lambda_.partition("{")
        if not argument:
            return Decay(value=float(name))
        return Decay(kind="vapo" if name == "vapo" else "relativePosition", value=float(argument.removesuffix("}")))

    @rule()
    def discounts_are_in_range(self) -> Iterator[Problem]:
        decay = self.decay
        if not 0 <= self.gamma <= 1:
            yield "gamma", self.gamma, "a discount lies between 0 and 1"
        if decay.kind == "vapo" and decay.value <= 0:
            yield "lambda", self.lambda_, 'alpha must be above 0: "vapo{0.05}" is usual'
        elif decay.kind != "vapo" and not 0 <= decay.value <= 1:
            yield "lambda", self.lambda_, "a trace decay lies between 0 and 1"


class CriticSpec(Section):
    """The value model of estimator ppo (docs/design/algorithms.md#s-7); otherwise it learns as the policy does."""

    learning_rate: Decimal = Field(default=Decimal("9e-6"), description="AdamW learning rate of the critic.")
    value_clip: Decimal = Field(default=Decimal("0.5"), description="Clip width of a value around its old one.")
    vf_coef: Decimal = Field(default=Decimal("1"), description="Coefficient of the value loss.")
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000, description="First steps in which only the critic learns.")

    @rule()
    def numbers_are_in_range(self) -> Iterator[Problem]:
        for key, value in (("valueClip", self.value_clip), ("vfCoef", self.vf_coef)):
            if value < 0:
                yield key, value, "it must not be negative"


class EntropySpec(Section):
    """Exploration: a target of the entropy, and tokens of high entropy (docs/design/algorithms.md#s-6-6)."""

    target: Decimal | None = Field(
        default=None,
        description="Nats a token: below, loss.entropyCoef rises by delta a step; above, it falls without a bonus.",
    )
    delta: Decimal = Field(
        default_factory=lambda: Decimal("0.005"), description="Change of the coefficient in a step. Default: 0.005."
    )
    max_coef: Decimal = Field(default_factory=lambda: Decimal("1"), description="Bound on the coefficient. Default: 1.")
    top_quantile: Decimal | None = Field(
        default=None,
        description="Share of a minibatch's tokens, those of the highest entropy, that the policy loss learns from.",
    )

    def unused(self) -> Mapping[str, str]:
        return {} if self.target is not None else dict.fromkeys(("delta", "maxCoef"), "entropy.target is not set")

    @rule()
    def numbers_are_in_range(self) -> Iterator[Problem]:
        for key, value in (("target", self.target), ("delta", self.delta), ("maxCoef", self.max_coef)):
            if value is not None and value <= 0:
                yield key, value, "it must be above 0"
        if self.top_quantile is not None and not 0 < self.top_quantile <= 1:
            yield "topQuantile", self.top_quantile, 'it is a share above 0 and at most 1: "0.2" is usual'


class AlgorithmSpec(Section):
    """From rewards to a batch."""

    advantage_estimator: Estimator = Field(default="grpo", description="Preset of reward and advantage normalisation.")
    group_size: int = Field(default=8, ge=1, le=4096, description="Episodes per prompt.")
    prompts_per_step: int = Field(default=32, ge=1, le=65536, description="Prompt groups per trainer step.")
    minibatches: int = Field(default=1, ge=1, le=65536, description="Optimizer updates per epoch of a step.")
    epochs: int = Field(default=1, ge=1, le=64, description="Passes over the rows of a step.")
    rewards: RewardsSpec = Field(default=RewardsSpec(), description="Shaping of the raw reward.")
    zero_truncated: bool = Field(default=False, description="A cut answer gets raw reward 0 before shaping.")
    mask_truncated: bool = Field(
        default=False, description="A cut answer adds nothing to the loss; it still counts in denominators."
    )
    normalize_reward: NormalizeSpec = Field(
        default_factory=lambda fields: REWARD_PRESETS[fields["advantage_estimator"]],
        description="Over rows. Default: the estimator's preset.",
    )
    normalize_advantage: NormalizeSpec | None = Field(
        default_factory=_advantage_preset, description="Over sampled tokens. Default: the estimator's preset."
    )
    gae: GaeSpec = Field(default=GaeSpec(), description="Advantage estimation over time.")
    critic: CriticSpec | None = Field(default=None, description="Value model; estimator ppo needs one.")
    loss: LossSpec = Field(default=LossSpec(), description="The policy loss.")
    entropy: EntropySpec = Field(default=EntropySpec(), description="Entropy as a target, and tokens of high entropy.")

    @model_validator(mode="after")
    def _fill_in(self) -> "AlgorithmSpec":
        bootstraps = self.advantage_estimator == "ppo" and not self.zero_truncated
        self.__dict__["gae"] = filled(self.gae, bootstrap_truncated=bootstraps)
        return self

    @property
    def rows_per_step(self) -> int:
        return self.prompts_per_step * self.group_size

    @property
    def updates_per_step(self) -> int:
        return self.minibatches * self.epochs

    @property
    def advantage_normalization(self) -> NormalizeSpec | None:
        """What is done to advantages of tokens; None where nothing would change."""
        block = self.normalize_advantage
        return None if block is None or block.is_identity else block

    @property
    def trainer_returns(self) -> bool:
        """Whether the trainer makes advantages of tokens from rewards; else every token gets its row's value."""
        over_time = self.advantage_estimator in TOKEN_ESTIMATORS
        return over_time or self.advantage_normalization is not None or self.loss.kl_in_reward

    @property
    def takes_turn_rewards(self) -> bool:
        """Whether rows may be rewarded turn by turn: where the trainer makes advantages of rewards as they are."""
        return self.trainer_returns and self.normalize_reward.is_identity

    @property
    def trains_masked(self) -> bool:
        """Whether rows of maskTruncated are computed: statistics over tokens, and a critic, take all sampled ones."""
        over_tokens = self.loss.m2_threshold is not None or self.entropy.top_quantile is not None
        return self.loss.normalizes_weights or over_tokens or self.trainer_returns

    @property
    def trains_zero_advantage(self) -> bool:
        """Whether rows without advantage are computed: an entropy or KL term or a statistic needs them."""
        return self.has_entropy_term or self.loss.kl_coef > 0 or self.trains_masked

    @property
    def has_entropy_term(self) -> bool:
        """Whether the loss may hold an entropy bonus."""
        return self.loss.entropy_coef != 0.0 or self.entropy.target is not None

    def unused(self) -> Mapping[str, str]:
        estimator = self.advantage_estimator
        unread: dict[str, str] = {}
        if estimator != "ppo":
            unread |= dict.fromkeys(
                ("gae.lambda", "gae.bootstrapTruncated", "critic"), f"advantageEstimator {estimator} has no critic"
            )
        if estimator not in TOKEN_ESTIMATORS:
            unread |= dict.fromkeys(
                ("gae.gamma", "gae.unit"), f"advantageEstimator {estimator} does not discount over time"
            )
        return unread

    @rule(
        CelRule(
            field="minibatches",
            rule="self.promptsPerStep * self.groupSize >= self.minibatches",
            message="minibatches must be at most promptsPerStep x groupSize rows",
        ),
    )
    def minibatches_have_rows(self) -> Iterator[Problem]:
        if self.rows_per_step < self.minibatches:
            because = f"promptsPerStep x groupSize = {self.rows_per_step} rows would leave some of them empty"
            yield "minibatches", self.minibatches, because

    @rule(
        CelRule(
            field="groupSize",
            rule="self.groupSize > 1 || (has(self.normalizeReward) ? self.normalizeReward.mean != 'Group'"
            " : self.advantageEstimator in ['reinforcepp', 'ppo'])",
            message="the estimator compares samples within a group and needs groupSize of at least 2",
        ),
    )
    def groups_can_be_compared(self) -> Iterator[Problem]:
        if self.group_size == 1 and self.normalize_reward.mean == "Group":
            written = self.is_written("normalize_reward")
            who = "normalizeReward.mean group" if written else f"advantageEstimator {self.advantage_estimator}"
            yield "groupSize", 1, f"{who} compares samples within a group and needs at least 2"

    @rule(
        CelRule(
            field="loss.proximal",
            reason=FORBIDDEN,
            rule="!has(self.loss.proximal) || self.loss.proximal != 'Reuse' || self.minibatches * self.epochs == 1",
            message="Reuse needs one minibatch and one epoch: use Recompute",
        ),
    )
    def policy_stays_where_it_is_reused(self) -> Iterator[Problem]:
        """Log-probabilities are reused in one update alone."""
        updates = self.updates_per_step
        if self.loss.proximal == "Reuse" and updates > 1:
            because = f"minibatches x epochs = {updates}, and the policy moves between updates: use Recompute"
            yield "loss.proximal", "Reuse", because

    @rule()
    def entropy_acts_on_tokens(self) -> Iterator[Problem]:
        """A loss of whole rows has no choice of tokens, and a coefficient begins within its bound."""
        entropy = self.entropy
        if entropy.top_quantile is not None and self.loss.type == "gspo":
            because = "loss.type is 'gspo', a loss of whole rows: use ppo, or leave it out"
            yield "entropy.topQuantile", entropy.top_quantile, because
        if entropy.target is not None and self.loss.entropy_coef > entropy.max_coef:
            because = f"it begins above entropy.maxCoef '{entropy.max_coef}'"
            yield "loss.entropyCoef", self.loss.entropy_coef, because

    @rule(
        CelRule(
            field="critic",
            rule="(self.advantageEstimator == 'ppo') == has(self.critic)",
            message="a critic is needed by advantageEstimator ppo and ignored by every other one",
        ),
        CelRule(
            field="gae",
            reason=FORBIDDEN,
            rule="self.advantageEstimator == 'ppo' || (!has(self.gae.lambda) && !has(self.gae.bootstrapTruncated))",
            message="gae.lambda and gae.bootstrapTruncated are for advantageEstimator ppo: leave them out",
        ),
        CelRule(
            field="gae",
            reason=FORBIDDEN,
            rule="self.advantageEstimator in ['ppo', 'reinforcepp', 'reinforceppBaseline']"
            " || (!has(self.gae.gamma) && !has(self.gae.unit))",
            message="this estimator does not discount over time: leave gae.gamma and gae.unit out",
        ),
    )
    def critic_is_there(self) -> Iterator[Problem]:
        if self.advantage_estimator == "ppo" and self.critic is None:
            because = "spec.algorithm.critic is not set: add critic: {}, or use grpo"
            yield "advantageEstimator", "ppo", because

    @rule(
        CelRule(
            field="gae.bootstrapTruncated",
            reason=FORBIDDEN,
            rule="!self.zeroTruncated || !has(self.gae.bootstrapTruncated) || !self.gae.bootstrapTruncated",
            message="with zeroTruncated a truncated answer cannot both end and continue: use false",
        ),
    )
    def cut_answer_ends_or_goes_on(self) -> Iterator[Problem]:
        """A cut answer is an end with reward 0, or goes on with the critic's value."""
        if self.zero_truncated and self.gae.bootstrap_truncated:
            because = "zeroTruncated is true: a truncated answer cannot both end and continue; use false"
            yield "gae.bootstrapTruncated", True, because
