"""From an object as the API server sends it to what is kept of it: little, because ten thousand pods are kept
(docs/design/operator.md#s-1-7).

A child keeps its manifest as compressed bytes, without status and managed fields: it is read only when the child is
compared with what is wanted.
"""

import dataclasses
import fractions
import functools
import itertools
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pydantic_core

from rljob_api import enums
from rljob_api.manifest.pod import is_gpu
from rljob_operator import clock
from rljob_operator.kube.kinds import CLAIM, OF_JOBS
from rljob_operator.model import ATTEMPT_LABEL, POD_MAKERS, WORKLOAD, Child, Pod, Ref, ref_of
from rljob_operator.policies import drift
from rljob_operator.resources import container

UID_LABEL, JOB_LABEL, ROLE_LABEL = OF_JOBS, "rljob.dev/job", "rljob.dev/role"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
# Autoscalers, and the condition that says whether they read their metric.
_SCALERS = {"HorizontalPodAutoscaler": "ScalingActive", "ScaledObject": "Ready"}
# Of what a scheduler or a kubelet says; a status message has room for more.
_MOST_MESSAGE = 400
_MADE = re.compile(rf".+-({'|'.join(enums.Role)})(?:-(\d+))?")
_DROPPED = frozenset({"managedFields", "creationTimestamp", "generation", "resourceVersion", "selfLink"})
_ROLES: Mapping[str, enums.Role] = {str(role): role for role in enums.Role}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """An RLJob: the whole object, compressed. ended: its status says that the run is over."""

    uid: str
    version: int
    deleting: bool
    ended: bool
    body: bytes

    def load(self) -> bytes:
        return zlib.decompress(self.body)


