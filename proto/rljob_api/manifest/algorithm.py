"""`spec.algorithm`: rewards, advantages and how many samples make a step."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api.manifest.base import LAMBDA_PATTERN, Decimal, Section
from rljob_api.manifest.loss import LossSpec

Lambda = Annotated[str, StringConstraints(pattern=LAMBDA_PATTERN, max_length=48)]
Estimator = Literal["grpo", "drgrpo", "rloo", "liteppo", "reinforcepp", "reinforceppBaseline", "ppo"]


class OverlongSpec(Section):
    """DAPO's length penalty: r += min(0, -(n - (maxTokens - tailTokens)) / tailTokens x factor)."""

    max_tokens: int = Field(ge=1, le=10_000_000, description="Length at which the whole penalty is due, tokens.")
    tail_tokens: int = Field(ge=1, le=10_000_000, description="Tokens before maxTokens over which the penalty grows.")
    factor: Decimal = Field(default="1", description="Largest penalty, in units of raw reward.")


class RewardsSpec(Section):
    """r' = clamp((r + bias) x scale, -clip, +clip), after the overlong penalty."""

    scale: Decimal = Field(default="1", description="Factor on (reward + bias).")
    bias: Decimal = Field(default="0", description="Added to the raw reward before scaling.")
    clip: Decimal | None = Field(default=None, description="Bound on the absolute shaped reward. Default: 20.")
    overlong: OverlongSpec | None = Field(default=None, description="Length penalty on the raw reward; off if unset.")


class NormalizeSpec(Section):
    """x' = (x - mean) / (std + eps). A block that is written replaces the estimator's preset as a whole."""

    mean: Literal["group", "batch", "none"] = Field(description="Level of the mean that is subtracted.")
    std: Literal["group", "batch", "none"] = Field(description="Level of the standard deviation that is divided by.")
    leave_one_out: bool = Field(default=False, description="Leave the value itself out of its mean.")
    unbiased: bool | None = Field(default=None, description="Divide squares by n - 1. Default: true.")
    eps: Decimal | None = Field(default=None, description="Added to the standard deviation. Default: 1e-6.")
    std_center: Literal["subtracted", "own"] | None = Field(
        default=None,
        description="Deviation from the subtracted mean, or from the mean at std's own level. Default: subtracted.",
    )


class GaeSpec(Section):
    """Generalised advantage estimation."""

    gamma: Decimal | None = Field(default=None, description="Discount per unit. Default: 1.")
    lambda_: Lambda | None = Field(
        default=None,
        alias="lambda",
        description='Trace decay: a decimal, "vapo{alpha}" or "relativePosition{q}". Default: 1.',
    )
    unit: Literal["token", "turn"] | None = Field(default=None, description="What one step of time is. Default: token.")
    bootstrap_truncated: bool | None = Field(
        default=None, description="Use the critic's value after a cut answer. Default: true unless zeroTruncated."
    )


class CriticSpec(Section):
    """The value model of estimator ppo."""

    learning_rate: Decimal = Field(default="9e-6", description="AdamW learning rate of the critic.")
    value_clip: Decimal = Field(default="0.5", description="Clip width of the value around its old value.")
    vf_coef: Decimal = Field(default="1", description="Coefficient of the value loss.")
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000, description="First steps in which only the critic learns.")


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
    normalize_reward: NormalizeSpec | None = Field(
        default=None, description="Over rows. Default: the estimator's preset."
    )
    normalize_advantage: NormalizeSpec | None = Field(
        default=None, description="Over sampled tokens. Default: the estimator's preset."
    )
    gae: GaeSpec = Field(default=GaeSpec(), description="Advantage estimation over time.")
    critic: CriticSpec | None = Field(default=None, description="Value model; estimator ppo needs one.")
    loss: LossSpec = Field(default=LossSpec(), description="The policy loss.")
