"""What surrounds the training: forks, clean-up, failures, security, observability."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rljob_api.manifest.base import (
    INT32,
    NAMED,
    NO_SHARE,
    SET,
    CelRule,
    Decimal,
    Name,
    Path,
    Problem,
    Section,
    rule,
)
from rljob_api.manifest.trackers import TrackerSpec

Cleanup = Literal["Delete", "Keep"]


class ResumeFromSpec(Section):
    """Fork from another run's checkpoint: a new run, from step 0, with its weights and optimizer state."""

    job: Name | None = Field(default=None, description="RLJob in the same namespace; on one machine runs/<job>.")
    step: int | None = Field(default=None, ge=0, le=INT32, description="Step of the checkpoint. Default: the last one.")
    uri: Path | None = Field(
        default=None, description="A checkpoint, or a folder of them, instead of a job: a path or file:// URI."
    )

    @rule(
        CelRule(rule="has(self.job) != has(self.uri)", message="a fork needs exactly one of job and uri"),
        CelRule(
            field="uri",
            rule="!has(self.uri) || !self.uri.contains('://') || self.uri.startsWith('file://')",
            message="only folders are read: give a path or a file:// URI",
        ),
    )
    def one_checkpoint(self) -> Iterator[Problem]:
        """A fork names a job or a place, and only folders are read."""
        if (self.job is None) == (self.uri is None):
            what = "job and uri are both set" if self.job else "neither job nor uri is set"
            yield "", {"job": self.job, "uri": self.uri}, f"{what}: set exactly one of them"
        scheme, colon, _ = (self.uri or "").partition("://")
        if colon and scheme != "file":
            yield "uri", self.uri, "only folders are read: give a path or a file:// URI"


class CleanupRolesSpec(Section):
    """What happens to each role's pods at the end."""

    rollout: Cleanup = Field(default="Delete", description="Rollout pods.")
    verifier: Cleanup = Field(default="Delete", description="Verifier pods.")
    trainer: Cleanup = Field(default="Keep", description="Trainer pods; finished ones hold no GPU and have the logs.")
    coordinator: Cleanup = Field(default="Keep", description="Coordinator pod.")


class CleanupPolicySpec(Section):
    """Free the GPUs at the end, keep the rest to look at."""

    on_success: CleanupRolesSpec = Field(default=CleanupRolesSpec(), description="After a run that succeeded.")
    on_failure: CleanupRolesSpec = Field(default=CleanupRolesSpec(), description="After a run that failed.")


class ExitCodesSpec(Section):
    """Exit codes of a container."""

    operator: Literal["In", "NotIn"] = Field(description="Whether the code must be in the list or not.")
    values: tuple[Annotated[int, Field(ge=0, le=255)], ...] = Field(
        min_length=1, max_length=32, json_schema_extra=SET, description="Exit codes."
    )


class PodConditionSpec(Section):
    """A condition of a pod."""

    type: Name = Field(description="Condition type, such as DisruptionTarget.")
    status: Literal["True", "False", "Unknown"] = Field(default="True", description="Its status.")


class FailureRuleSpec(Section):
    """What a failed pod leads to; all criteria that are set must match."""

    action: Literal["Restart", "Ignore", "FailJob"] = Field(description="Restart counts, Ignore counts nowhere.")
    role: Literal["coordinator", "rollout", "verifier", "trainer"] | None = Field(
        default=None, description="Role; every role if unset."
    )
    exit_codes: ExitCodesSpec | None = Field(default=None, description="Exit codes.")
    pod_conditions: tuple[PodConditionSpec, ...] = Field(
        default=(), max_length=8, description="Any of these conditions."
    )
    container_reasons: tuple[Name, ...] = Field(
        default=(), max_length=8, description="Any of these reasons, such as OOMKilled."
    )


class StallSpec(Section):
    """What counts as a stall."""

    timeout_seconds: int = Field(default=600, ge=30, le=604_800, description="Seconds without any progress.")
    action: Literal["Condition", "Restart", "Fail"] = Field(
        default="Condition", description="Report it, replace the culprit, or end the run."
    )


class FailurePolicySpec(Section):
    """How much failure a run survives."""

    max_trainer_restarts: int = Field(
        default=10,
        ge=0,
        le=10_000,
        description="Trainer attempts lost to own failures. On one machine: a process's own failures since the"
        " run's last checkpoint.",
    )
    max_infra_restarts: int = Field(
        default=100,
        ge=0,
        le=10_000,
        description="Trainer attempts lost to the infrastructure. On one machine: a process's ends from outside since"
        " the run's last checkpoint.",
    )
    max_infra_attempts_per_prompt: int = Field(
        default=5, ge=1, le=1000, description="Attempts of a sample that failed for infrastructure reasons."
    )
    max_data_attempts_per_prompt: int = Field(
        default=2, ge=1, le=1000, description="Attempts of a prompt whose own data or workflow fails."
    )
    min_step_batch_fraction: Decimal = Field(
        default=Decimal("1"), description="Smallest share of promptsPerStep that makes a step, 0 to 1."
    )
    min_group_fraction: Decimal = Field(
        default=Decimal("1"), description="Smallest share of groupSize that makes a group, 0 to 1."
    )
    max_infra_failure_fraction: Decimal = Field(
        default=Decimal("0.2"), description="Share of infrastructure failures above which the run is degraded, 0 to 1."
    )
    rules: tuple[FailureRuleSpec, ...] = Field(
        default=(), max_length=16, description="First match wins; before the default rules."
    )
    stall: StallSpec = Field(default=StallSpec(), description="What counts as a stall.")
    on_divergence: Literal["Condition", "Fail"] = Field(
        default="Condition",
        description="Where the run loses what it has learned: Degraded with reason LearningDiverged, or the end.",
    )

    @rule()
    def shares_are_in_range(self) -> Iterator[Problem]:
        for key, value in (
            ("minStepBatchFraction", self.min_step_batch_fraction),
            ("minGroupFraction", self.min_group_fraction),
            ("maxInfraFailureFraction", self.max_infra_failure_fraction),
        ):
            if not 0 <= value <= 1:
                yield key, value, NO_SHARE


class SecuritySpec(Section):
    """Connections between roles."""

    tls: Literal["Operator", "Disabled"] = Field(
        default="Operator",
        description="Who issues certificates: the operator, or none, with which nothing is encrypted.",
    )
    network_policy: bool = Field(default=True, description="Make NetworkPolicies for the job.")


LogLevel = Literal["Debug", "Info", "Warning", "Error"]


class ObservabilitySpec(Section):
    """What a run shows of itself."""

    pod_monitor: bool | None = Field(default=None, description="Make a PodMonitor. Default: if its API is served.")
    trajectory_dump: Literal["None", "Sampled", "All"] = Field(
        default="Sampled", description="Groups written to files; Sampled: four of each version and rollout."
    )
    trajectory_dump_also: tuple[Literal["Text", "LegacyMonitor", "Tokens"], ...] = Field(
        default=(),
        max_length=3,
        description="Text: to read, turn by turn; LegacyMonitor: AReaL's, a line per turn; Tokens: log-probs.",
    )
    log_level: LogLevel = Field(default="Info", description="Least severe log line.")
    trackers: tuple[TrackerSpec, ...] = Field(
        default=(),
        max_length=8,
        json_schema_extra=NAMED,
        description="Experiment trackers that also get metrics of steps and evaluations. One that fails or hangs is"
        " restarted. Keys: spec.coordinator.pod.env.",
    )