class Document(Mapping[str, Any]):
    """An object that is read from its bytes when something of it is looked at: a pass looks at few of a job's."""

    __slots__ = ("_body", "_content")

    def __init__(self, body: bytes) -> None:
        self._body, self._content = body, dict[str, Any]()

    @property
    def _read(self) -> dict[str, Any]:
        # No object is empty.
        if not self._content:
            self._content = pydantic_core.from_json(zlib.decompress(self._body))
        return self._content

    def __getitem__(self, key: str) -> Any:
        """Return one of its fields."""
        return self._read[key]

    def __iter__(self) -> Iterator[str]:
        """Return the names of its fields."""
        return iter(self._read)

    def __len__(self) -> int:
        """Return how many fields it has."""
        return len(self._read)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChildView:
    """A child, without its manifest's weight. owner: uid of its controller."""

    ref: Ref
    uid: str
    version: int
    owner: str
    deleting: bool
    role: enums.Role | None
    attempt: int
    ended: str
    blind: str
    denied: str
    body: bytes

    def child(self) -> Child:
        return Child(
            ref=self.ref,
            uid=self.uid,
            manifest=Document(self.body),
            role=self.role,
            attempt=self.attempt,
            ended=self.ended,
            blind=self.blind,
            denied=self.denied,
            deleting=self.deleting,
            version=self.version,
            content=hash(self.body),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A pod of the job with uid `owner`."""

    version: int
    owner: str
    pod: Pod


def version_of(raw: Mapping[str, Any]) -> int:
    """Return the resource version as a number: larger is later, for objects of one kind."""
    text = str(raw["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdigit() else 0


def project_job(raw: Mapping[str, Any]) -> JobView:
    metadata = {key: value for key, value in raw["metadata"].items() if key != "managedFields"}
    return JobView(
        uid=metadata["uid"],
        version=version_of(raw),
        deleting="deletionTimestamp" in metadata,
        ended=bool(_ended(raw.get("status") or {})),
        body=_packed({**raw, "metadata": metadata}),
    )


def project_child(raw: Mapping[str, Any]) -> ChildView:
    metadata = raw["metadata"]
    labels = metadata.get("labels") or {}
    has_role = raw["kind"] in POD_MAKERS and labels.get(ROLE_LABEL) in _ROLES
    by_name = _role_by_name(raw["kind"], metadata["name"])
    entries = {key: value for key, value in metadata.items() if key not in _DROPPED}
    # What a queue decides is in the status of what stands for the job there.
    body = {key: value for key, value in raw.items() if key != "status" or raw["kind"] == WORKLOAD}
    return ChildView(
        ref=ref_of(raw),
        uid=metadata["uid"],
        version=version_of(raw),
        owner=sys.intern(owner_of(raw)),
        deleting="deletionTimestamp" in metadata,
        role=_ROLES[labels[ROLE_LABEL]] if has_role else by_name[0],
        attempt=(_number(labels.get(ATTEMPT_LABEL)) if has_role else 0) or by_name[1],
        ended=_ended(raw.get("status") or {}),
        blind=_blind(raw.get("status") or {}) if raw["kind"] in _SCALERS else "",
        denied=_denied(raw.get("status") or {}) if has_role else "",
        body=_packed({**body, "metadata": entries}),
    )


def controller_of(metadata: Mapping[str, Any]) -> str:
    """Return the uid of the controller that an object names, empty if none."""
    owners = metadata.get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def owner_of(raw: Mapping[str, Any]) -> str:
    """Return the uid of the job that an object belongs to, empty if to none: of a claim that outlives its job, which
    must name no owner, its label says it.
    """
    metadata = raw["metadata"]
    if raw["kind"] == CLAIM.kind and not metadata.get("ownerReferences"):
        return str((metadata.get("labels") or {}).get(UID_LABEL, ""))
    return controller_of(metadata)


def owner_name(metadata: Mapping[str, Any]) -> str:
    """Return the name of the RLJob that controls an object, empty if none does."""
    owners = metadata.get("ownerReferences") or ()
    return next(
        (str(owner["name"]) for owner in owners if owner.get("controller") and owner.get("kind") == enums.KIND), ""
    )


def _role_by_name(kind: str, name: str) -> tuple[enums.Role | None, int]:
    """Return role and attempt of what makes pods, by its name: labels may be taken away, names stay."""
    match = _MADE.fullmatch(name) if kind in POD_MAKERS else None
    return (None, 0) if match is None else (enums.Role(match.group(1)), int(match.group(2) or 0))


def project_pod(raw: Mapping[str, Any]) -> PodView | None:
    """Return what is kept of a pod; None for one that says no job or role."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    labels = metadata.get("labels") or {}
    if labels.get(ROLE_LABEL) not in _ROLES or not labels.get(UID_LABEL) or not controller_of(metadata):
        return None
    init, ours = status.get("initContainerStatuses") or (), status.get("containerStatuses") or ()
    containers = [*init, *ours]
    # A runtime's sidecar is killed when its role ends: it counts where it keeps the pod from running, and no further.
    own = [*(each for each in init if each.get("name") == container.PREFLIGHT), *ours]
    counted = own if any((each.get("state") or {}).get("terminated") for each in ours) else containers
    ends = [state for each in counted if (state := (each.get("state") or {}).get("terminated")) is not None]
    # The first container that failed speaks for the pod; without one, the last that ended.
    end = next((state for state in ends if state.get("exitCode")), ends[-1] if ends else None)
    waits = [state for each in containers if (state := (each.get("state") or {}).get("waiting"))]
    by_type = {each["type"]: each for each in status.get("conditions") or ()}
    unplaced = _with_status(by_type, "PodScheduled", "False")
    disruption = _with_status(by_type, "DisruptionTarget")
    conditions = _shared(tuple((kind, each["status"]) for kind, each in by_type.items()))
    cost = (metadata.get("annotations") or {}).get(DELETION_COST)
    gpus, cpu_milli = _requested(tuple(_asked(each) for each in (raw.get("spec") or {}).get("containers") or ()))
    pod = Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=_ROLES[labels[ROLE_LABEL]],
        attempt=_number(labels.get(ATTEMPT_LABEL)),
        phase=sys.intern(status.get("phase", "Pending")),
        ready=("Ready", "True") in conditions,
        deleting="deletionTimestamp" in metadata,
        exit_code=_exit_code(status, end),
        reason=status.get("reason", ""),
        container_reason=(end or {}).get("reason", ""),
        waiting_reason=waits[0].get("reason", "") if waits else "",
        conditions=conditions,
        created_at=clock.to_seconds(metadata.get("creationTimestamp")) or 0.0,
        finished_at=clock.to_seconds((end or {}).get("finishedAt")) or 0.0,
        restarts=sum(int(each.get("restartCount", 0)) for each in own),
        last_exit_code=_last_exit_code(own),
        last_container_reason=_last_reason(own),
        disruption=str(disruption.get("reason", "")),
        disrupted_at=_since(disruption),
        deleted_at=clock.to_seconds(metadata.get("deletionTimestamp")) or 0.0,
        forced=metadata.get("deletionGracePeriodSeconds") == 0,
        unscheduled=unplaced.get("reason", ""),
        message=str((waits[0] if waits else unplaced).get("message", ""))[:_MOST_MESSAGE],
        deletion_cost=int(cost) if cost and cost.lstrip("-").isdigit() else 0,
        node=sys.intern((raw.get("spec") or {}).get("nodeName", "")),
        runtime_class=(raw.get("spec") or {}).get("runtimeClassName", ""),
        preflight=_preflight(status),
        scheduled_at=_since(_with_status(by_type, "PodScheduled")),
        started_at=_started_at(status),
        ready_at=_since(_with_status(by_type, "Ready")),
        unready_at=_since(_with_status(by_type, "Ready", "False")),
        gpus=gpus,
        cpu_milli=cpu_milli,
    )
    # All that a job has names it.
    return PodView(version=version_of(raw), owner=sys.intern(labels[UID_LABEL]), pod=pod)


