"""Pods that go and whose node does not answer: they would stay Terminating until it comes back, perhaps for ever.

They are deleted by force and waited for no longer. A process that still runs on such a node does no harm: the
coordinator refuses trainer attempts that were replaced (operator reference 9.2, 9.4). The operator has no rights on
nodes, so the pods' own marks tell.
"""

from collections.abc import Iterable

from rljob_operator.model import POD, Delete, Pod, Ref

# How long after its grace period a kubelet that answers may take to say that a pod is gone.
_OVERDUE_S = 60.0
# How long after its eviction a pod is waited for where its node is known not to answer.
_EVICTED_S = 60.0
_TAINTED = "DeletionByTaintManager"
_UNREADY, _CONTAINERS_READY = ("Ready", "False"), ("ContainersReady", "True")


def lost_at(pod: Pod) -> float | None:
    """Return from when a pod is given up, in unix seconds; None for one that is not going.

    Its end is a minute overdue, or it was evicted for its node's taint and the node does not answer: then the node
    controller has set Ready to False and left ContainersReady, which a kubelet always sets together.
    """
    if not pod.deleting or pod.is_terminal:
        return None
    overdue_at = pod.deleted_at + _OVERDUE_S
    is_cut_off = pod.disruption == _TAINTED and _UNREADY in pod.conditions and _CONTAINERS_READY in pod.conditions
    return min(overdue_at, pod.disrupted_at + _EVICTED_S) if is_cut_off else overdue_at


def is_lost(pod: Pod, *, now: float) -> bool:
    """Return whether a pod is given up: its node does not answer."""
    at = lost_at(pod)
    return at is not None and now >= at


def deletions(pods: Iterable[Pod], *, now: float) -> tuple[Delete, ...]:
    """Return the deletions by force of pods that are given up; what still hangs after one waits for another's hand."""
    given_up = (pod for pod in pods if is_lost(pod, now=now) and not pod.forced)
    return tuple(Delete(ref=Ref(POD, pod.name), uid=pod.uid, grace_s=0) for pod in given_up)


def next_at(pods: Iterable[Pod], *, now: float) -> float | None:
    """Return when the next pod is to be given up; None if none goes."""
    return min((at for pod in pods if (at := lost_at(pod)) is not None and at > now), default=None)
