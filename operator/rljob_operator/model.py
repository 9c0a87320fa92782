"""What the operator knows of a job and what it can do about it: observed children, and actions. No I/O here."""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence

from rljob_api import enums, types
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.runtime import JobRuntime
from rljob_api.manifest.status import JobStatus

# A Kubernetes object as the API server writes it.
Manifest = Mapping[str, object]

# Keys of a job's ConfigMap, in addition to a config per role.
IMAGES_KEY, TRAINER_TEMPLATE_KEY, RUNTIME_KEY = "images.json", "trainer-template.json", "runtime.json"
POD, RLJOB, TRAINER_JOB, CLAIM = "Pod", "RLJob", "Job", "PersistentVolumeClaim"
ATTEMPT_LABEL, TEMPLATE_HASH = "rljob.dev/attempt", "rljob.dev/template-hash"
# Of Kueue: what it admits and evicts.
WORKLOAD = "Workload"
# Of three schedulers, each with a group of its own: a Ref names both.
POD_GROUP = "PodGroup"
WORKLOAD_KINDS: Mapping[enums.Role, str] = {
    enums.Role.COORDINATOR: "StatefulSet",
    enums.Role.ROLLOUT: "Deployment",
    enums.Role.VERIFIER: "Deployment",
    enums.Role.JUDGE: "Deployment",
    enums.Role.ENVIRONMENT: "Deployment",
    enums.Role.AGENTS: "Deployment",
}
# Children that make the pods of a role.
POD_MAKERS = frozenset({*WORKLOAD_KINDS.values(), TRAINER_JOB})


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Kind and name of an object in the job's namespace."""

    kind: str
    name: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """An object that the job controls. `manifest` is what the API server serves.

    version: of the API server, 0 if unknown. role: None for what serves all of them. attempt: of a trainer Job, else 0.
    ended: "", "Complete" or "Failed", as the Job controller says. blind: why an autoscaler does not read its metric,
    empty if it does. denied: what its controller says of pods that the API server does not take, empty if nothing.
    content: a digest of the manifest, good in this process: another version may differ in its status alone.
    """

    ref: Ref
    uid: str
    manifest: Manifest
    role: enums.Role | None = None
    attempt: int = 0
    ended: str = ""
    blind: str = ""
    denied: str = ""
    deleting: bool = False
    version: int = 0
    content: int = 0

    @property
    def wanted_replicas(self) -> int:
        """Return the pods that a workload is set to; 0 for what has none."""
        return self._number("replicas")

    @property
    def wanted_pods(self) -> int:
        """Return the pods that should be there: of a workload as many as it is set to, of a Job its completions."""
        return 0 if self.ended else self._number("completions") if self.attempt else self.wanted_replicas

    def _number(self, key: str) -> int:
        spec = self.manifest.get("spec")
        value = spec.get(key) if isinstance(spec, Mapping) else None
        return value if isinstance(value, int) else 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of the job. Times are unix seconds; `exit_code` None: no container of it has ended.

    last_exit_code, last_container_reason: of a container that was started again. disruption: why the cluster takes the
    pod away, the reason of its condition DisruptionTarget. deletion_cost: lower ones go first when a workload shrinks.
    unscheduled: why it has no node. message: what the cluster says of its waiting.
    preflight: what a verifier's test of its own isolation wrote, empty while it has not ended. runtime_class: the
    name of its RuntimeClass, empty if it has none. scheduled_at, started_at, ready_at: 0 while it is not; it is started
    when all of its containers run. unready_at: since when it is not ready, 0 while it is. deleted_at: when its kubelet
    should be done with its end, the grace period included.
    gpus, cpu_milli: what its containers ask for, the latter in thousandths of a core.
    disrupted_at: since when `disruption` holds. forced: its deletion grants it no time.
    """

    name: str
    uid: str
    role: enums.Role
    attempt: int = 0
    phase: str = "Pending"
    ready: bool = False
    deleting: bool = False
    exit_code: int | None = None
    reason: str = ""
    container_reason: str = ""
    waiting_reason: str = ""
    conditions: frozenset[tuple[str, str]] = frozenset()
    created_at: float = 0.0
    finished_at: float = 0.0
    restarts: int = 0
    last_exit_code: int | None = None
    last_container_reason: str = ""
    disruption: str = ""
    deletion_cost: int = 0
    node: str = ""
    unscheduled: str = ""
    message: str = ""
    preflight: str = ""
    runtime_class: str = ""
    scheduled_at: float = 0.0
    started_at: float = 0.0
    ready_at: float = 0.0
    unready_at: float = 0.0
    deleted_at: float = 0.0
    disrupted_at: float = 0.0
    forced: bool = False
    gpus: int = 0
    cpu_milli: int = 0

    @property
    def is_terminal(self) -> bool:
        """Return whether nothing of it runs any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def has_node(self) -> bool:
        return bool(self.node or self.scheduled_at) or self.phase != "Pending"

    @property
    def never_ran(self) -> bool:
        """Return whether none of its containers ever began, so far as its kubelet can be believed."""
        has_started = self.started_at or self.restarts or self.exit_code is not None or self.last_exit_code is not None
        return self.phase == "Pending" and not has_started and not self.deleting and not self.disruption


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the coordinator said last, and when it was asked, in unix seconds."""

    run: types.RunStatus
    read_at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why the API server does not take what the plan wants of one child. `reason`: of ChildrenApplied=False.

    generation: of the spec for which it was refused. passing: a failure of the server, or of a webhook, that may end by
    itself. times: tries in a row, the first at `since`; again_at: the next one, in unix seconds.
    """

    ref: Ref
    reason: str
    message: str
    generation: int
    passing: bool = False
    times: int = 1
    since: float = 0.0
    again_at: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of a child that was written more than once with one intent: `answer` is a digest of our fields as the
    API server served them last. times: writes of that intent in a row, the last at `at`, unix seconds.
    """

    intent: str
    answer: str
    times: int
    at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A workload that has fewer pods than it is set to: since when that is seen, in unix seconds, and what its
    controller says of it, empty while that is not known.
    """

    since: float
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeUse:
    """What a job has of its runtime: nothing by default.

    current_generation: of the object as it is now, None where it is gone. origins: where values of the spec came from,
    by path below spec. problems: why the job may not begin with it, and `reason`, of Accepted=False.
    """

    runtime: JobRuntime | None = None
    current_generation: int | None = None
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problems: tuple[str, ...] = ()
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodPlacement:
    """What a queue's admission adds to the pods of a role. topology: the name of the Workload whose controller chooses
    each pod's node and opens its gate, empty if none does.
    """

    node_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tolerations: tuple[Mapping[str, object], ...] = ()
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    topology: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Where a job is with its queue. job: as its manifest is. workload: what stands for it there, None before that.

    reason, message: of the condition QuotaReserved. evicted: why the queue takes the quota back, in its own word, empty
    if it does not. priority: that of the job's WorkloadPriorityClass.
    """

    job: RLJob
    queue: str
    admitted: bool
    reason: str
    message: str = ""
    workload: Child | None = None
    evicted: str = ""
    priority_class: str = ""
    priority: int | None = None
    placements: Mapping[enums.Role, PodPlacement] = dataclasses.field(default_factory=dict)

    @property
    def suspended_by_user(self) -> bool:
        return self.job.spec.suspend


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One job as the API server and its coordinator show it. Its spec has the values of its runtime.

    job: without quota its spec.suspend is true, and it has no more rollouts than were admitted. quota: None for a job
    that no queue decides about.
    version: of the API server, which a status write names; 0 if unknown. report: the coordinator's last one, None
    before the first. silent_since: unix seconds since which it was asked again and again in vain; None while it
    answers, and before that can be said. short: workloads that lack pods. refusals: by child. written: by its uid.
    """

    job: RLJob
    runtime: RuntimeUse = RuntimeUse()
    version: int = 0
    deleting: bool = False
    children: Mapping[Ref, Child] = dataclasses.field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    report: Report | None = None
    silent_since: float | None = None
    short: Mapping[Ref, Shortage] = dataclasses.field(default_factory=dict)
    refusals: Mapping[Ref, Refusal] = dataclasses.field(default_factory=dict)
    written: Mapping[str, Written] = dataclasses.field(default_factory=dict)
    quota: Quota | None = None

    @property
    def status(self) -> JobStatus:
        """Return the status, empty if no one wrote one."""
        return self.job.status or JobStatus()

    @property
    def config_ref(self) -> Ref:
        """Return the ConfigMap of what the segment under way began with."""
        return Ref("ConfigMap", f"{self.job.metadata.name}-config")

    @property
    def images(self) -> Mapping[enums.Role, str]:
        """Return the images that the segment under way runs, as the job's ConfigMap says; empty before its start."""
        config = self.children.get(self.config_ref)
        data = config.manifest.get("data") if config is not None else None
        written = json.loads(data.get(IMAGES_KEY, "{}")) if isinstance(data, Mapping) else {}
        return {role: written[role] for role in enums.Role if role in written}

    @property
    def hears(self) -> types.RunStatus | None:
        """Return what the coordinator says while it answers; None where nothing was heard yet, or not any more."""
        return self.report.run if self.report is not None and self.silent_since is None else None

    def pods_of(self, role: enums.Role, attempt: int | None = None) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods if pod.role == role and attempt in (None, pod.attempt))

    def trainer_jobs(self) -> dict[int, Child]:
        """Return the trainer's Jobs by attempt."""
        return {child.attempt: child for child in self.children.values() if child.ref.kind == TRAINER_JOB}


