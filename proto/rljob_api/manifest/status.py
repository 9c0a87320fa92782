"""`status` of an RLJob: what the operator saw last. Fractions are decimal strings."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from rljob_api.manifest.base import INT32, INT64, NAMED, Decimal, Section

Word = Annotated[str, Field(max_length=63)]
Sentence = Annotated[str, Field(max_length=1024)]
Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0, le=INT64)]
Step = Annotated[int, Field(ge=0, le=INT32)]

CONDITION_KEYS: dict[str, JsonValue] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
NUMBER_KEYS: dict[str, JsonValue] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["number"]}
SUITE_KEYS: dict[str, JsonValue] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["suite"]}


class Observed(Section):
    """Base of status parts: a newer operator's fields are ignored, not refused."""

    model_config = ConfigDict(extra="ignore")


class Condition(Observed):
    """One condition; types and reasons are closed sets."""

    type: Annotated[str, Field(max_length=316)] = Field(description="Condition type in CamelCase.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Annotated[str, Field(min_length=1, max_length=128)] = Field(description="Why, as one CamelCase word.")
    message: Sentence = Field(default="", description="A sentence for people.")
    observed_generation: Count | None = Field(default=None, description="Generation that it speaks of.")
    last_transition_time: Time = Field(description="When the status last changed.")


class VersionStatus(Observed):
    """Weight version ids."""

    published: Count | None = Field(default=None, description="Newest published version.")
    live: Count | None = Field(default=None, description="Newest version that enough rollouts serve.")
    oldest_serving: Count | None = Field(default=None, description="Oldest version that a rollout serves.")
    lag: Step | None = Field(default=None, description="Steps between the newest and the oldest serving version.")


class RoleStatus(Observed):
    """Pods of one role."""

    name: Word = Field(description="Role.")
    desired: Step = Field(default=0, description="Pods wanted.")
    ready: Step = Field(default=0, description="Pods ready.")
    restarts: Step = Field(default=0, description="Restarts seen.")


class RolloutStatus(Observed):
    """The scale subresource reads replicas and selector."""

    replicas: Step = Field(default=0, description="Rollout pods that neither end nor have ended.")
    selector: Annotated[str, Field(max_length=512)] = Field(default="", description="Label selector of rollout pods.")
    on_latest: Step | None = Field(default=None, description="Rollout pods that serve the newest version.")
    ready: Word | None = Field(default=None, description='Ready and desired pods, such as "3/4".')


class AttemptStatus(Observed):
    """One trainer attempt."""

    number: Step = Field(description="Attempt, from 1.")
    uid: Word | None = Field(default=None, description="Uid of its Job.")
    start: Time | None = Field(default=None, description="When it began.")
    end: Time | None = Field(default=None, description="When it ended.")
    outcome: Word | None = Field(default=None, description="How it ended.")
    reason: Word | None = Field(default=None, description="Why.")
    class_: Word | None = Field(default=None, alias="class", description="application, infrastructure or requested.")
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = Field(default=None, description="Exit code that decided.")
    step: Step | None = Field(default=None, description="Last finished step.")


class TrainerStatus(Observed):
    """The trainer."""

    attempts: tuple[AttemptStatus, ...] = Field(
        default=(), max_length=10, json_schema_extra=NUMBER_KEYS, description="The last attempts."
    )


class RestartsStatus(Observed):
    """Trainer restarts by class."""

    total: Step = Field(default=0, description="All.")
    application: Step = Field(default=0, description="Our own failures.")
    infrastructure: Step = Field(default=0, description="The infrastructure's.")


class LayerStatus(Observed):
    """One layer of verifier isolation."""

    name: Word = Field(description="Layer.")
    state: Word = Field(description="What the probe found.")


class ScalingStatus(Observed):
    """One change of the rollout count."""

    time: Time = Field(description="When.")
    from_: Step = Field(alias="from", description="Replicas before.")
    to: Step = Field(description="Replicas after.")
    signal: Sentence = Field(default="", description="What led to it.")


class ScalingHistoryStatus(Observed):
    """Changes of the rollout count."""

    history: tuple[ScalingStatus, ...] = Field(default=(), max_length=5, description="The last changes, newest last.")


class ImageStatus(Observed):
    """The pinned image of a role."""

    name: Word = Field(description="Role.")
    image: Annotated[str, Field(max_length=512)] = Field(description="Image with digest.")


class TrajectoriesStatus(Observed):
    """Trajectories by outcome since the start."""

    accepted: Count = Field(default=0, description="Accepted.")
    stale: Count = Field(default=0, description="Dropped for age.")
    infra_failed: Count = Field(default=0, description="Lost to the infrastructure.")
    filtered: Count = Field(default=0, description="Rejected by the group filter.")
    too_long: Count = Field(
        default=0, description="Groups left out, because the prompt is longer than maxPromptTokens."
    )
    invalid_record: Count = Field(default=0, description="Groups left out, because their record cannot be graded.")
    dump_failures: Count = Field(default=0, description="Trajectory dumps that could not be written.")


class RewardStatus(Observed):
    """Reward of a step."""

    mean: Decimal = Field(description="Mean raw reward.")
    step: Step = Field(description="Step.")


class PaceStatus(Observed):
    """How fast the run goes and who waits for whom, written once per step."""

    step: Step = Field(description="Step after which this was reported.")
    step_seconds: Decimal = Field(description="Median seconds of the last steps; 0 before there are two.")
    tokens_per_second: Decimal = Field(description="Sampled tokens per second, all rollouts together.")
    trainer_wait_share: Decimal = Field(description="Share of the trainer's time spent waiting.")
    rollout_wait_share: Decimal = Field(description="Share of the rollouts' slots spent waiting.")
    reward_delta: Decimal | None = Field(default=None, description="Reward less the mean of the five steps before.")


class EvaluationStatus(Observed):
    """Last score of a suite."""

    suite: Word = Field(description="Suite.")
    accuracy: Decimal = Field(description="Share of answers with score 1.")
    step: Step = Field(description="Step of the weights that were scored.")


class CheckpointStatus(Observed):
    """The last checkpoint."""

    step: Step = Field(description="Step.")
    uri: Annotated[str, Field(max_length=1024)] = Field(default="", description="Where it is.")
    time: Time | None = Field(default=None, description="When it was committed.")


class RuntimeUseStatus(Observed):
    """The runtime that a segment of the run was begun with; an edit of it holds from the next one on."""

    kind: Word = Field(description="ClusterRLJobRuntime or RLJobRuntime.")
    name: Word = Field(description="Name.")
    generation: Count = Field(description="Generation in use.")
    current_generation: Count | None = Field(
        default=None, description="Generation of the object as it is now; unset where it is gone."
    )


class StalledStatus(Observed):
    """Which process blocks the run."""

    role: Word = Field(description="Role.")
    pod: Annotated[str, Field(max_length=253)] = Field(default="", description="Pod.")
    since: Time | None = Field(default=None, description="Since when.")
    reason: Word = Field(description="Reason, as in the runbooks.")


class RoleUsage(Observed):
    """What the pods of one role have used."""

    name: Word = Field(description="Role.")
    gpu_seconds: Count = Field(default=0, description="GPUs that its pods asked for, times seconds on a node.")
    cpu_core_seconds: Decimal = Field(default=Decimal("0"), description="Cores that pods asked for, times seconds.")


class UsageStatus(Observed):
    """What the job has used over all its segments; at least, since a pod that no operator saw is not counted."""

    as_of: Time = Field(description="Until when pods are counted.")
    gpu_seconds: Count = Field(default=0, description="GPU seconds of all roles.")
    cpu_core_seconds: Decimal = Field(default=Decimal("0"), description="Core seconds of all roles, as requested.")
    roles: tuple[RoleUsage, ...] = Field(
        default=(), max_length=8, json_schema_extra=NAMED, description="The same by role."
    )
    generated_tokens: Count = Field(default=0, description="Tokens sampled in groups that came back.")
    trained_tokens: Count = Field(default=0, description="Tokens of finished steps, of repeated ones again.")


class JobStatus(Observed):
    """What the operator observed last."""

    observed_generation: Count | None = Field(default=None, description="Generation that was planned for.")
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=32, json_schema_extra=CONDITION_KEYS, description="Conditions by type, in a fixed order."
    )
    summary: Word | None = Field(default=None, description="One word for the column; display only.")
    reason: Word | None = Field(default=None, description="Reason of the condition behind summary.")
    step: Step | None = Field(default=None, description="Finished steps.")
    sft_steps: Step | None = Field(default=None, description="How many of the steps, the first ones, are supervised.")
    start_time: Time | None = Field(default=None, description="First pod of this segment.")
    first_attempt: Step | None = Field(default=None, description="First trainer attempt of this segment.")
    scheduled_time: Time | None = Field(
        default=None, description="When every pod had a node: startupDeadlineSeconds count from here."
    )
    first_step_time: Time | None = Field(default=None, description="First finished step of this segment.")
    completion_time: Time | None = Field(default=None, description="End of the run.")
    version: VersionStatus | None = Field(default=None, description="Weight versions.")
    roles: tuple[RoleStatus, ...] = Field(
        default=(), max_length=8, json_schema_extra=NAMED, description="Pods by role."
    )
    rollout: RolloutStatus | None = Field(default=None, description="Rollout replicas.")
    trainer: TrainerStatus | None = Field(default=None, description="Trainer attempts.")
    restarts: RestartsStatus | None = Field(default=None, description="Trainer restarts.")
    isolation: tuple[LayerStatus, ...] = Field(
        default=(), max_length=16, json_schema_extra=NAMED, description="Verifier isolation by layer."
    )
    scaling: ScalingHistoryStatus | None = Field(default=None, description="Changes of the rollout count.")
    images: tuple[ImageStatus, ...] = Field(
        default=(), max_length=8, json_schema_extra=NAMED, description="Pinned images."
    )
    runtime: RuntimeUseStatus | None = Field(default=None, description="The runtime in use.")
    config_generation: Count | None = Field(
        default=None, description="Config generation that the coordinator acknowledged."
    )
    trajectories: TrajectoriesStatus | None = Field(default=None, description="Trajectories by outcome.")
    reward: RewardStatus | None = Field(default=None, description="Reward of the last step.")
    pace: PaceStatus | None = Field(default=None, description="Speed and waiting as of the last step.")
    evaluation: tuple[EvaluationStatus, ...] = Field(
        default=(), max_length=32, json_schema_extra=SUITE_KEYS, description="Last scores."
    )
    last_checkpoint: CheckpointStatus | None = Field(default=None, description="The last checkpoint.")
    attempt: Step | None = Field(default=None, description="Current trainer attempt.")
    retry: Step | None = Field(default=None, description="The spec.retry that was acted on last.")
    stalled: StalledStatus | None = Field(default=None, description="Which process blocks the run.")
    usage: UsageStatus | None = Field(default=None, description="What the job has used.")
