"""What a queue says of a job: whether it may run, why not, and where its pods go. Pure.

    no Workload, or without quota --> the job waits, as if it were suspended
    Admitted ----------------------> it runs: no more rollouts than were admitted, on nodes of the flavors
    Evicted, or the Workload goes --> it is suspended: checkpoint, drain, and the quota is returned after the last pod

A run that began without a queue, or whose queue is not served any more, goes on as it is: it is asked about at its
next start.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from rljob_api import enums
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.rollout import RolloutSpec
from rljob_operator.model import WORKLOAD, Child, Manifest, Observed, PodPlacement, Quota
from rljob_operator.queueing.workload import PRIORITY_LABEL, QUEUE_LABEL

ADMITTED, WAITING, DEACTIVATED = "Admitted", "WaitingForQuota", "Deactivated"
EVICTED, SUSPENDED = "Evicted", "Suspended"
FINISHED = "Finished"
_NO_FLAVOR, _TOO_MUCH = "NoMatchingFlavor", "ExceedsMaxQuota"


def queue_of(job: RLJob, default: str) -> str:
    """Return the queue that a job names, else the installation's own; empty for none."""
    return job.metadata.labels.get(QUEUE_LABEL) or default


def priority_class_of(job: RLJob) -> str:
    return job.metadata.labels.get(PRIORITY_LABEL, "")


def current(children: Iterable[Child]) -> Child | None:
    """Return the Workload that decides: the one with quota, else the newest; None where there is none.

    A finished one is of a run that was over: its quota is free, whatever its other conditions say.
    """
    candidates = [
        child for child in children if child.ref.kind == WORKLOAD and not child.deleting and not holds(child, FINISHED)
    ]
    return max(candidates, key=lambda child: (has_quota(child), child.version, child.ref), default=None)


def quota(observed: Observed, *, default_queue: str = "") -> Quota | None:
    """Return where a job is with its queue; None where no queue decides about it."""
    job, workload = observed.job, current(observed.children.values())
    under_way = is_under_way(observed)
    queue = queue_of(job, default_queue)
    if workload is not None and under_way:
        # What runs keeps the queue that admitted it, whatever its label says meanwhile.
        queue = str(_spec(workload).get("queueName", queue))
    was_queued = _was_queued(observed) or (workload is not None and has_quota(workload))
    if not queue or (under_way and not was_queued) or _is_over(observed):
        return None
    verdict = _verdict(queue, workload, under_way=under_way)
    if job.spec.suspend and not under_way:
        verdict = _Verdict(SUSPENDED)
    return Quota(
        job=job,
        queue=queue,
        workload=workload,
        admitted=verdict.reason == ADMITTED,
        reason=verdict.reason,
        message=verdict.message,
        evicted=verdict.evicted,
        priority_class=priority_class_of(job),
    )


def is_under_way(observed: Observed) -> bool:
    """Return whether a job has pods, or something that is set to make some."""
    return bool(observed.pods) or any(child.wanted_pods for child in observed.children.values() if child.role)


def _is_over(observed: Observed) -> bool:
    ends = (Type.COMPLETE, Type.FAILED)
    return any(each.type in ends and each.status == "True" for each in observed.status.conditions)


def _was_queued(observed: Observed) -> bool:
    return any(condition.type == Type.QUOTA_RESERVED for condition in observed.status.conditions)


@dataclasses.dataclass(frozen=True, slots=True)
class _Verdict:
    """Reason and sentence of QuotaReserved, and why quota that is in use is taken back, empty if it is not."""

    reason: str
    message: str = ""
    evicted: str = ""


def _verdict(queue: str, workload: Child | None, *, under_way: bool) -> _Verdict:
    if workload is None and under_way:
        return _Verdict(EVICTED, _waits(queue, "its Workload was deleted"), "WorkloadDeleted")
    if workload is None:
        return _Verdict(WAITING, _waits(queue, ""))
    eviction = condition(workload, "Evicted") or {}
    is_evicted = eviction.get("status") == "True"
    if not _spec(workload).get("active", True):
        message = f"queue {queue}: the Workload {workload.ref.name} is not active: set its spec.active to true"
        return _Verdict(DEACTIVATED, message, DEACTIVATED)
    if is_evicted and (has_quota(workload) or under_way):
        word = str(eviction.get("reason") or EVICTED)
        return _Verdict(EVICTED, f"queue {queue} takes the quota back ({word}): {eviction.get('message', '')}", word)
    if holds(workload, "Admitted") and has_quota(workload):
        return _Verdict(ADMITTED, f"by queue {queue}")
    pending = condition(workload, "QuotaReserved") or {}
    detail = "" if pending.get("status") == "True" else str(pending.get("message", ""))
    checks = "; ".join(str(check.get("message") or check.get("name")) for check in _pending_checks(workload))
    return _Verdict(_why(detail), _waits(queue, detail or checks), EVICTED if under_way else "")


def _waits(queue: str, detail: str) -> str:
    return f"waits for quota in queue {queue}" + (f": {detail}" if detail else "")


