"""`spec.data`, `spec.sft` and `spec.evaluation`: where prompts and examples come from and how they become text, what
the policy is scored on.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rljob_api.manifest.base import (
    FREE,
    INT32,
    NAMED,
    NO_SHARE,
    CelRule,
    Config,
    Decimal,
    Import,
    Name,
    ObjectUri,
    Path,
    Problem,
    Section,
    Text,
    one_of,
    rule,
)
from rljob_api.manifest.rollout import AnswerTokens, FewestTokens, SamplingSpec, StopIds, Stops
from rljob_api.manifest.verifier import RewardSpec

TEMPLATES = ("chat", "qwen_math", "r1", "raw")

if TYPE_CHECKING:
    Template = str
else:
    Template = one_of(*TEMPLATES)


class ColumnsSpec(Section):
    """Names of a record's columns."""

    prompt: Text = Field(default="prompt", description="Column with the question.")
    answer: Text = Field(default="answer", description="Column with the expected answer.")
    id: Text | None = Field(default=None, description="Column with a unique id; without one, the line number.")
    images: Text | None = Field(default=None, description="Column with a list of pictures.")


class ReasoningGymSpec(Section):
    """Procedurally generated tasks with their own checkers."""

    name: Text = Field(description="Name of the reasoning-gym data set, such as chain_sum.")
    size: int = Field(default=500, ge=1, le=10_000_000, description="Number of records to generate.")
    config: Config = Field(
        default={},
        max_length=64,
        json_schema_extra=FREE,
        description="Options of that data set, checked by reasoning-gym.",
    )


class DataSourceSpec(Section):
    """One named source of records: exactly one of path, uri, hub and reasoningGym."""

    name: Name = Field(description="Name of the source, unique in its list.")
    path: Path | None = Field(
        default=None, description="JSONL or parquet file; relative to the manifest on one machine."
    )
    uri: ObjectUri | None = Field(
        default=None,
        description="JSONL or parquet file in an object store, such as s3://bucket/questions.jsonl; keys come by the"
        " environment of the coordinator.",
    )
    hub: Path | None = Field(default=None, description="Hugging Face data set id.")
    reasoning_gym: ReasoningGymSpec | None = Field(default=None, description="Generated tasks of reasoning-gym.")
    split: Text = Field(default="train", description="Split of a hub data set.")
    columns: ColumnsSpec = Field(default=ColumnsSpec(), description="Names of the columns.")
    format: Literal["math", "code", "gsm8k", "clevr", "dialogue"] | None = Field(
        default=None, description="Family of records. Unset: recognised by its columns."
    )
    max_prompt_tokens: int = Field(
        default=1024, ge=1, le=10_000_000, description="Longer prompts are left out and counted, in tokens."
    )
    on_invalid_record: Literal["Fail", "Drop"] = Field(
        default="Fail",
        description="What becomes of a record that cannot be read or graded: Fail ends the"
        " run, Drop leaves it out and counts it.",
    )

    @rule(
        CelRule(
            rule="(has(self.path) ? 1 : 0) + (has(self.uri) ? 1 : 0) + (has(self.hub) ? 1 : 0)"
            " + (has(self.reasoningGym) ? 1 : 0) == 1",
            message="set exactly one of path, uri, hub and reasoningGym",
        ),
    )
    def one_place(self) -> Iterator[Problem]:
        places = {"path": self.path, "uri": self.uri, "hub": self.hub, "reasoningGym": self.reasoning_gym}
        present = [key for key, value in places.items() if value is not None]
        if len(present) != 1:
            what = " and ".join(present) if present else "none of path, uri, hub and reasoningGym"
            yield "", self.name, f"it has {what}: set exactly one of them"


class TrainSourceSpec(DataSourceSpec):
    """One named source of training prompts, or of examples."""

    weight: Decimal = Field(
        default=Decimal("1"), description="Share of the prompts, relative to the other sources' weights."
    )
    phase: Literal["SFT", "RL"] = Field(
        default="RL", description="SFT: examples of spec.sft, whose answers are learned as they are."
    )

    @rule()
    def weight_is_a_share(self) -> Iterator[Problem]:
        if self.weight <= 0:
            yield "weight", self.weight, "it must be above 0: leave the source out instead"


