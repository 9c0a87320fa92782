"""Jobs with a queue, and a cluster in memory whose Workloads a stand-in for Kueue admits and evicts."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from rljob_api import cluster_placement, enums, resolve
from rljob_api.manifest.job import RLJob
from rljob_operator.model import WORKLOAD, Apply, Child, DesiredObjects, Observed, PodPlacement, Ref, Refusal, ref_of
from rljob_operator.queueing import admission, workload
from rljob_operator.resources.inputs import Inputs
from rljob_testing import stand_in_queue
from rljob_testing.fake_cluster import FakeCluster, wanted
from rljob_testing.operator_runs import Run, operator_job

QUEUE = "research"


def queued_job(*, labels: Mapping[str, str] | None = None, **changes: Any) -> RLJob:
    """Return a job with a queue; keywords are sections of its spec, `verifier__replicas` that of verifiers."""
    replicas = changes.pop("verifier__replicas", 1)
    rewards = [{"name": "right", "type": "exact"}]
    job = operator_job({**changes, "verifier": {"rewards": rewards, "replicas": replicas}})
    own = {workload.QUEUE_LABEL: QUEUE} if labels is None else dict(labels)
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"labels": own})})


def inputs_of(job: RLJob, placements: Mapping[enums.Role, PodPlacement] | None = None) -> Inputs:
    """Return what builders of objects get of a job."""
    configs = resolve.resolve(job, cluster_placement.cluster_placement(job, verifier_cores=1))
    images = dict.fromkeys(enums.STANDARD_ROLES, "example/rljob:1")
    return Inputs(job=job, configs=configs, images=images, placements=placements or {})


def desired_of_queued(seen: Observed) -> DesiredObjects:
    """Return small children of a job, and its real Workload."""
    quota = seen.quota
    if quota is None or quota.suspended_by_user:
        return wanted(seen)
    return dataclasses.replace(wanted(seen), queued=workload.workload(inputs_of(quota.job), queue=quota.queue))


class QueuedCluster(FakeCluster):
    """The cluster of one job that a queue decides about."""

    async def observe(self, key: str, *, live: bool) -> Observed | None:
        seen = await super().observe(key, live=live)
        return None if seen is None else admission.effective(seen, admission.quota(seen))

    async def apply(self, seen: Observed, action: Apply) -> Refusal | None:
        if action.ref.kind != WORKLOAD:
            return await super().apply(seen, action)
        self._point()
        self.calls.append(f"apply {action.ref.name}")
        if action.ref not in self.children:
            uid = f"uid-{next(self._uids)}"
            self.children[action.ref] = Child(ref=ref_of(action.manifest), uid=uid, manifest=action.manifest, version=1)
        self._point()
        return None

    @property
    def workloads(self) -> list[Child]:
        return [child for child in self.children.values() if child.ref.kind == WORKLOAD]

    def queue_says(self, status: Callable[..., dict[str, Any]], **arguments: Any) -> None:
        """Let the stand-in write the status of the only Workload."""
        (child,) = self.workloads
        self.change(child.ref, {**child.manifest, "status": status(child.manifest, **arguments)})

    @property
    def holds_quota(self) -> bool:
        return any(stand_in_queue.holds_quota(child.manifest) for child in self.workloads)

    def spec_of(self, ref: Ref) -> Any:
        return self.children[ref].manifest["spec"]


class QueuedRun(Run):
    """A run whose job has a queue."""

    def __init__(self, job: RLJob | None = None, *, kill_at: frozenset[int] = frozenset()) -> None:
        super().__init__(job or queued_job())
        self.cluster: QueuedCluster = QueuedCluster(job or queued_job(), self.clock, kill_at=kill_at)
        self.wanted = desired_of_queued
