"""Whether pods have a node and their image, and what stands in the way, in the cluster's own words. Pure (10.7)."""

import dataclasses
from collections.abc import Sequence

from rljob_operator.model import Pod

IMAGE_REASONS = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName"})
CREATE_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_GATED = "SchedulingGated"
# How much longer than a drain a pod may wait for the place of one that drains.
_DRAIN_EXTRA_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a pod does not begin: a reason of PodsScheduled=False, the pod, and what the cluster says."""

    reason: str
    pod: Pod

    @property
    def message(self) -> str:
        """Return a sentence that names the pod."""
        return f"{self.pod.name}: {self.pod.message or self.pod.waiting_reason or 'has no node'}"


def obstacle(pods: Sequence[Pod], *, drain_s: float, now: float) -> Obstacle | None:
    """Return what the first pod by name that cannot begin meets; None if all can.

    A pod that waits for the place of one that drains is not called unschedulable before the drain is overdue.
    """
    draining = {pod.role for pod in pods if pod.deleting}
    for pod in sorted(pods, key=lambda one: one.name):
        waits_for_drain = pod.role in draining and now < pod.created_at + drain_s + _DRAIN_EXTRA_S
        if pod.waiting_reason in IMAGE_REASONS:
            return Obstacle("ImagePullFailed", pod)
        if pod.waiting_reason in CREATE_REASONS:
            return Obstacle("CreateFailed", pod)
        if ("PodScheduled", "False") in pod.conditions and not waits_for_drain:
            return Obstacle(_GATED if pod.unscheduled == _GATED else "Unschedulable", pod)
    return None