class SftSpec(Section):
    """Supervised fine-tuning: the first steps of the run learn the answers of data.train sources of phase SFT."""

    steps: int | None = Field(default=None, ge=1, le=INT32, description="Supervised steps; or write epochs.")
    epochs: int | None = Field(default=None, ge=1, le=INT32, description="Passes over the examples.")
    # The job fills in the defaults.
    examples_per_step: int = Field(
        default_factory=lambda: 1,
        ge=1,
        le=INT32,
        description="Examples of a step. Default: promptsPerStep x groupSize.",
    )
    learning_rate: Decimal = Field(
        default_factory=lambda: Decimal("1e-6"),
        description="Peak learning rate of these steps. Default: trainer.optimizer's.",
    )

    def num_steps(self, num_examples: int) -> int:
        """Return how many steps are supervised; `num_examples` are those of an epoch. The last step of the last epoch
        is filled up from the beginning of another one.
        """
        return self.steps or math.ceil((self.epochs or 0) * num_examples / self.examples_per_step)

    @rule(
        CelRule(
            rule="has(self.steps) != has(self.epochs)",
            message="set exactly one of steps and epochs",
        ),
    )
    def has_one_length(self) -> Iterator[Problem]:
        if (self.steps is None) == (self.epochs is None):
            what = "neither steps nor epochs" if self.steps is None else "steps and epochs"
            yield "", self, f"it has {what}: set exactly one of them"

    @rule()
    def learning_rate_is_positive(self) -> Iterator[Problem]:
        if self.learning_rate <= 0:
            yield "learningRate", self.learning_rate, "it must be above 0"


class FilterGroupsSpec(Section):
    """Dynamic sampling: groups that teach nothing are replaced. Bounds are inclusive."""

    # The job fills in the defaults.
    enabled: bool = Field(
        default_factory=lambda: True,
        description="Reject groups whose rewards are all equal. Default: true unless groupSize is 1 or"
        " there is a teacher.",
    )
    metric: Text = Field(default="sum", description="sum (the weighted reward), or the name of one reward.")
    lower: Decimal | None = Field(
        default_factory=lambda: None,
        description="Accept only groups with a mean raw reward of at least this. Default:"
        " workflow.config.successRateLowerBound.",
    )
    upper: Decimal | None = Field(
        default_factory=lambda: None,
        description="Accept only groups with a mean raw reward of at most this. Default:"
        " workflow.config.successRateUpperBound.",
    )
    predicate: Import | None = Field(
        default=None, description="Custom function, module:function, that decides which groups are kept."
    )
    max_extra_groups: int = Field(
        default_factory=lambda: 1,
        ge=1,
        le=INT32,
        description="Rejections in one step before the run counts as starved. Default: 10 x promptsPerStep.",
    )

    @rule(
        CelRule(
            field="lower",
            rule="!has(self.lower) || !has(self.upper) || double(self.lower) <= double(self.upper)",
            message="lower must be at most upper, or no group would be accepted",
        ),
    )
    def accepts_something(self) -> Iterator[Problem]:
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            yield "lower", self.lower, f"it is above upper '{self.upper}', so no group would be accepted"


class CurriculumSpec(Section):
    """At the end of an epoch the prompts that it found easiest are left out of the later ones."""

    filter_threshold: Decimal = Field(description="A prompt may be left out if its mean raw reward is above this.")
    max_filter_percentage: Decimal = Field(
        description="Share of the epoch's prompts that may be left out, the easiest first; 0 to 1."
    )

    @rule()
    def share_is_in_range(self) -> Iterator[Problem]:
        if not 0 <= self.max_filter_percentage <= 1:
            yield "maxFilterPercentage", self.max_filter_percentage, NO_SHARE


class DataSpec(Section):
    """Training prompts."""

    train: tuple[TrainSourceSpec, ...] = Field(
        min_length=1, max_length=32, json_schema_extra=NAMED, description="Sources of training prompts."
    )
    template: Template = Field(
        default="chat", description="chat, qwen_math, r1, raw (the text as it is), or module:function."
    )
    shuffle: bool = Field(default=True, description="Permute the prompts of each epoch by hash(seed, epoch).")
    epochs: int | None = Field(default=None, ge=1, le=INT32, description="Passes over the data; endless if unset.")
    filter_groups: FilterGroupsSpec = Field(
        default=FilterGroupsSpec(), description="Which groups are rejected and replaced."
    )
    curriculum: CurriculumSpec | None = Field(default=None, description="Leave easy prompts out of later epochs.")

    @property
    def prompt_sources(self) -> tuple[TrainSourceSpec, ...]:
        """The sources of prompts that the policy answers itself."""
        return tuple(source for source in self.train if source.phase == "RL")

    @property
    def has_pictures(self) -> bool:
        """Whether the records of a source have pictures."""
        return any(source.columns.images is not None for source in self.train)

    @property
    def example_sources(self) -> tuple[TrainSourceSpec, ...]:
        """The sources of examples whose answers are learned."""
        return tuple(source for source in self.train if source.phase == "SFT")


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
        description="Share of the rollouts, 0 to 1, that only evaluate while others train: one at least, that share"
        " again for each evaluation that waits, all after the last step.",
    )

    @rule()
    def share_is_in_range(self) -> Iterator[Problem]:
        if not 0 <= self.rollout_fraction <= 1:
            yield "rolloutFraction", self.rollout_fraction, NO_SHARE