# Ten thousand pods are in a few different states.
@functools.lru_cache(maxsize=4096)
def _shared(conditions: tuple[tuple[str, str], ...]) -> frozenset[tuple[str, str]]:
    return frozenset(conditions)


def _asked(container_spec: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return what a container asks for by name; a limit without a request is one."""
    resources = container_spec.get("resources") or {}
    quantities = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return tuple((name, str(value)) for name, value in quantities.items())


# They ask for a few different amounts.
@functools.lru_cache(maxsize=4096)
def _requested(containers: tuple[tuple[tuple[str, str], ...], ...]) -> tuple[int, int]:
    """Return the GPUs and the thousandths of a core that the containers of a pod ask for together."""
    gpus, cores = fractions.Fraction(0), fractions.Fraction(0)
    for name, value in itertools.chain.from_iterable(containers):
        amount = drift.quantity(value) or fractions.Fraction(0)
        gpus += amount if is_gpu(name) else 0
        cores += amount if name == "cpu" else 0
    return int(gpus), int(1000 * cores)


def _with_status(by_type: Mapping[str, Mapping[str, Any]], kind: str, value: str = "True") -> Mapping[str, Any]:
    """Return the condition of a type if it has that status; empty if it has not."""
    condition = by_type.get(kind)
    return condition if condition is not None and condition["status"] == value else {}


def _since(condition: Mapping[str, Any]) -> float:
    """Return since when a condition is as it is, in unix seconds; 0 for none."""
    return clock.to_seconds(condition.get("lastTransitionTime")) or 0.0


def _started_at(status: Mapping[str, Any]) -> float:
    """Return when the last container of a pod began to run; 0 while one does not."""
    running = [
        (container.get("state") or {}).get("running") or {} for container in status.get("containerStatuses") or ()
    ]
    started = [clock.to_seconds(state.get("startedAt")) or 0.0 for state in running]
    return max(started) if started and all(started) else 0.0


def _preflight(status: Mapping[str, Any]) -> str:
    """Return the report of a verifier's first container, of its last try if it was started again; of one that ended
    without a word its exit code."""
    for init in status.get("initContainerStatuses") or ():
        if init.get("name") == container.PREFLIGHT:
            ends = [(init.get(key) or {}).get("terminated") or {} for key in ("state", "lastState")]
            if report := next((str(end["message"]) for end in ends if end.get("message")), ""):
                return report
            return next((f"exit code {end['exitCode']}" for end in ends if end.get("exitCode")), "")
    return ""


def _exit_code(status: Mapping[str, Any], end: Mapping[str, Any] | None) -> int | None:
    """Return the code of a pod that ended, or of a container that is dead while others run."""
    if end is None:
        return None
    over = status.get("phase") in ("Succeeded", "Failed")
    return int(end["exitCode"]) if over or end.get("exitCode") else None


def _last_exit_code(containers: Sequence[Mapping[str, Any]]) -> int | None:
    ends = [(container.get("lastState") or {}).get("terminated") for container in containers]
    return next((int(end["exitCode"]) for end in ends if end and end.get("exitCode")), None)


def _last_reason(containers: Sequence[Mapping[str, Any]]) -> str:
    ends = [(container.get("lastState") or {}).get("terminated") for container in containers]
    return next((str(end.get("reason", "")) for end in ends if end and end.get("exitCode")), "")


def _ended(status: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return str(condition["type"])
    return ""


def _blind(status: Mapping[str, Any]) -> str:
    """Return why an autoscaler does not act; empty if it does or has not said."""
    for condition in status.get("conditions") or ():
        if condition.get("type") in _SCALERS.values() and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "no reason given")
    return ""


def _denied(status: Mapping[str, Any]) -> str:
    """Return why a Deployment's pods are not made; empty if they are. Other workloads have no such condition."""
    for condition in status.get("conditions") or ():
        if (condition.get("type"), condition.get("status")) == ("ReplicaFailure", "True"):
            return str(condition.get("message") or condition.get("reason") or "no reason given")[:_MOST_MESSAGE]
    return ""


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def _packed(document: Mapping[str, Any]) -> bytes:
    return zlib.compress(pydantic_core.to_json(document), level=1)
