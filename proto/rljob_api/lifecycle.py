"""How a run ends or goes on after a failure: classes of exits, rules, restart budgets, backoff and deadlines. Pure.

The operator and the local runner decide by these (docs/design/operator.md#s-9). What only a cluster knows of an exit
(conditions of the pod, reasons of the kubelet) is empty on one machine, and a signal is known there alone.
"""

import dataclasses
import enum
import signal
from collections.abc import Sequence

from rljob_api import enums
from rljob_api.manifest.lifecycle import FailureRuleSpec

# Trainer attempts in a row without a step after which the job itself is taken to be the cause.
MAX_ATTEMPTS_WITHOUT_STEP = 3
FIRST_BACKOFF_S, MAX_BACKOFF_S = 10.0, 300.0
_INFRASTRUCTURE_REASONS = frozenset({"Evicted", "NodeLost", "NodeShutdown", "UnexpectedAdmissionError"})
# Signals that another process sends, as a pod is deleted in a cluster. One that the program raises itself (SEGV, ABRT,
# BUS) is its own fault.
_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class FailureClass(enum.StrEnum):
    """Which budget an exit counts in, if any."""

    APPLICATION = "application"
    INFRASTRUCTURE = "infrastructure"
    REQUESTED = "requested"
    FINISHED = "finished"
    CONFIGURATION = "configuration"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How one process, or the pod around it, ended.

    exit_code: negative for the signal that ended it; None: the pod never reported one. reason, container_reason,
    conditions (type and status): of the pod. deleted_by_others: the pod was deleted by another client while it ran.
    """

    role: enums.Role
    exit_code: int | None
    reason: str = ""
    container_reason: str = ""
    conditions: frozenset[tuple[str, str]] = frozenset()
    deleted_by_others: bool = False
    node_ready: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why a run ends as failed: a reason of the condition Failed, and a sentence."""

    reason: str
    message: str


def classify(end: Exit, *, attempts_without_step: int = 0) -> FailureClass:
    """Return the class of an exit.

    attempts_without_step: trainer attempts in a row, this one included, that finished no step. From
    MAX_ATTEMPTS_WITHOUT_STEP on a failure counts as the application's, whatever the infrastructure did.
    """
    if end.exit_code == enums.ExitCode.OK:
        return FailureClass.FINISHED
    if end.exit_code == enums.ExitCode.STOPPED_ON_REQUEST:
        return FailureClass.REQUESTED
    if end.exit_code in (enums.ExitCode.CONFIGURATION, enums.ExitCode.ISOLATION_REFUSED):
        return FailureClass.CONFIGURATION
    if attempts_without_step < MAX_ATTEMPTS_WITHOUT_STEP and _is_infrastructure(end):
        return FailureClass.INFRASTRUCTURE
    return FailureClass.APPLICATION


def _is_infrastructure(end: Exit) -> bool:
    code = end.exit_code
    by_process = code == enums.ExitCode.INFRASTRUCTURE or (code is not None and -code in _SENT_BY_OTHERS)
    by_cluster = ("DisruptionTarget", "True") in end.conditions or end.reason in _INFRASTRUCTURE_REASONS
    return by_process or by_cluster or end.deleted_by_others or not end.node_ready


def matching_rule(end: Exit, rules: Sequence[FailureRuleSpec]) -> FailureRuleSpec | None:
    """Return the first rule whose criteria all match; None if the defaults decide."""
    return next((rule for rule in rules if _matches(rule, end)), None)


def _matches(rule: FailureRuleSpec, end: Exit) -> bool:
    if rule.role is not None and rule.role != end.role:
        return False
    if rule.exit_codes is not None:
        # Without an exit code a pod neither has nor lacks one.
        if end.exit_code is None:
            return False
        if (end.exit_code in rule.exit_codes.values) is not (rule.exit_codes.operator == "In"):
            return False
    conditions = {(condition.type, condition.status) for condition in rule.pod_conditions}
    if conditions and not conditions & end.conditions:
        return False
    return not rule.container_reasons or end.container_reason in rule.container_reasons


def backoff_s(num_failures: int, *, first_s: float = FIRST_BACKOFF_S, max_s: float = MAX_BACKOFF_S) -> float:
    """Return the seconds before the next attempt after so many failures in a row: `first_s`, doubled up to `max_s`.

    Raises ValueError below 1.
    """
    if num_failures < 1:
        raise ValueError(f"need {num_failures=} to be at least 1")
    return min(max_s, first_s * 2.0 ** min(num_failures - 1, 30))


def exceeded_budget(
    *, application: int, infrastructure: int, max_trainer_restarts: int, max_infra_restarts: int
) -> str | None:
    """Return the reason of Failed once there are more failures than restarts allowed, else None."""
    if application > max_trainer_restarts:
        return "RestartLimitExceeded"
    return "InfraLimitExceeded" if infrastructure > max_infra_restarts else None


def deadline(since: float | None, limit_s: float | None) -> float | None:
    """Return the end of a limit in unix seconds; None without a limit, or while what it counts from has not begun.

    An absolute end, from times that are on record: a process that restarts restarts no clock.
    """
    return None if since is None or limit_s is None else since + limit_s


def is_over(end: float | None, now: float) -> bool:
    """Return whether a deadline is set and reached; a clock that jumped back is before it, and so never early."""
    return end is not None and now >= end


def startup_exceeded(limit_s: float) -> Failure:
    """Return the failure of a segment that finished no step within `spec.startupDeadlineSeconds`."""
    message = f"no step was finished within spec.startupDeadlineSeconds = {limit_s:.0f}"
    return Failure("StartupDeadlineExceeded", message)


def scheduling_exceeded(limit_s: float) -> Failure:
    """Return the failure of a job whose pods had no node within `spec.schedulingDeadlineSeconds`."""
    message = f"pods had no node after spec.schedulingDeadlineSeconds = {limit_s:.0f}"
    return Failure("SchedulingDeadlineExceeded", message)


def active_exceeded(limit_s: float) -> Failure:
    """Return the failure of a segment that took longer than `spec.activeDeadlineSeconds`."""
    return Failure("ActiveDeadlineExceeded", f"the run took longer than spec.activeDeadlineSeconds = {limit_s:.0f}")


def describe_exit(code: int) -> str:
    """Return an exit code in words: `exit code 1`, `signal SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
