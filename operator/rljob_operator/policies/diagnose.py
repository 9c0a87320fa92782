"""Why a run stands still: what the cluster says of its pods, or the end of the chain of waiters. Pure (11.3, 11.4).

The cluster's own facts come first: a pod without a node explains everybody who waits for it.
"""

from collections.abc import Sequence

from rljob_api import types, waiting
from rljob_api.waiting import Diagnosis
from rljob_operator.model import Pod
from rljob_operator.policies import scheduling


def diagnose(run: types.RunStatus, pods: Sequence[Pod], *, now: float) -> Diagnosis:
    """Return why a run stands still; Unknown where nothing tells."""
    of_cluster = _pods_fault(pods, since=run.last_progress_at, now=now)
    return waiting.diagnose(run, now=now) if of_cluster is None else of_cluster


def _pods_fault(pods: Sequence[Pod], *, since: float, now: float) -> Diagnosis | None:
    found = scheduling.obstacle(pods, drain_s=0.0, now=now)
    if found is None:
        return None
    reason = "ImagePullFailed" if found.reason == "ImagePullFailed" else "PodsUnschedulable"
    pod = found.pod
    return Diagnosis(reason=reason, role=str(pod.role), pod=pod.name, since=since, message=found.message)
