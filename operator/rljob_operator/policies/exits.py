"""Whose fault the end of a trainer attempt was, and when the next one may start (operator reference 9.5-9.8). Pure."""

import dataclasses
import enum

from rljob_api import names
from rljob_api.spec.lifecycle import FailureRuleSpec

_INFRA_REASONS = frozenset({"Evicted", "NodeLost", "NodeShutdown", "UnexpectedAdmissionError"})
_FIRST_BACKOFF_S = 10.0
_MOST_BACKOFF_S = 300.0
# Attempts in a row without a step after which the cause is taken to be the job itself (9.8).
_FRUITLESS_ATTEMPTS = 3


class FailureClass(enum.StrEnum):
    """Which budget an ending counts in."""

    APPLICATION = "application"
    INFRASTRUCTURE = "infrastructure"
    REQUESTED = "requested"
    FINISHED = "finished"
    CONFIGURATION = "configuration"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodEnd:
    """How one pod ended. `exit_code` None: it never reported one. `conditions` are type and status."""

    role: names.Role
    exit_code: int | None
    reason: str = ""
    container_reason: str = ""
    conditions: frozenset[tuple[str, str]] = frozenset()
    deleted_by_others: bool = False
    node_ready: bool = True


def classify(end: PodEnd, *, fruitless_attempts: int = 0) -> FailureClass:
    """Return the class of an ending. `fruitless_attempts`: trainer attempts in a row, this one included, without a
    step; from 3 on the class is application, whatever the infrastructure did.
    """
    if end.exit_code == names.ExitCode.OK:
        return FailureClass.FINISHED
    if end.exit_code == names.ExitCode.STOPPED_ON_REQUEST:
        return FailureClass.REQUESTED
    if end.exit_code in (names.ExitCode.CONFIGURATION, names.ExitCode.ISOLATION_REFUSED):
        return FailureClass.CONFIGURATION
    if fruitless_attempts < _FRUITLESS_ATTEMPTS and _is_infrastructure(end):
        return FailureClass.INFRASTRUCTURE
    return FailureClass.APPLICATION


def _is_infrastructure(end: PodEnd) -> bool:
    disrupted = ("DisruptionTarget", "True") in end.conditions
    seen_by_process = end.exit_code == names.ExitCode.INFRASTRUCTURE
    taken_away = end.deleted_by_others or not end.node_ready
    return disrupted or seen_by_process or taken_away or end.reason in _INFRA_REASONS


def matching_rule(end: PodEnd, rules: tuple[FailureRuleSpec, ...]) -> FailureRuleSpec | None:
    """Return the first rule whose criteria all match; None if the default rules decide."""
    return next((rule for rule in rules if _matches(rule, end)), None)


def _matches(rule: FailureRuleSpec, end: PodEnd) -> bool:
    if rule.role is not None and rule.role != end.role:
        return False
    if rule.exit_codes is not None:
        # A pod without an exit code neither has nor lacks a code.
        if end.exit_code is None:
            return False
        if (end.exit_code in rule.exit_codes.values) is not (rule.exit_codes.operator == "In"):
            return False
    if rule.pod_conditions and not any((known.type, known.status) in end.conditions for known in rule.pod_conditions):
        return False
    return not rule.container_reasons or end.container_reason in rule.container_reasons


def backoff_s(num_failures: int) -> float:
    """Return the seconds before the next attempt, after failures in a row since the last checkpoint: 10, 20, .. 300.

    Raises ValueError below 1.
    """
    if num_failures < 1:
        raise ValueError(f"need {num_failures=} to be at least 1")
    return min(_MOST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(num_failures - 1, 5))


def exceeded_budget(
    *, application: int, infrastructure: int, max_trainer_restarts: int, max_infra_restarts: int
) -> str | None:
    """Return the reason of Failed once failures outnumber the restarts that are allowed, else None."""
    if application > max_trainer_restarts:
        return "RestartLimitExceeded"
    return "InfraLimitExceeded" if infrastructure > max_infra_restarts else None
