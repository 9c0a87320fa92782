"""What a queue is told: which Workload there should be, when its pods are ready, when its quota is free. Pure.

Quota is returned after the last pod, never before: what still runs still uses it. The conditions are those that
Kueue's own job framework writes for the kinds it knows.
"""

from collections.abc import Mapping

from rljob_operator import clock
from rljob_operator.model import WORKLOAD, Action, Apply, Child, Delete, Manifest, Observed, PatchStatus, ref_of
from rljob_operator.queueing import admission

# After these Kueue puts the Workload back in line by itself; after others it waits for what it evicted for.
_REQUEUED = frozenset({"Preempted", "NodeFailures"})
_PODS_READY = "PodsReady"


def while_stopped(observed: Observed, queued: Manifest | None, *, now: float) -> tuple[Action, ...]:
    """Return what a queue is told of a job that has no pod: evicted quota is returned, and what waits is what the
    manifest asks for now. A job that its user suspended, or that may not begin, asks for nothing.
    """
    workloads = of_job(observed)
    if queued is None:
        return tuple(Delete(ref=each.ref, uid=each.uid) for each in workloads if not each.deleting)
    ref = ref_of(queued)
    # One that is finished is of a run that failed and is retried: it is made again, under its name.
    outdated = [
        each
        for each in workloads
        if not each.deleting and (each.ref != ref or admission.holds(each, admission.FINISHED))
    ]
    same = next((each for each in workloads if each.ref == ref), None)
    deletions = tuple(Delete(ref=each.ref, uid=each.uid) for each in outdated)
    if same in outdated:
        return deletions
    if same is None:
        return (*deletions, Apply(manifest=queued))
    returned = () if same.deleting or not _is_returned(same) else (returned_quota(same, now=now),)
    return (*deletions, *returned)


def is_for(workload: Child | None, queued: Manifest | None) -> bool:
    """Return whether a Workload asks for what the manifest needs now."""
    return workload is not None and queued is not None and workload.ref == ref_of(queued)


def _is_returned(workload: Child) -> bool:
    return admission.has_quota(workload) and admission.holds(workload, "Evicted")


def returned_quota(workload: Child, *, now: float) -> PatchStatus:
    """Return the write that gives the quota of an evicted Workload back."""
    eviction = admission.condition(workload, "Evicted") or {}
    reason, message = str(eviction.get("reason") or "Evicted"), str(eviction.get("message") or "")
    changes = {
        "QuotaReserved": ("False", "Pending", message),
        "Admitted": ("False", "NoReservation", "The workload has no reservation"),
        "Requeued": ("True" if reason in _REQUEUED else "False", reason, message),
    }
    if admission.holds(workload, _PODS_READY):
        changes[_PODS_READY] = ("False", "WaitForStart", "the pods of the job are gone")
    return _patch(workload, changes, now=now, more={"admission": None})


def while_running(observed: Observed, *, is_running: bool, now: float) -> tuple[PatchStatus, ...]:
    """Return what a queue is told of a job that has its quota: whether all that it admitted is ready."""
    workload = admission.current(observed.children.values())
    if workload is None or observed.quota is None or not observed.quota.admitted:
        return ()
    before = admission.condition(workload, _PODS_READY)
    was_ready = admission.holds(workload, _PODS_READY)
    if is_running and not was_ready:
        reason = "Started" if before is None or before.get("reason") == "WaitForStart" else "Recovered"
        return (_patch(workload, {_PODS_READY: ("True", reason, "the run is ready")}, now=now),)
    if was_ready and not is_running:
        lost = ("False", "WaitForRecovery", "a pod of the run is not ready")
        return (_patch(workload, {_PODS_READY: lost}, now=now),)
    return ()


def when_over(observed: Observed, *, succeeded: bool, message: str, now: float) -> tuple[PatchStatus, ...]:
    """Return what a queue is told of a run that has ended, once nothing of it runs any more."""
    still = any(not pod.is_terminal for pod in observed.pods)
    if still or any(child.wanted_pods for child in observed.children.values() if child.role):
        return ()
    finished = {admission.FINISHED: ("True", "Succeeded" if succeeded else "Failed", message or "the run has ended")}
    return tuple(
        _patch(workload, finished, now=now)
        for workload in of_job(observed)
        if not workload.deleting and not admission.holds(workload, admission.FINISHED)
    )


def of_job(observed: Observed) -> list[Child]:
    return [child for _, child in sorted(observed.children.items()) if child.ref.kind == WORKLOAD]


def holds_quota(observed: Observed) -> bool:
    """Return whether a Workload of the job was not finished."""
    return any(not admission.holds(workload, admission.FINISHED) for workload in of_job(observed))


def _patch(
    workload: Child,
    changes: Mapping[str, tuple[str, str, str]],
    *,
    now: float,
    more: Mapping[str, object] | None = None,
) -> PatchStatus:
    """Return a write of status, reason and message of conditions; the others stay as they are."""
    before = {str(each.get("type")): each for each in admission.conditions(workload)}
    written = {
        kind: _condition(kind, before.get(kind), status, reason, message, now)
        for kind, (status, reason, message) in changes.items()
    }
    conditions = list({**before, **written}.values())
    return PatchStatus(
        ref=workload.ref, uid=workload.uid, version=workload.version, status={**(more or {}), "conditions": conditions}
    )


def _condition(kind: str, before: Manifest | None, status: str, reason: str, message: str, now: float) -> Manifest:
    same = before is not None and before.get("status") == status
    since = before.get("lastTransitionTime") if before is not None and same else clock.to_timestamp(now)
    fields: Manifest = {
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since
    }  # fmt: skip
    return {
        **fields,
        **({"observedGeneration": before["observedGeneration"]} if before and "observedGeneration" in before else {}),
    }
