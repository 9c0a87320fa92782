"""When each alert fires and when it does not: series in promtool's notation, one sample a minute from minute 0."""

import dataclasses
from collections.abc import Mapping

Input = Mapping[str, str]


def of_job(name: str, /, **labels: str) -> str:
    """Return a series of the job that all cases are about."""
    pairs = {"rljob_namespace": "team", "rljob": "run", **labels}
    matchers = ",".join(f'{label}="{value}"' for label, value in pairs.items())
    return f"{name}{{{matchers}}}"


def condition(kind: str) -> str:
    """Return the series of a condition."""
    return of_job("rljob_condition", type=kind)


def setting(name: str) -> str:
    """Return the series of a setting."""
    return of_job("rljob_setting", name=name)


def trajectories(outcome: str) -> str:
    """Return the counter of an outcome."""
    return of_job("rljob_trajectories_total", outcome=outcome)


def gradings(outcome: str, reason: str) -> str:
    """Return the counter of an outcome of one reward on one verifier."""
    return of_job(
        "rljob_verify_total", reward="main", type="math", mode="quick", outcome=outcome, reason=reason, pod="v-0"
    )


def commits(le: str) -> str:
    """Return a bucket of commits to the ledger."""
    return of_job("rljob_ledger_commit_seconds_bucket", le=le)


def waits(pod: str, reason: str) -> str:
    """Return the waiting seconds of a rollout."""
    return of_job("rljob_rollout_wait_seconds_total", pod=pod, reason=reason)


def pods(role: str, state: str) -> str:
    """Return the pods of a role in a state."""
    return of_job("rljob_role_pods", role=role, state=state)


