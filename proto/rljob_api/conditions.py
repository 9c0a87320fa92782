"""Types and reasons of an RLJob's conditions, and of stalls: closed sets, since alerts and runbooks match on them."""

import dataclasses
import enum
from collections.abc import Mapping


class ConditionType(enum.StrEnum):
    """In the order in which a status lists them."""

    ACCEPTED = "Accepted"
    CHILDREN_APPLIED = "ChildrenApplied"
    QUOTA_RESERVED = "QuotaReserved"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    STATE_DURABLE = "StateDurable"
    PODS_SCHEDULED = "PodsScheduled"
    ISOLATION_VERIFIED = "IsolationVerified"
    COORDINATOR_READY = "CoordinatorReady"
    TRAINER_READY = "TrainerReady"
    ROLLOUT_READY = "RolloutReady"
    VERIFIER_READY = "VerifierReady"
    RUNNING = "Running"
    DEGRADED = "Degraded"
    AUTOSCALING_ACTIVE = "AutoscalingActive"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclasses.dataclass(frozen=True, slots=True)
class StallReason:
    """What a stall's reason means, and what to do first. runbook: the section that says more, empty if none does."""

    means: str
    do: str
    runbook: str = ""

    @property
    def hint(self) -> str:
        return f"{self.means}; {self.do}"


# Hints of the command line and the table of docs/runbooks are made of this.
STALLS: Mapping[str, StallReason] = {
    "TrainerWaitingForTrajectories": StallReason(
        "the trainer is idle: rollouts generate too slowly or are not ready",
        "look at the rollouts' logs, then add rollouts, shorten responses or lower the prompts per step",
    ),
    "RolloutWaitingForWeights": StallReason(
        "rollouts wait for a version that the trainer has not published",
        "look at the trainer's log and at the publishing of weights",
        "RLJobWeightSyncFailing",
    ),
    "RolloutWaitingForTrainer": StallReason(
        "the staleness bound admits no more groups until the trainer steps",
        "look at the trainer's log: a long step, or a hang",
    ),
    "VerifierSaturated": StallReason(
        "gradings wait for a slot, or for a verifier that hangs",
        "look at its log and readiness, then add verifiers or slots, or lower the graders' time limits",
        "RLJobVerifierSaturated",
    ),
    "VerifierFailing": StallReason(
        "most gradings fail for infrastructure, which is not a reward",
        "look at the verifier's log; a refused isolation ends with exit code 79",
    ),
    "JudgeSlow": StallReason(
        "answers wait for the judge, a language model",
        "look at rljob_judge_calls_total: busy asks for fewer calls (maxConcurrent, callsPerMinute) or a larger quota",
    ),
    "JudgeUnavailable": StallReason(
        "most judgements fail for infrastructure, which is not a reward",
        "look at the judge's log: its URL, its key, its quota, and in a cluster what its NetworkPolicy lets out",
    ),
    "WaitingForAgents": StallReason(
        "answers wait for agents, which take no task or make no call",
        "look at their logs, and in a cluster at their pods: a crash, a wrong URL or key, an undeclared egress",
    ),
    "WaitingForEnvironment": StallReason(
        "answers wait for a place in an environment, or for a command in one",
        "look at its log and readiness, then add replicas or places, or lower the time that a command may take",
    ),
    "AllGroupsFiltered": StallReason(
        "every group is rejected by the filter",
        "compare spec.data.filterGroups with the rewards that `rljob trajectories` shows: tasks too easy or too hard",
    ),
    "WeightSyncStuck": StallReason(
        "a rollout does not load the newest weight version",
        "look at its log, at the weight store, and at network and disk between them",
    ),
    "CheckpointStuck": StallReason(
        "the trainer is stuck in its last checkpoint",
        "look at the storage (full, slow or unreachable) and the trainer's log",
    ),
    "CollectiveHang": StallReason(
        "trainer ranks wait for each other",
        "look for the rank that is behind in the logs of all ranks",
    ),
    "DataSourceStuck": StallReason(
        "the coordinator has no prompt to give",
        "look at spec.data.train and the coordinator's log",
    ),
    "CoordinatorUnreachable": StallReason(
        "the coordinator does not answer; the run may continue, and is not ended",
        "look at its log, and in a cluster at its pod, Service, NetworkPolicy and certificates",
    ),
    "LedgerStuck": StallReason(
        "the ledger cannot commit",
        "look at the disk: full, slow, or a network file system",
        "RLJobLedgerSlow",
    ),
    "PodsUnschedulable": StallReason(
        "a pod has no node",
        "look at its events: quota, accelerators, taints",
        "RLJobPodsUnschedulable",
    ),
    "ImagePullFailed": StallReason(
        "an image cannot be pulled",
        "look at its name, the registry and the pull Secrets, in the pod's events",
    ),
    "WaitCycle": StallReason(
        "processes wait for each other in a circle, which is a bug in rljob",
        "restart the last of the chain, and report it with these lines or `rljob status --json`",
    ),
    "Unknown": StallReason(
        "no progress, and no process reports what it waits for",
        "look at the trainer's log first, then at all logs since the last progress",
    ),
}
STALL_REASONS = tuple(STALLS)