def _no_workloads(attempt: int) -> Sequence[Manifest]:  # noqa: ARG001  # the shape of Wanted.workloads
    return ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DesiredObjects:
    """The children of an active job, in the order in which they are made.

    first: what exists before any pod. workloads: what makes pods, by trainer attempt, its Job among them.
    problems: sentences on a spec that may not start here; a run that continues keeps its children all the same.
    reason: of Accepted=False, where there are problems.
    unchanged: nothing that they depend on has changed since they were last found as desired. queued: what asks a queue
    for the quota of all pods, None without a queue.
    """

    first: tuple[Manifest, ...] = ()
    workloads: Callable[[int], Sequence[Manifest]] = _no_workloads
    problems: tuple[str, ...] = ()
    reason: str = "InvalidSpec"
    unchanged: bool = False
    queued: Manifest | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Create or change a child. `uid`: of the object that is meant, empty if there must be none yet.

    needs: what must be there before it is created. due_at: not before, in unix seconds.
    """

    manifest: Manifest
    uid: str = ""
    needs: tuple[Ref, ...] = ()
    due_at: float = 0.0

    @property
    def ref(self) -> Ref:
        return ref_of(self.manifest)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete one object, and no other of its name. `grace_s` None: what the object itself says."""

    ref: Ref
    uid: str
    grace_s: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Set the replicas of a workload."""

    ref: Ref
    uid: str
    replicas: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Annotate:
    """Set annotations of an object, of which None removes one, and labels."""

    ref: Ref
    uid: str
    annotations: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PatchStatus:
    """Change fields of the status of a child that another controller shares, if it still is at `version`."""

    ref: Ref
    uid: str
    version: int
    status: Mapping[str, object]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatusWrite:
    """Write the whole status."""

    status: JobStatus


Action = Apply | Delete | Scale | Annotate | PatchStatus | StatusWrite


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, in this order, and when to look again (unix seconds) if nothing changes before.

    irrevocable: it must rest on objects that were just read, not on a cache. refused: refusals of what is still wanted.
    waits: something else is wanted that is not due yet.
    """

    actions: tuple[Action, ...] = ()
    again_at: float | None = None
    irrevocable: bool = False
    refused: tuple[Refusal, ...] = ()
    waits: bool = False


def ref_of(manifest: Manifest) -> Ref:
    """Return kind and name of an object. Raises ValueError if it has none."""
    metadata = manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    kind = manifest.get("kind")
    if not isinstance(name, str) or not isinstance(kind, str):
        raise ValueError(f"need an object with kind and metadata.name, got {kind=} and {name=}")
    # Tens of thousands of objects are of two dozen kinds.
    return Ref(sys.intern(ref_kind(kind, str(manifest.get("apiVersion", "")))), name)


def ref_kind(kind: str, api_version: str) -> str:
    """Return the kind as a Ref names it: with its group where several groups have one of that name."""
    return f"{kind}.{api_version.partition('/')[0]}" if kind == POD_GROUP else kind


def earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
