"""Why a run stands still: what the cluster says of its pods, or the end of the chain of waiters. Pure (11.3, 11.4).

The cluster's own facts come first: a pod without a node explains everybody who waits for it.
"""

import dataclasses
from collections.abc import Sequence

from rljob_api import types, waiting
from rljob_api.waiting import Diagnosis
from rljob_operator.model import Pod
from rljob_operator.policies import scheduling


def diagnose(run: types.RunStatus, pods: Sequence[Pod], *, now: float) -> Diagnosis:
    """Return why a run stands still; Unknown where nothing tells."""
    of_cluster = _pods_fault(pods, since=run.last_progress_at, now=now)
    return with_pod(waiting.diagnose(run, now=now), pods) if of_cluster is None else of_cluster


def with_pod(found: Diagnosis, pods: Sequence[Pod]) -> Diagnosis:
    """Return a diagnosis that names the pod where only one can be meant: the role's only one, or the only unready."""
    if found.pod:
        return found
    there = [pod for pod in pods if pod.role == found.role and not pod.deleting and not pod.is_terminal]
    meant = [pod for pod in there if not pod.ready] or there
    return dataclasses.replace(found, pod=meant[0].name) if len(meant) == 1 else found


def _pods_fault(pods: Sequence[Pod], *, since: float, now: float) -> Diagnosis | None:
    found = scheduling.obstacle(pods, drain_s=0.0, now=now)
    if found is None:
        return None
    reason = "ImagePullFailed" if found.reason == "ImagePullFailed" else "PodsUnschedulable"
    pod = found.pod
    return Diagnosis(reason=reason, role=str(pod.role), pod=pod.name, since=since, message=found.message)