INFO = of_job("rljob_info", queue="", model="m", operator_version="1")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An alert, its severity, what makes it fire at `at`, and what comes close and does not.

    of_operator: it is about the operator, so no job is in its labels. while_suspended: it may fire for a job that is
    suspended.
    """

    severity: str
    at: str
    fires: Input
    quiet: Input
    of_operator: bool = False
    while_suspended: bool = False


CASES: Mapping[str, Case] = {
    "RLJobStalled": Case(
        severity="critical",
        at="5m",
        fires={
            of_job("rljob_stalled", reason="LedgerStuck", role="coordinator"): "1x10",
            condition("Stalled"): "1x10",
        },
        # From half the timeout on the culprit is named; only at the timeout it counts.
        quiet={
            of_job("rljob_stalled", reason="LedgerStuck", role="coordinator"): "1x10",
            condition("Stalled"): "0x10",
        },
    ),
    "RLJobFailed": Case(
        severity="warning",
        at="5m",
        fires={condition("Failed"): "1x10"},
        quiet={condition("Failed"): "0x10"},
        while_suspended=True,
    ),
    "RLJobNoProgress": Case(
        severity="critical",
        at="30m",
        fires={
            of_job("rljob_last_progress_timestamp_seconds"): "0x40",
            setting("stall_timeout_seconds"): "600x40",
        },
        quiet={
            of_job("rljob_last_progress_timestamp_seconds"): "-1200+60x40",
            setting("stall_timeout_seconds"): "600x40",
        },
    ),
    "RLJobCoordinatorDown": Case(
        severity="critical",
        at="10m",
        fires={of_job("rljob_state", state="Running"): "1x20"},
        quiet={of_job("rljob_state", state="Running"): "1x20", of_job("rljob_step"): "3x20"},
    ),
    "RLJobTrainerRestarting": Case(
        severity="warning",
        at="60m",
        fires={of_job("rljob_restarts_total", role="trainer", **{"class": "application"}): "0x9 1x9 2x9 3x9 4x40"},
        quiet={of_job("rljob_restarts_total", role="trainer", **{"class": "application"}): "0x9 1x9 2x9 3x50"},
    ),
    "RLJobPodsUnschedulable": Case(
        severity="warning",
        at="20m",
        fires={pods("trainer", "pending"): "2x30", condition("Running"): "0x30"},
        quiet={pods("trainer", "pending"): "0x30", condition("Running"): "0x30"},
    ),
    "RLJobQueuedTooLong": Case(
        severity="info",
        at="6h1m",
        fires={of_job("rljob_state", state="Queued"): "1x400"},
        quiet={of_job("rljob_state", state="Queued"): "_x5 1x400"},
        while_suspended=True,
    ),
    "RLJobNoReadyRollout": Case(
        severity="critical",
        at="10m",
        fires={pods("rollout", "ready"): "0x20", pods("trainer", "ready"): "1x20"},
        quiet={pods("rollout", "ready"): "1x20", pods("trainer", "ready"): "1x20"},
    ),
    "RLJobDegraded": Case(
        severity="warning", at="35m", fires={condition("Degraded"): "1x40"}, quiet={condition("Degraded"): "0x40"}
    ),
    "RLJobTrainerStarved": Case(
        severity="warning",
        at="50m",
        # Seconds of waiting a minute.
        fires={of_job("rljob_trainer_wait_seconds_total", reason="batch"): "0+31x60"},
        quiet={of_job("rljob_trainer_wait_seconds_total", reason="batch"): "0+29x60"},
    ),
    "RLJobRolloutBlocked": Case(
        severity="info",
        at="75m",
        # Two pods, of which one waits all the time: for two reasons.
        fires={
            waits("a", "staleness"): "0+30x90",
            waits("a", "no_prompts"): "0+30x90",
            waits("b", "staleness"): "0+26x90",
        },
        quiet={
            waits("a", "staleness"): "0+30x90",
            waits("a", "no_prompts"): "0+30x90",
            waits("b", "staleness"): "0+23x90",
        },
    ),
    "RLJobVerifierSaturated": Case(
        severity="warning",
        at="20m",
        fires={
            of_job("rljob_verifier_slots", pod="v-0"): "20x30",
            of_job("rljob_verifier_busy_slots", pod="v-0"): "20x30",
            of_job("rljob_verifier_waiting", pod="v-0"): "1x30",
        },
        quiet={
            of_job("rljob_verifier_slots", pod="v-0"): "20x30",
            of_job("rljob_verifier_busy_slots", pod="v-0"): "19x30",
            of_job("rljob_verifier_waiting", pod="v-0"): "1x30",
        },
    ),
    "RLJobInfraFailureShareHigh": Case(
        severity="warning",
        at="45m",
        fires={trajectories("infra_failure"): "0+6x60", trajectories("accepted"): "0+94x60"},
        quiet={trajectories("infra_failure"): "0+4x60", trajectories("accepted"): "0+96x60"},
    ),
    "RLJobInfraFailureShareCritical": Case(
        severity="critical",
        at="45m",
        fires={trajectories("infra_failure"): "0+21x60", trajectories("accepted"): "0+79x60"},
        quiet={trajectories("infra_failure"): "0+19x60", trajectories("accepted"): "0+81x60"},
    ),
    "RLJobVerifierAlwaysFails": Case(
        severity="critical",
        at="95m",
        # An hour of one pass in six, then none.
        fires={gradings("pass", "ok"): "0+10x60 600x60", gradings("fail", "wrong"): "0+50x120"},
        # The same, but fewer than 200 gradings in 15 minutes.
        quiet={gradings("pass", "ok"): "0+10x60 600x60", gradings("fail", "wrong"): "0+13x120"},
    ),
    "RLJobSandboxIsolationLost": Case(
        severity="critical",
        at="2m",
        fires={of_job("rljob_isolation_layer", layer="seccomp", required="true"): "0x10"},
        quiet={
            of_job("rljob_isolation_layer", layer="seccomp", required="true"): "1x10",
            of_job("rljob_isolation_layer", layer="landlock", required="false"): "0x10",
        },
    ),
    "RLJobSandboxSurvivors": Case(
        severity="critical",
        at="5m",
        fires={of_job("rljob_sandbox_survivors_total", pod="v-0"): "0x3 1x10"},
        quiet={of_job("rljob_sandbox_survivors_total", pod="v-0"): "0x10"},
    ),
    "RLJobStaleShareHigh": Case(
        severity="warning",
        at="60m",
        fires={trajectories("stale"): "0+21x90", trajectories("accepted"): "0+79x90"},
        quiet={trajectories("stale"): "0+19x90", trajectories("accepted"): "0+81x90"},
    ),
    "RLJobVersionLagHigh": Case(
        severity="warning",
        at="15m",
        fires={of_job("rljob_rollout_version_lag", pod="r-0"): "3x20", setting("max_off_policy_steps"): "2x20"},
        quiet={of_job("rljob_rollout_version_lag", pod="r-0"): "2x20", setting("max_off_policy_steps"): "2x20"},
    ),
    "RLJobWeightSyncFailing": Case(
        severity="warning",
        at="25m",
        fires={of_job("rljob_weight_sync_failures_total", pod="r-0", reason="digest"): "0+1x30"},
        quiet={of_job("rljob_weight_sync_failures_total", pod="r-0", reason="digest"): "3x30"},
    ),
    "RLJobMismatchHigh": Case(
        severity="warning",
        at="25m",
        fires={of_job("rljob_mismatch_kl"): "0.11x30"},
        quiet={of_job("rljob_mismatch_kl"): "0.1x30"},
    ),
    "RLJobNonFinite": Case(
        severity="warning",
        at="8m",
        fires={of_job("rljob_nonfinite_total", what="gradient"): "0x5 1x5"},
        quiet={of_job("rljob_nonfinite_total", what="gradient"): "1x10"},
    ),
    "RLJobNoLearningSignal": Case(
        severity="warning",
        at="100m",
        fires={
            of_job("rljob_zero_advantage_groups_total"): "0+19x120",
            of_job("rljob_group_seconds_count", phase="packed"): "0+20x120",
        },
        quiet={
            of_job("rljob_zero_advantage_groups_total"): "0+17x120",
            of_job("rljob_group_seconds_count", phase="packed"): "0+20x120",
        },
    ),
    "RLJobEntropyCollapsed": Case(
        severity="info",
        at="65m",
        fires={of_job("rljob_entropy"): "0.04x90"},
        quiet={of_job("rljob_entropy"): "0.05x90"},
    ),
    "RLJobCheckpointFailing": Case(
        severity="warning",
        at="8m",
        fires={of_job("rljob_checkpoint_failures_total"): "0x5 1x5"},
        quiet={of_job("rljob_checkpoint_failures_total"): "1x10"},
    ),
    "RLJobCheckpointUploadFailing": Case(
        severity="warning",
        at="25m",
        fires={of_job("rljob_checkpoint_upload_failures_total"): "0+1x30"},
        quiet={of_job("rljob_checkpoint_upload_failures_total"): "0 1x30"},
    ),
    "RLJobCheckpointStale": Case(
        severity="critical",
        at="135m",
        # A checkpoint every ten minutes is usual, so two hours are allowed.
        fires={
            of_job("rljob_checkpoint_last_success_timestamp_seconds"): "0x150",
            of_job("rljob_step"): "0+1x150",
            setting("checkpoint_every_steps"): "10x150",
        },
        quiet={
            of_job("rljob_checkpoint_last_success_timestamp_seconds"): "900x150",
            of_job("rljob_step"): "0+1x150",
            setting("checkpoint_every_steps"): "10x150",
        },
    ),
    "RLJobLedgerSlow": Case(
        severity="warning",
        at="30m",
        # Ten in a hundred are slower than a second; then four.
        fires={commits("1"): "0+90x40", commits("2.5"): "0+100x40", commits("+Inf"): "0+100x40"},
        quiet={commits("1"): "0+96x40", commits("2.5"): "0+100x40", commits("+Inf"): "0+100x40"},
    ),
    "RLJobStateNotDurable": Case(
        severity="info",
        at="6h1m",
        fires={condition("StateDurable"): "0x400"},
        quiet={condition("StateDurable"): "1x400"},
    ),
    "RLJobChildrenNotApplied": Case(
        severity="warning",
        at="20m",
        fires={condition("ChildrenApplied"): "0x30"},
        quiet={condition("ChildrenApplied"): "1x30"},
    ),
    "RLJobCertificateExpiring": Case(
        severity="critical",
        at="15m",
        # A day has 86400 seconds; the second end moves with the clock and stays a minute beyond.
        fires={of_job("rljob_certificate_expiry_timestamp_seconds", role="rollout"): "86400x30"},
        quiet={of_job("rljob_certificate_expiry_timestamp_seconds", role="rollout"): "86460+60x30"},
    ),
    "RLJobAutoscalerBlind": Case(
        severity="warning",
        at="20m",
        fires={condition("AutoscalingActive"): "0x30"},
        quiet={condition("AutoscalingActive"): "1x30"},
    ),
    "RLJobOperatorDown": Case(
        severity="critical",
        at="11m",
        fires={},
        quiet={'rljob_operator_info{version="1",crd_matches="true"}': "1x20"},
        of_operator=True,
    ),
    "RLJobOperatorNoLeader": Case(
        severity="critical",
        at="5m",
        fires={'rljob_operator_leader{shard="0",pod="a"}': "0x10", 'rljob_operator_leader{shard="0",pod="b"}': "0x10"},
        quiet={'rljob_operator_leader{shard="0",pod="a"}': "0x10", 'rljob_operator_leader{shard="0",pod="b"}': "1x10"},
        of_operator=True,
    ),
    "RLJobOperatorErrors": Case(
        severity="warning",
        at="25m",
        fires={'rljob_operator_reconcile_errors_total{class="ApiError"}': "0+7x30"},
        quiet={'rljob_operator_reconcile_errors_total{class="ApiError"}': "0+5x30"},
        of_operator=True,
    ),
    "RLJobOperatorQueueStuck": Case(
        severity="critical",
        at="10m",
        fires={"rljob_operator_queue_oldest_seconds": "301x20"},
        quiet={"rljob_operator_queue_oldest_seconds": "300x20"},
        of_operator=True,
    ),
    "RLJobOperatorWatchLagging": Case(
        severity="warning",
        at="15m",
        fires={"rljob_operator_watch_lag_seconds": "301x20"},
        quiet={"rljob_operator_watch_lag_seconds": "300x20"},
        of_operator=True,
    ),
    "RLJobOperatorListsRefused": Case(
        severity="warning",
        at="20m",
        fires={"rljob_operator_refused_lists": "1x30"},
        quiet={"rljob_operator_refused_lists": "0x30"},
        of_operator=True,
    ),
    "RLJobOperatorWriteStorm": Case(
        severity="warning",
        at="30m",
        fires={
            'rljob_operator_api_requests_total{verb="patch",resource="pods",code="2xx"}': "0+310x40",
            condition("Running"): "1x40",
        },
        quiet={
            'rljob_operator_api_requests_total{verb="patch",resource="pods",code="2xx"}': "0+290x40",
            condition("Running"): "1x40",
        },
        of_operator=True,
    ),
}
