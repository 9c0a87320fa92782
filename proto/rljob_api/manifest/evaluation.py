"""`spec.evaluation`: when and on what the policy is scored."""

from pydantic import Field

from rljob_api.manifest.base import INT32, NAMED, Decimal, Section, Text, TokenId
from rljob_api.manifest.data import DataSourceSpec, Template
from rljob_api.manifest.verifier import RewardSpec


class EvaluationSamplingSpec(Section):
    """How evaluation answers are sampled; greedy, and otherwise as in training."""

    temperature: Decimal = Field(default="0", description="Softmax temperature; 0 is greedy.")
    top_p: Decimal = Field(default="1", description="Nucleus share.")
    top_k: int = Field(default=0, ge=0, le=INT32, description="Number of candidate tokens; 0 is off.")
    min_p: Decimal = Field(default="0", description="Smallest relative probability.")
    max_tokens: int | None = Field(
        default=None, ge=1, le=10_000_000, description="Longest answer, tokens. Default: as in training."
    )
    min_tokens: int | None = Field(
        default=None, ge=0, le=10_000_000, description="Shortest answer, tokens. Default: as in training."
    )
    stop: tuple[Text, ...] | None = Field(
        default=None, max_length=16, description="Texts that end an answer. Default: as in training."
    )
    stop_token_ids: tuple[TokenId, ...] | None = Field(
        default=None, max_length=64, description="Token ids that end an answer. Default: as in training."
    )
    ignore_eos: bool | None = Field(default=None, description="Go on after the end token. Default: as in training.")


class SuiteSpec(DataSourceSpec):
    """One held-out source, and what differs from training in how it is asked and graded."""

    template: Template | None = Field(
        default=None, description="Template of this suite's prompts, with its stop rules. Default: as in training."
    )
    rewards: tuple[RewardSpec, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=4,
        json_schema_extra=NAMED,
        description="Weighted rewards that grade this suite instead of verifier.rewards. Default: as in training.",
    )


class EvaluationSpec(Section):
    """When and on what the policy is scored. The last step is always scored if there are suites."""

    every_steps: int = Field(
        default=20, ge=0, le=INT32, description="Steps per evaluation; 0: none between start and end."
    )
    before_training: bool = Field(default=True, description="Score the initial weights too.")
    suites: tuple[SuiteSpec, ...] = Field(
        default=(), max_length=32, json_schema_extra=NAMED, description="Held-out sources, named like data sources."
    )
    sampling: EvaluationSamplingSpec = Field(default=EvaluationSamplingSpec(), description="How answers are sampled.")
    samples_per_prompt: int = Field(default=1, ge=1, le=1024, description="Answers per prompt.")
    rollout_fraction: Decimal = Field(
        default="0.25",
        description="Share of the rollouts, 0 to 1, that serve the version under evaluation while the others go on with"
        " training: one at least, that share again for each evaluation that waits, and all after the last step. They"
        " evaluate with all of their slots.",
    )
