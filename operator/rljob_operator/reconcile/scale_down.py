"""Which rollout pods are removed when a job scales down (docs/design/operator.md#s-10-5). Pure.

Their deletion cost is set, the operator waits until it has seen the annotation, then it lowers the replicas. The cost
is a hint to the ReplicaSet controller; that no accepted trajectory is lost is the promise of the drain.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from rljob_api import enums, types
from rljob_operator.kube.projection import DELETION_COST
from rljob_operator.model import POD, Annotate, Observed, Pod, Ref


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPod:
    """One rollout pod; `created_at` in unix seconds, `serving_version` below 0 if it serves none yet."""

    pod: str
    ready: bool
    serving_version: int
    num_leases: int
    created_at: float


def scale_down_candidates(pods: Sequence[RolloutPod], *, num_wanted: int) -> tuple[str, ...]:
    """Return the pods to give up: not ready, then oldest version, then fewest leased groups, then youngest.

    Raises ValueError if `num_wanted` is negative.
    """
    if num_wanted < 0:
        raise ValueError(f"need {num_wanted=} to be at least 0")
    ordered = sorted(pods, key=lambda pod: (pod.ready, pod.serving_version, pod.num_leases, -pod.created_at, pod.pod))
    return tuple(pod.pod for pod in ordered[: max(0, len(pods) - num_wanted)])


REMOVED_FIRST = -1000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDown:
    """Marks to set or to take away. `waits`: the count may not be lowered before they are seen."""

    marks: tuple[Annotate, ...] = ()
    waits: bool = False


def plan_scale_down(observed: Observed, *, num_set: int, num_wanted: int) -> ScaleDown:
    """Return what to do before the rollouts' count goes from `num_set` to `num_wanted`."""
    pods = [pod for pod in observed.pods_of(enums.Role.ROLLOUT) if not pod.deleting and not pod.is_terminal]
    chosen = set(scale_down_candidates([_candidate(observed, pod) for pod in pods], num_wanted=num_wanted))
    if num_wanted >= num_set:
        chosen = set()
    wrong = [pod for pod in pods if (pod.name in chosen) != (pod.deletion_cost == REMOVED_FIRST)]
    marks = tuple(_mark(pod, REMOVED_FIRST if pod.name in chosen else None) for pod in wrong)
    return ScaleDown(marks=marks, waits=any(pod.name in chosen for pod in wrong))


def _mark(pod: Pod, cost: int | None) -> Annotate:
    value = None if cost is None else str(cost)
    return Annotate(ref=Ref(POD, pod.name), uid=pod.uid, annotations={DELETION_COST: value})


def _candidate(observed: Observed, pod: Pod) -> RolloutPod:
    pod_status = _reported(observed).get(pod.name)
    return RolloutPod(
        pod=pod.name,
        ready=pod.ready,
        serving_version=types.NO_VERSION if pod_status is None else pod_status.serving_version,
        num_leases=0 if pod_status is None else pod_status.leases,
        created_at=pod.created_at,
    )


def _reported(observed: Observed) -> Mapping[str, types.PodStatus]:
    return {} if observed.report is None else {pod.pod: pod for pod in observed.report.run.pods}
