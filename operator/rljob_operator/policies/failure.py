"""Whose fault the end of a trainer attempt was, and when the next one may start (operator reference 9.5-9.8). Pure."""

import dataclasses
import enum
from collections.abc import Iterable, Sequence

from rljob_api import names
from rljob_api.manifest.lifecycle import FailureRuleSpec
from rljob_operator.model import POD, Delete, Pod, Ref

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
    if rule.pod_conditions and not any(
        (condition.type, condition.status) in end.conditions for condition in rule.pod_conditions
    ):
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


CRASH_LOOP = "CrashLoopBackOff"


def misconfigured(pods: Sequence[Pod]) -> Pod | None:
    """Return a pod of a role whose pods all refuse their configuration again and again; None if there is none.

    A trainer's pods are not started anew: its attempts are judged one by one.
    """
    for role in (role for role in names.Role if role is not names.Role.TRAINER):
        pods_of_role = [pod for pod in pods if pod.role is role and not pod.deleting]
        if pods_of_role and all(_refuses(pod) for pod in pods_of_role):
            return min(pods_of_role, key=lambda pod: pod.name)
    return None


def _refuses(pod: Pod) -> bool:
    return pod.waiting_reason == CRASH_LOOP and pod.last_exit_code == names.ExitCode.CONFIGURATION


# How long after its grace period a kubelet that answers may take to say that a pod is gone.
_OVERDUE_S = 60.0
# How long after its eviction a pod is waited for where its node is known not to answer.
_EVICTED_S = 60.0
# One that was not ready for so long before its eviction neither works nor holds what its grace would save.
_IDLE_S = 30.0
_TAINTED = "DeletionByTaintManager"
_UNREADY, _CONTAINERS_READY = ("Ready", "False"), ("ContainersReady", "True")


def lost_at(pod: Pod) -> float | None:
    """Return from when a pod is given up, in unix seconds; None for one that is not going.

    Its end is a minute overdue, or it was evicted for its node's taint and the node does not answer: then the node
    controller has set Ready to False and left ContainersReady, which a kubelet always sets together. Of a pod that was
    not ready anyway, one that loaded, nothing tells whether its node answers, and nothing is lost with it.
    """
    if not pod.deleting or pod.is_terminal:
        return None
    overdue_at = pod.deleted_at + _OVERDUE_S
    is_evicted = pod.disruption == _TAINTED and _UNREADY in pod.conditions
    is_cut_off = is_evicted and _CONTAINERS_READY in pod.conditions
    was_idle = is_evicted and 0.0 < pod.unready_at <= pod.disrupted_at - _IDLE_S
    return min(overdue_at, pod.disrupted_at + _EVICTED_S) if is_cut_off or was_idle else overdue_at


def is_lost(pod: Pod, *, now: float) -> bool:
    """Return whether a pod is given up: its node does not answer."""
    at = lost_at(pod)
    return at is not None and now >= at


def forced_deletions(pods: Iterable[Pod], *, now: float) -> tuple[Delete, ...]:
    """Return the deletions by force of pods that are given up; what still hangs after one waits for another's hand."""
    given_up = (pod for pod in pods if is_lost(pod, now=now) and not pod.forced)
    return tuple(Delete(ref=Ref(POD, pod.name), uid=pod.uid, grace_s=0) for pod in given_up)


def next_loss_at(pods: Iterable[Pod], *, now: float) -> float | None:
    """Return when the next pod is to be given up; None if none goes."""
    return min((at for pod in pods if (at := lost_at(pod)) is not None and at > now), default=None)
