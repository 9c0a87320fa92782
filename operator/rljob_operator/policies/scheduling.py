"""Whether a job's pods are made, have a node and their image, and what prevents that, in the cluster's own words.

Pure (docs/design/operator.md#s-10-7). Pods that the API server does not take (a quota, a limit range, an admission
policy) do not exist: their workload lacks them, and its controller says why.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from rljob_api import enums, suites
from rljob_api.manifest.job import JobSpec
from rljob_operator.model import TRAINER_JOB, Child, Observed, Pod
from rljob_operator.resources import autoscaling

IMAGE_REASONS = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName"})
CREATE_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
CREATE_FAILED = "CreateFailed"
_GATED = "SchedulingGated"
# How much longer than a drain a pod may wait for the place of one that drains.
_DRAIN_EXTRA_S = 60.0
# How long a controller that says nothing may take to make a pod.
UNMADE_S = 60.0
_SEE_EVENTS = ": see its Events"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why a pod does not begin: a reason of PodsScheduled=False, the role, and what the cluster says.

    name: of the pod, or of the workload whose pods are not made; then `pod` is empty.
    """

    reason: str
    role: enums.Role
    name: str
    detail: str
    pod: str = ""

    @property
    def message(self) -> str:
        """Return a sentence that names the pod or the workload."""
        return f"{self.name}: {self.detail}"


def obstacle(observed: Observed, *, drain_s: float, now: float) -> Obstacle | None:
    """Return what the first workload that gets no pods meets, else the first pod by name that cannot begin; None if
    all can.
    """
    # One of which the reason is known speaks for the others, which it often is the reason of too.
    denied = sorted(
        _denied(observed, drain_s=drain_s, now=now), key=lambda obstacle: obstacle.detail.endswith(_SEE_EVENTS)
    )
    return denied[0] if denied else pods_obstacle(observed.pods, drain_s=drain_s, now=now)


def pods_obstacle(pods: Sequence[Pod], *, drain_s: float, now: float) -> Obstacle | None:
    """Return what the first pod by name that cannot begin meets; None if all can.

    A pod that waits for the place of one that drains is not called unschedulable before the drain is overdue.
    """
    draining = {pod.role for pod in pods if pod.deleting}
    for pod in sorted(pods, key=lambda pod: pod.name):
        waits_for_drain = pod.role in draining and now < pod.created_at + drain_s + _DRAIN_EXTRA_S
        if pod.waiting_reason in IMAGE_REASONS:
            return _of_pod("ImagePullFailed", pod)
        if pod.waiting_reason in CREATE_REASONS:
            return _of_pod(CREATE_FAILED, pod)
        if ("PodScheduled", "False") in pod.conditions and not waits_for_drain:
            return _of_pod(_GATED if pod.unscheduled == _GATED else "Unschedulable", pod)
    return None


def _of_pod(reason: str, pod: Pod) -> Obstacle:
    detail = pod.message or pod.waiting_reason or "has no node"
    return Obstacle(reason=reason, role=pod.role, name=pod.name, detail=detail, pod=pod.name)


def _denied(observed: Observed, *, drain_s: float, now: float) -> Iterator[Obstacle]:
    draining = {pod.role for pod in observed.pods if pod.deleting}
    for ref, short in sorted(observed.short.items()):
        child = observed.children.get(ref)
        if child is None or child.role is None:
            continue
        # What a pod that drains holds is not free yet, of a quota neither.
        wait_s = drain_s + _DRAIN_EXTRA_S if child.role in draining else 0.0
        detail = child.denied or short.message
        if now < short.since + (wait_s if detail else max(wait_s, UNMADE_S)):
            continue
        number = f"{num_pods(child, observed.pods)} of {child.wanted_pods} pods"
        silent = f"{number} exist and its controller does not report why{_SEE_EVENTS}"
        yield Obstacle(reason=CREATE_FAILED, role=child.role, name=f"{ref.kind} {ref.name}", detail=detail or silent)


def num_pods(child: Child, pods: Sequence[Pod]) -> int:
    """Return how many pods of a workload there are, as its controller counts them before it makes others.

    A Deployment replaces those that go or have ended, a StatefulSet waits until they are gone, a Job makes each once.
    """
    pods_of_role = [pod for pod in pods if pod.role is child.role and pod.attempt == child.attempt]
    if child.ref.kind == TRAINER_JOB:
        return len(pods_of_role)
    return sum(not pod.is_terminal and (child.ref.kind == "StatefulSet" or not pod.deleting) for pod in pods_of_role)


def wanted_pods(spec: JobSpec, role: enums.Role) -> int:
    """Return how many pods of a role an active job wants."""
    counts = {
        enums.Role.ROLLOUT: autoscaling.effective_replicas(spec),
        enums.Role.VERIFIER: spec.verifier.replicas,
        enums.Role.TRAINER: spec.trainer.nodes,
        enums.Role.JUDGE: int(role in suites.roles(spec)),
        enums.Role.ENVIRONMENT: suites.num_environments(spec),
        enums.Role.AGENTS: 0 if spec.agents is None else spec.agents.replicas,
    }
    return counts.get(role, 1)


def placed_at(spec: JobSpec, pods: Sequence[Pod], *, attempt: int | None) -> float | None:
    """Return when the last pod that an active job wants was given its node, in unix seconds; None while one has none.

    attempt: the trainer's current one; its pods of other attempts do not count.
    """
    counted = [pod for pod in pods if pod.role is not enums.Role.TRAINER or pod.attempt == attempt]
    live_pods = [pod for pod in counted if pod.phase != "Failed" and not pod.deleting]
    for role in enums.Role:
        pods_of_role = [pod for pod in live_pods if pod.role is role]
        if len(pods_of_role) < wanted_pods(spec, role) or not all(pod.has_node for pod in pods_of_role):
            return None
    return max((pod.scheduled_at or pod.created_at for pod in live_pods), default=None)
