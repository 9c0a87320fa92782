"""Types and reasons of an RLJob's conditions, and of stalls: closed sets, since alerts and runbooks match on them."""

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


STALL_REASONS = (
    "TrainerWaitingForTrajectories", "RolloutWaitingForWeights", "RolloutWaitingForTrainer", "VerifierSaturated",
    "VerifierFailing", "AllGroupsFiltered", "WeightSyncStuck", "CheckpointStuck", "CollectiveHang", "DataSourceStuck",
    "CoordinatorUnreachable", "LedgerStuck", "PodsUnschedulable", "ImagePullFailed", "WaitCycle", "Unknown",
)  # fmt: skip

# Why a run says of itself that it is degraded: the reasons of `RunStatus` that make the condition.
INFRA_FAILURE_SHARE_HIGH, LEDGER_LOST = "InfraFailureShareHigh", "LedgerLost"
DEGRADED_BY_RUN = (INFRA_FAILURE_SHARE_HIGH, LEDGER_LOST)

_T = ConditionType

# By type, then by status; a status that a type never has is absent.
REASONS: Mapping[ConditionType, Mapping[str, tuple[str, ...]]] = {
    _T.ACCEPTED: {
        "True": ("Accepted",),
        "False": (
            "InvalidSpec", "ReferenceNotFound", "CapabilityMissing", "IgnoredField", "NameConflict", "Forbidden",
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
    _T.SUSPENDING: {"True": ("SuspendRequested", "Preempted", "QuotaEvicted"), "False": ("NotSuspending",)},
    _T.SUSPENDED: {"True": ("UserRequested", "WaitingForQuota", "Evicted"), "False": ("Resumed", "NotSuspended")},
    _T.STATE_DURABLE: {"True": ("PersistentVolume", "ExternalStore"), "False": ("EmptyDir",)},
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
    _T.COORDINATOR_READY: {"True": ("Ready",), "False": ("Starting", "Unreachable", "LedgerFailed", "CrashLoop")},
    _T.TRAINER_READY: {
        "True": ("Ready",),
        "False": ("Starting", "Restarting", "BackingOff", "AttemptFailed", "CrashLoop"),
    },
    _T.ROLLOUT_READY: {
        "True": ("Ready",),
        "False": ("Starting", "LoadingWeights", "TooStale", "BelowMinimum", "CrashLoop"),
    },
    _T.VERIFIER_READY: {
        "True": ("Ready",),
        "False": ("Starting", "IsolationUnverified", "BelowMinimum", "CrashLoop"),
    },
    _T.RUNNING: {"True": ("Running",), "False": ("Starting", "Restarting", "NotReady", "Suspended", "Finished")},
    _T.DEGRADED: {
        "True": ("RolloutsBelowTarget", "VerifiersBelowTarget", *DEGRADED_BY_RUN, "AutoscalerMetricsMissing"),
        "False": ("AtTarget",),
    },
    _T.AUTOSCALING_ACTIVE: {
        "True": ("ScalingActive",),
        "False": ("MetricsUnavailable", "ProviderMissing", "Paused"),
    },
    _T.RECONCILING: {
        "True": ("Pending", "Starting", "Updating", "Suspending", "Restarting", "WaitingForCertificates"),
        "False": ("UpToDate", "Blocked"),
    },
    _T.STALLED: {"True": (*STALL_REASONS, "Failed", "NotAccepted"), "False": ("Progressing",)},
    _T.COMPLETE: {"True": ("MaxStepsReached", "DataExhausted"), "False": ("NotFinished",)},
    _T.FAILED: {
        "True": (
            "RestartLimitExceeded", "InfraLimitExceeded", "ConfigurationError", "FailJobRule",
            "SchedulingDeadlineExceeded", "StartupDeadlineExceeded", "ActiveDeadlineExceeded", "StallTimeout",
            "InfraFailureFractionExceeded", "CheckpointUnreadable",
        ),
        "False": ("NotFailed",),
    },
}  # fmt: skip
