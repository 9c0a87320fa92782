"""Why a run stands still: what the cluster says of its pods, or the end of the chain of waiters. Pure (11.3, 11.4).

The cluster's own facts come first: a pod without a node explains everybody who waits for it.
"""

import dataclasses
from collections.abc import Sequence

from rljob_api import types, waiting
from rljob_api.waiting import Diagnosis
from rljob_operator.model import Observed, Pod
from rljob_operator.policies import scheduling


def diagnose(run: types.RunStatus, seen: Observed, *, now: float) -> Diagnosis:
    """Return why a run stands still; Unknown where nothing tells."""
    of_cluster = pods_fault(seen, since=run.last_progress_at, now=now)
    return with_pod(waiting.diagnose(run, now=now), seen.pods) if of_cluster is None else of_cluster


def with_pod(found: Diagnosis, pods: Sequence[Pod]) -> Diagnosis:
    """Return a diagnosis that names the pod where only one can be meant: the role's only one, or the only unready."""
    if found.pod:
        return found
    there = [pod for pod in pods if pod.role == found.role and not pod.deleting and not pod.is_terminal]
    meant = [pod for pod in there if not pod.ready] or there
    return dataclasses.replace(found, pod=meant[0].name) if len(meant) == 1 else found


def pods_fault(seen: Observed, *, since: float, now: float) -> Diagnosis | None:
    """Return what keeps a pod from beginning; None if nothing does."""
    found = scheduling.obstacle(seen, drain_s=0.0, now=now)
    if found is None:
        return None
    reason = "ImagePullFailed" if found.reason == "ImagePullFailed" else "PodsUnschedulable"
    return Diagnosis(reason=reason, role=str(found.role), pod=found.pod, since=since, message=found.message)
