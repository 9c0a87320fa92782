"""`spec.evaluation`: when and on what the policy is scored."""

from collections.abc import Iterator

from pydantic import Field

from rljob_api.manifest.base import INT32, NAMED, NO_SHARE, Decimal, Problem, Section, rule
from rljob_api.manifest.data import DataSourceSpec, Template
from rljob_api.manifest.rollout import AnswerTokens, FewestTokens, SamplingSpec, StopIds, Stops
from rljob_api.manifest.verifier import RewardSpec


class EvaluationSamplingSpec(SamplingSpec):
    """How evaluation answers are sampled; greedy, and otherwise as in training: the job fills in those defaults."""

    temperature: Decimal = Field(default=Decimal("0"), description="Softmax temperature; 0 is greedy.")
    max_tokens: AnswerTokens = Field(
        default_factory=lambda: 1, description="Longest answer, tokens. Default: rollout.sampling."
    )
    min_tokens: FewestTokens = Field(
        default_factory=lambda: 0, description="Shortest answer, tokens. Default: rollout.sampling."
    )
    stop: Stops = Field(default_factory=tuple, description="Texts that end an answer. Default: rollout.sampling.")
    stop_token_ids: StopIds = Field(
        default_factory=tuple, description="Token ids that end an answer. Default: rollout.sampling."
    )
    ignore_eos: bool = Field(
        default_factory=lambda: False, description="Continue after the end token. Default: rollout.sampling."
    )


class SuiteSpec(DataSourceSpec):
    """One held-out source, and what differs from training in how it is asked and graded."""

    template: Template | None = Field(
        default=None, description="Template of this suite's prompts, with its stop rules. Default: data.template."
    )
    rewards: tuple[RewardSpec, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=4,
        json_schema_extra=NAMED,
        description="Weighted rewards that grade this suite instead. Default: verifier.rewards.",
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
        default=Decimal("0.25"),
        description="Share of the rollouts, 0 to 1, that serve the version under evaluation while the others continue"
        " training: one at least, that share again for each evaluation that waits, and all after the last step. They"
        " evaluate with all of their slots.",
    )

    @rule()
    def share_is_in_range(self) -> Iterator[Problem]:
        if not 0 <= self.rollout_fraction <= 1:
            yield "rolloutFraction", self.rollout_fraction, NO_SHARE
