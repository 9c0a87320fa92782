"""The RLJob resource: metadata, spec and status in one frozen model."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rljob_api.manifest.algorithm import AlgorithmSpec
from rljob_api.manifest.base import INT32, JOB_NAME_PATTERN, Section
from rljob_api.manifest.data import DataSpec
from rljob_api.manifest.evaluation import EvaluationSpec
from rljob_api.manifest.lifecycle import (
    CleanupPolicySpec,
    FailurePolicySpec,
    ObservabilitySpec,
    QueueSpec,
    ResumeFromSpec,
    SecuritySpec,
    StorageSpec,
)
from rljob_api.manifest.model import ModelSpec
from rljob_api.manifest.pod import PodSpec
from rljob_api.manifest.rollout import AsyncSpec, RolloutSpec, WorkflowSpec
from rljob_api.manifest.status import JobStatus
from rljob_api.manifest.trainer import CheckpointSpec, TrainerSpec, WeightSyncSpec
from rljob_api.manifest.verifier import VerifierSpec

MAX_JOB_NAME = 40
OUR_OPERATOR = "rljob.dev/operator"


class CoordinatorSpec(Section):
    """The coordinator; it has nothing but pod settings."""

    pod: PodSpec = Field(default=PodSpec(), description="Pod settings.")


class JobSpec(Section):
    """What is wanted."""

    suspend: bool = Field(default=False, description="Checkpoint, then free every pod; resume goes on from there.")
    managed_by: Annotated[str, Field(min_length=1, max_length=63)] = Field(
        default=OUR_OPERATOR,
        description="Controller that acts on the job; immutable. Any other value: ours leaves it alone.",
    )
    queue: QueueSpec | None = Field(default=None, description="Kueue queue; quota before pods.")
    gang: Literal["none", "volcano", "coscheduling", "native"] | None = Field(
        default=None, description="Gang scheduling back-end. Default: the operator's setting."
    )
    max_steps: int = Field(ge=1, le=INT32, description="Trainer steps, that is optimizer publishes.")
    seed: int = Field(default=0, ge=0, le=INT32, description="Seed of prompt order, sampling and dropout.")
    resume_from: ResumeFromSpec | None = Field(default=None, description="Fork from another run's checkpoint.")
    active_deadline_seconds: int | None = Field(
        default=None, ge=1, le=INT32, description="Seconds from the first pod of a segment until it must end."
    )
    scheduling_deadline_seconds: int | None = Field(
        default=None, ge=1, le=INT32, description="Seconds that pods may wait for nodes, before the first step. No end."
    )
    startup_deadline_seconds: int = Field(
        default=1800, ge=1, le=604_800, description="Seconds until the first step, once all pods have a node."
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None, ge=0, le=INT32, description="Seconds after the end until the job and its children go."
    )
    cleanup_policy: CleanupPolicySpec = Field(
        default=CleanupPolicySpec(), description="What happens to pods at the end."
    )
    model: ModelSpec = Field(description="Which model is trained.")
    data: DataSpec = Field(description="Training prompts.")
    workflow: WorkflowSpec = Field(default=WorkflowSpec(), description="What happens inside one episode.")
    algorithm: AlgorithmSpec = Field(default=AlgorithmSpec(), description="From rewards to a batch.")
    async_: AsyncSpec = Field(default=AsyncSpec(), alias="async", description="How far generation may run ahead.")
    coordinator: CoordinatorSpec = Field(default=CoordinatorSpec(), description="The coordinator.")
    rollout: RolloutSpec = Field(default=RolloutSpec(), description="Rollout replicas.")
    verifier: VerifierSpec = Field(description="Graders and their isolation.")
    trainer: TrainerSpec = Field(default=TrainerSpec(), description="The trainer.")
    weight_sync: WeightSyncSpec = Field(default=WeightSyncSpec(), description="How new weights reach the rollouts.")
    checkpoint: CheckpointSpec = Field(default=CheckpointSpec(), description="What survives a restart.")
    storage: StorageSpec = Field(default=StorageSpec(), description="Where state lives.")
    evaluation: EvaluationSpec = Field(default=EvaluationSpec(), description="When and on what the policy is scored.")
    failure_policy: FailurePolicySpec = Field(
        default=FailurePolicySpec(), description="How much failure a run survives."
    )
    security: SecuritySpec = Field(default=SecuritySpec(), description="Connections between roles.")
    observability: ObservabilitySpec = Field(default=ObservabilitySpec(), description="What a run shows of itself.")


class Metadata(BaseModel):
    """The part of ObjectMeta that we read; the API server's other keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=MAX_JOB_NAME, pattern=JOB_NAME_PATTERN)] = Field(
        description="Name of the job: at most 40 characters, so that pod names with a revision hash fit a label."
    )
    namespace: Annotated[str, Field(max_length=63)] = Field(default="default", description="Namespace.")
    uid: Annotated[str, Field(max_length=64)] = Field(default="", description="Set by the API server.")
    generation: int = Field(default=1, description="Set by the API server: number of the spec's last change.")
    labels: dict[str, str] = Field(default={}, description="Labels.")
    annotations: dict[str, str] = Field(default={}, description="Annotations.")


class RLJob(Section):
    """One RL run."""

    api_version: Literal["rljob.dev/v1alpha1"] = Field(description="Version of this schema.")
    kind: Literal["RLJob"] = Field(description="Kind of the object.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: JobSpec = Field(description="What is wanted.")
    status: JobStatus | None = Field(default=None, description="What the operator saw last.")