# Why a run says of itself that it is degraded: the reasons of `RunStatus` that make the condition.
INFRA_FAILURE_SHARE_HIGH, LEDGER_LOST = "InfraFailureShareHigh", "LedgerLost"
# The run loses what it has learned.
LEARNING_DIVERGED = "LearningDiverged"
DEGRADED_BY_RUN = (INFRA_FAILURE_SHARE_HIGH, LEARNING_DIVERGED, LEDGER_LOST)
# Checkpoints do not reach their object store.
UPLOADS_FAILING = "UploadsFailing"

_T = ConditionType

# By type, then by status; a status that a type never has is absent.
REASONS: Mapping[ConditionType, Mapping[str, tuple[str, ...]]] = {
    _T.ACCEPTED: {
        "True": ("Accepted",),
        "False": (
            "InvalidSpec", "ReferenceNotFound", "CapabilityMissing", "NameConflict", "Forbidden",
            "ChildRejected", "QueueNameConflict",
        ),
        "Unknown": ("Pending",),
    },
    _T.CHILDREN_APPLIED: {
        "True": ("Applied",),
        "False": ("InvalidSpec", "Forbidden", "ChildRejected", "NameConflict"),
    },
    _T.QUOTA_RESERVED: {
        "True": ("Admitted",),
        "False": ("WaitingForQuota", "ExceedsMaxQuota", "NoMatchingFlavor", "Evicted", "Deactivated", "Suspended"),
    },
    _T.SUSPENDING: {
        "True": ("SuspendRequested", "RetryRequested", "Preempted", "QuotaEvicted"),
        "False": ("NotSuspending",),
    },
    _T.SUSPENDED: {
        "True": ("UserRequested", "RetryRequested", "WaitingForQuota", "Evicted"),
        "False": ("Resumed", "NotSuspended"),
    },
    _T.STATE_DURABLE: {"True": ("PersistentVolume", "ExternalStore"), "False": ("EmptyDir", UPLOADS_FAILING)},
    _T.PODS_SCHEDULED: {
        "True": ("Scheduled",),
        "False": (
            "Pending", "Unschedulable", "WaitingForGang", "SchedulingGated", "ImagePullFailed", "CreateFailed",
            "Suspended", "Finished",
        ),
    },
    _T.ISOLATION_VERIFIED: {
        "True": ("RuntimeClassVerified", "UserNamespaceVerified", "SandboxVerified"),
        "False": ("ProbeFailed", "NetworkNotEnforced", "LayerMissing"),
        "Unknown": ("ProbePending",),
    },
    _T.COORDINATOR_READY: {"True": ("Ready",), "False": ("Starting", "Unreachable", "CrashLoop")},
    _T.TRAINER_READY: {
        "True": ("Ready",),
        "False": ("Starting", "Restarting", "BackingOff", "CrashLoop"),
    },
    _T.ROLLOUT_READY: {
        "True": ("Ready",),
        "False": ("Starting", "BelowMinimum", "CrashLoop"),
    },
    _T.VERIFIER_READY: {
        "True": ("Ready",),
        "False": ("Starting", "IsolationUnverified", "BelowMinimum", "CrashLoop"),
    },
    _T.RUNNING: {"True": ("Running",), "False": ("Starting", "Restarting", "NotReady", "Suspended", "Finished")},
    _T.DEGRADED: {
        "True": (
            *("RolloutsBelowTarget", "VerifiersBelowTarget", "AgentsBelowTarget", "EnvironmentsBelowTarget"),
            *DEGRADED_BY_RUN,
        ),
        "False": ("AtTarget",),
    },
    _T.AUTOSCALING_ACTIVE: {
        "True": ("ScalingActive",),
        "False": ("MetricsUnavailable", "ProviderMissing", "Paused"),
    },
    _T.RECONCILING: {
        "True": ("Pending", "Starting", "Suspending", "Restarting"),
        "False": ("UpToDate", "Blocked"),
    },
    _T.STALLED: {"True": (*STALL_REASONS, "Failed", "NotAccepted"), "False": ("Progressing",)},
    _T.COMPLETE: {"True": ("MaxStepsReached", "DataExhausted"), "False": ("NotFinished",)},
    _T.FAILED: {
        "True": (
            "RestartLimitExceeded", "InfraLimitExceeded", "ConfigurationError", "FailJobRule",
            "SchedulingDeadlineExceeded", "StartupDeadlineExceeded", "ActiveDeadlineExceeded", "StallTimeout",
        ),
        "False": ("NotFailed",),
    },
}  # fmt: skip
