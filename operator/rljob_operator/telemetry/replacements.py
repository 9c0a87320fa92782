"""Which pods of a role were lost and are made again, and why they were lost. Pure.

Reasons of the condition DisruptionTarget: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/
"""

import enum
from collections.abc import Sequence

from rljob_operator.model import Pod


class Cause(enum.StrEnum):
    """Label of rljob_pod_replacements_total."""

    EVICTED = "evicted"
    NODE = "node"
    CRASH = "crash"
    OOM = "oom"
    DRAIN = "drain"
    OTHER = "other"


_DISRUPTIONS = {
    "EvictionByEvictionAPI": Cause.DRAIN,
    "PreemptionByScheduler": Cause.EVICTED,
    "DeletionByTaintManager": Cause.NODE,
    "DeletionByPodGC": Cause.NODE,
    "TerminationByKubelet": Cause.NODE,
}
_NODE_REASONS = frozenset({"NodeLost", "NodeShutdown", "Terminated", "UnexpectedAdmissionError"})
_OUT_OF_MEMORY = "OOMKilled"


def replacements(before: Sequence[Pod], after: Sequence[Pod], *, num_wanted: int) -> tuple[Cause, ...]:
    """Return a cause for each pod of a role that ran in `before` and has to be made again, or is.

    Pods that go because fewer are wanted, and those that succeeded, are not replaced. A container that its kubelet
    starts again in its pod counts as one. Raises ValueError if `num_wanted` is negative.
    """
    if num_wanted < 0:
        raise ValueError(f"need {num_wanted=} to be at least 0")
    now = {pod.uid: pod for pod in after}
    before_by_uid = {pod.uid: pod for pod in before}
    lost = [now.get(pod.uid, pod) for pod in before if _lives(pod) and not _lives(now.get(pod.uid))]
    num_alive, num_new = sum(map(_lives, after)), sum(_lives(pod) for pod in after if pod.uid not in before_by_uid)
    num_replaced = max(0, num_wanted - num_alive) + num_new
    gone = [_cause_of(pod) for pod in sorted(lost, key=lambda pod: pod.name) if pod.phase != "Succeeded"]
    restarted = [
        pod
        for pod in after
        if pod.uid in before_by_uid and _lives(pod) and pod.restarts > before_by_uid[pod.uid].restarts
    ]
    return (*gone[:num_replaced], *(_cause_of_restart(pod) for pod in restarted))


def _lives(pod: Pod | None) -> bool:
    return pod is not None and not pod.is_terminal and not pod.deleting


def _cause_of(pod: Pod) -> Cause:
    """Return why a pod is lost, by what was seen of it last."""
    if pod.reason == "Evicted":
        return Cause.EVICTED
    if pod.disruption in _DISRUPTIONS:
        return _DISRUPTIONS[pod.disruption]
    if pod.reason in _NODE_REASONS:
        return Cause.NODE
    if pod.container_reason == _OUT_OF_MEMORY:
        return Cause.OOM
    return Cause.CRASH if pod.exit_code else Cause.OTHER


def _cause_of_restart(pod: Pod) -> Cause:
    return Cause.OOM if pod.last_container_reason == _OUT_OF_MEMORY else Cause.CRASH
