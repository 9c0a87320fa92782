"""Pods whose failure the operator must act on by itself: those that crash for their configuration, those that are lost.

A pod is lost when it is being deleted and its node does not answer: it would stay Terminating until the node comes
back, perhaps for ever. It is deleted by force and waited for no longer. A process that still runs on such a node does
no harm: the coordinator refuses trainer attempts that were replaced (docs/design/operator.md#s-9-2). The operator has
no rights on nodes, so the pods' own conditions have to do. Classes of exits, budgets and backoff are in
`rljob_api.lifecycle`.
"""

from collections.abc import Iterable, Sequence

from rljob_api import enums
from rljob_operator.model import POD, Delete, Pod, Ref

CRASH_LOOP = "CrashLoopBackOff"


def misconfigured(pods: Sequence[Pod]) -> Pod | None:
    """Return a pod of a role whose pods all refuse their configuration again and again; None if there is none.

    A trainer's pods are not restarted: its attempts are judged one by one. The exit codes of agents are the user's own.
    """
    for role in (role for role in enums.Role if role not in (enums.Role.TRAINER, enums.Role.AGENTS)):
        pods_of_role = [pod for pod in pods if pod.role is role and not pod.deleting]
        if pods_of_role and all(_refuses(pod) for pod in pods_of_role):
            return min(pods_of_role, key=lambda pod: pod.name)
    return None


def _refuses(pod: Pod) -> bool:
    return pod.waiting_reason == CRASH_LOOP and pod.last_exit_code == enums.ExitCode.CONFIGURATION


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
    not ready anyway, for one that loaded, nothing shows whether its node answers, and nothing is lost with it.
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