def _why(detail: str) -> str:
    """Return the reason behind Kueue's sentence on a Workload without quota; it has no word of its own for it."""
    if "insufficient quota" in detail or "exceed" in detail.lower():
        return _TOO_MUCH
    return _NO_FLAVOR if "untolerated taint" in detail or "node affinity" in detail else WAITING


def effective(observed: Observed, decision: Quota | None) -> Observed:
    """Return the job as it should be now: suspended without quota, and with no more rollouts than were admitted."""
    if decision is None:
        return dataclasses.replace(observed, quota=None)
    job = observed.job
    spec = job.spec.model_copy(update={"suspend": True}) if not decision.admitted else job.spec
    most = admitted_count(decision.workload, enums.Role.ROLLOUT) if decision.admitted else None
    if most is not None:
        spec = spec.model_copy(update={"rollout": _at_most(spec.rollout, most)})
    return dataclasses.replace(observed, job=job.model_copy(update={"spec": spec}), quota=decision)


def _at_most(rollout: RolloutSpec, most: int) -> RolloutSpec:
    scaling = rollout.autoscaling
    changes: dict[str, object] = {"replicas": min(rollout.replicas, most)}
    if scaling is not None:
        bounds = {"max_replicas": min(scaling.max_replicas, most), "min_replicas": min(scaling.min_replicas, most)}
        changes["autoscaling"] = scaling.model_copy(update=bounds)
    return rollout.model_copy(update=changes)


def admitted_count(workload: Child | None, role: enums.Role) -> int | None:
    """Return how many pods of a role were admitted; None where the queue does not say."""
    count = _assignments(workload).get(str(role), {}).get("count")
    return count if isinstance(count, int) else None


def flavors(workload: Child | None) -> frozenset[str]:
    """Return the names of the ResourceFlavors that were assigned."""
    return frozenset(
        str(name) for assignment in _assignments(workload).values() for name in _part(assignment, "flavors").values()
    )


def placements(workload: Child, specs: Mapping[str, Manifest]) -> dict[enums.Role, PodPlacement]:
    """Return what each role's pods get: labels and tolerations of their flavors, and what admission checks add.

    specs: those of the ResourceFlavors, by name. Raises KeyError for one that is missing.
    """
    return {role: _placement(workload, role, specs) for role in enums.Role if str(role) in _assignments(workload)}


def _placement(workload: Child, role: enums.Role, specs: Mapping[str, Manifest]) -> PodPlacement:
    assignment = _assignments(workload)[str(role)]
    node_labels, tolerations = dict[str, str](), list[Mapping[str, object]]()
    labels, annotations = dict[str, str](), dict[str, str]()
    # A flavor stands for several resources.
    for name in sorted({str(flavor) for flavor in _part(assignment, "flavors").values()}):
        node_labels |= _texts(specs[name], "nodeLabels")
        tolerations += _items(specs[name].get("tolerations"))
    for update in _updates(workload, role):
        node_labels |= _texts(update, "nodeSelector")
        labels |= _texts(update, "labels")
        annotations |= _texts(update, "annotations")
        tolerations += _items(update.get("tolerations"))
    return PodPlacement(
        node_labels=node_labels,
        tolerations=tuple(tolerations),
        labels=labels,
        annotations=annotations,
        topology=workload.ref.name if assignment.get("topologyAssignment") else "",
    )


def _updates(workload: Child, role: enums.Role) -> list[Manifest]:
    checks = _items(_status(workload).get("admissionChecks"))
    return [
        update for check in checks for update in _items(check.get("podSetUpdates")) if update.get("name") == str(role)
    ]


def _pending_checks(workload: Child) -> list[Manifest]:
    return [check for check in _items(_status(workload).get("admissionChecks")) if check.get("state") != "Ready"]


def has_quota(workload: Child) -> bool:
    return holds(workload, "QuotaReserved")


def holds(workload: Child, kind: str) -> bool:
    return (condition(workload, kind) or {}).get("status") == "True"


def condition(workload: Child, kind: str) -> Manifest | None:
    """Return a condition of a Workload; None without it."""
    return next((each for each in conditions(workload) if each.get("type") == kind), None)


def conditions(workload: Child) -> list[Manifest]:
    return _items(_status(workload).get("conditions"))


def _assignments(workload: Child | None) -> dict[str, Manifest]:
    admission = {} if workload is None else _part(_status(workload), "admission")
    return {str(each.get("name")): each for each in _items(admission.get("podSetAssignments"))}


def _status(workload: Child) -> Manifest:
    return _part(workload.manifest, "status")


def _spec(workload: Child) -> Manifest:
    return _part(workload.manifest, "spec")


def _part(section: Manifest, key: str) -> Manifest:
    value = section.get(key)
    return value if isinstance(value, Mapping) else {}


def _texts(section: Manifest, key: str) -> dict[str, str]:
    return {str(name): str(value) for name, value in _part(section, key).items()}


def _items(value: object) -> list[Manifest]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
