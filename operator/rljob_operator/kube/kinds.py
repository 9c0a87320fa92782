"""The kinds that the operator reads and writes: where the API server serves them, and how closely each is followed.

Followed kinds are watched: an edit or a deletion by hand is repaired at once. Quiet ones hold what hardly ever changes;
a list of their metadata every few minutes finds what did (docs/design/operator.md#s-1-6).
"""

import dataclasses
from collections.abc import Mapping

from rljob_api import enums
from rljob_operator.model import POD_GROUP, WORKLOAD, ref_kind
from rljob_operator.queueing import workload
from rljob_operator.resources import gangs
from rljob_operator.settings import GangScheduler

MANAGED = "app.kubernetes.io/managed-by=rljob-operator"
# Controllers find a job's pods by this label too, so one that lost it is none of theirs either. Of other objects the
# operator writes the label `managed-by` again where it was taken away, of a pod it cannot.
OF_JOBS = "rljob.dev/uid"


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of the API: `group` is empty for the core."""

    kind: str
    group: str
    version: str
    plural: str

    @property
    def name(self) -> str:
        """Return the kind as a Ref names it."""
        return ref_kind(self.kind, self.api_version)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, *, subresource: str = "") -> str:
        """Return the URL path of an object, of a namespace's list, or of the whole cluster's."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        where = f"{root}/namespaces/{namespace}/{self.plural}" if namespace else f"{root}/{self.plural}"
        tail = "" if name is None else f"/{name}"
        return f"{where}{tail}/{subresource}" if subresource else f"{where}{tail}"


RLJOB = Kind(enums.KIND, enums.API_GROUP, enums.API_VERSION, "rljobs")
RUNTIME = Kind("RLJobRuntime", enums.API_GROUP, enums.API_VERSION, "rljobruntimes")
CLUSTER_RUNTIME = Kind("ClusterRLJobRuntime", enums.API_GROUP, enums.API_VERSION, "clusterrljobruntimes")
POD = Kind("Pod", "", "v1", "pods")
CLAIM = Kind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims")
EVENT = Kind("Event", "events.k8s.io", "v1", "events")
NAMESPACE = Kind("Namespace", "", "v1", "namespaces")
LEASE = Kind("Lease", "coordination.k8s.io", "v1", "leases")
WORKLOADS = (
    Kind("StatefulSet", "apps", "v1", "statefulsets"),
    Kind("Deployment", "apps", "v1", "deployments"),
    Kind("Job", "batch", "v1", "jobs"),
)
QUIET = (
    Kind("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
    Kind("ServiceAccount", "", "v1", "serviceaccounts"),
    Kind("ConfigMap", "", "v1", "configmaps"),
    Kind("Service", "", "v1", "services"),
    CLAIM,
    Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
    Kind("HorizontalPodAutoscaler", "autoscaling", "v2", "horizontalpodautoscalers"),
)
# Used where their APIs are served and the installation allows it.
SCALED_OBJECT = Kind("ScaledObject", "keda.sh", "v1alpha1", "scaledobjects")
POD_MONITOR = Kind("PodMonitor", "monitoring.coreos.com", "v1", "podmonitors")
QUEUED = Kind(WORKLOAD, workload.GROUP, workload.VERSION, "workloads")
RESOURCE_FLAVOR = Kind("ResourceFlavor", QUEUED.group, QUEUED.version, "resourceflavors")
WORKLOAD_PRIORITY_CLASS = Kind("WorkloadPriorityClass", QUEUED.group, QUEUED.version, "workloadpriorityclasses")


def _pod_groups(api_version: str) -> Kind:
    group, _, version = api_version.partition("/")
    return Kind(POD_GROUP, group, version, "podgroups")


POD_GROUPS: Mapping[GangScheduler, Kind] = {
    scheduler: _pod_groups(api_version) for scheduler, api_version in gangs.API_VERSIONS.items()
}
OPTIONAL = (SCALED_OBJECT, POD_MONITOR, QUEUED, *POD_GROUPS.values())
WATCHED = (RLJOB, POD, *WORKLOADS)
# Watched too; they belong to no job.
RUNTIMES = (RUNTIME, CLUSTER_RUNTIME)
# Watched besides, where they are used: a queue decides at any moment.
ALSO_WATCHED = frozenset({QUEUED})
CHILDREN = (*WORKLOADS, *QUIET)
# Values of the label `kind` of metrics about the cache.
CACHED_KINDS = ("rljob", "pod", "child")
BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in (RLJOB, *RUNTIMES, POD, EVENT, *CHILDREN, *OPTIONAL)}


def cached_as(kind: Kind) -> str:
    """Return the label under which metrics count objects of a kind."""
    return {RLJOB: "rljob", POD: "pod"}.get(kind, "child")


def selector_of(kind: Kind) -> str:
    """Return the label selector by which objects of a kind are listed and watched; empty for all."""
    return {RLJOB: "", RUNTIME: "", CLUSTER_RUNTIME: "", POD: OF_JOBS}.get(kind, MANAGED)
