"""What is read of a queue besides a job's own Workload: flavors and priority classes, which belong to the cluster."""

import dataclasses
from collections.abc import Callable

from rljob_api import errors
from rljob_operator.kube import kinds
from rljob_operator.kube.client import Client
from rljob_operator.kube.kinds import Kind
from rljob_operator.model import Manifest, Observed, Quota
from rljob_operator.queueing import admission

# An admission is read often and these change hardly ever.
_KEPT_S = 60.0


class Queues:
    """Where each job is with its queue. Objects of the cluster are kept for a minute."""

    def __init__(self, *, client: Client, clock: Callable[[], float], default_queue: str) -> None:
        self._client, self._clock, self._default_queue = client, clock, default_queue
        self._read: dict[tuple[Kind, str], tuple[float, Manifest]] = {}

    async def effective(self, observed: Observed) -> Observed:
        """Return the job as its queue lets it be now. Raises ClusterError where that cannot be read: what runs then
        stays as it is.
        """
        quota = admission.quota(observed, default_queue=self._default_queue)
        if quota is not None:
            under_way = admission.is_under_way(observed)
            quota = await self._with_priority(await self._with_placements(quota, under_way=under_way))
        return admission.effective(observed, quota)

    async def _with_placements(self, quota: Quota, *, under_way: bool) -> Quota:
        if not quota.admitted or quota.workload is None:
            return quota
        specs = dict[str, Manifest]()
        for name in sorted(admission.flavors(quota.workload)):
            flavor = await self._object(kinds.RESOURCE_FLAVOR, name)
            if flavor is None:
                message = f"queue {quota.queue} assigned the ResourceFlavor {name}, which does not exist"
                if under_way:
                    raise errors.ClusterError(message)
                return dataclasses.replace(quota, admitted=False, reason=admission.WAITING, message=message)
            spec = flavor.get("spec")
            specs[name] = spec if isinstance(spec, dict) else {}
        return dataclasses.replace(quota, placements=admission.placements(quota.workload, specs))

    async def _with_priority(self, quota: Quota) -> Quota:
        if not quota.priority_class:
            return quota
        priority_class = await self._object(kinds.WORKLOAD_PRIORITY_CLASS, quota.priority_class)
        value = None if priority_class is None else priority_class.get("value")
        return dataclasses.replace(quota, priority=value if isinstance(value, int) else None)

    async def _object(self, kind: Kind, name: str) -> Manifest | None:
        read_at, manifest = self._read.get((kind, name), (0.0, None))
        if manifest is not None and 0.0 <= self._clock() - read_at < _KEPT_S:
            return manifest
        answer = await self._client.get(kind, "", name)
        if answer is not None:
            self._read[kind, name] = self._clock(), answer
        return answer
