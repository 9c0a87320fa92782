"""A stand-in for Kueue's controller: it writes into the status of Workloads what Kueue writes, and decides nothing.

The shapes are those of kueue.x-k8s.io/v1beta2 and of `pkg/workload` of Kueue 0.17: admission with flavors and counts,
conditions QuotaReserved, Admitted and Evicted. No fit, no preemption: a test says who is admitted and who is evicted.
"""

from collections.abc import Mapping
from typing import Any

Status = dict[str, Any]
_TIME = "2026-01-01T00:00:00Z"


def admitted(workload: Mapping[str, Any], *, flavor: str = "", counts: Mapping[str, int] | None = None) -> Status:
    """Return the status of a Workload that gets its quota; counts: of pod sets that get less than they ask for."""
    assignments = [
        {
            "name": pod_set["name"],
            "count": (counts or {}).get(pod_set["name"], pod_set["count"]),
            **({"flavors": {"cpu": flavor, "memory": flavor}} if flavor else {}),
        }
        for pod_set in workload["spec"]["podSets"]
    ]
    changes = {
        "QuotaReserved": ("True", "QuotaReserved", "Quota reserved in ClusterQueue main"),
        "Admitted": ("True", "Admitted", "The workload is admitted"),
    }
    # A reservation ends an eviction.
    if _holds(workload, "Evicted"):
        changes["Evicted"] = ("False", "QuotaReserved", "Previously: evicted")
    admission = {"clusterQueue": "main", "podSetAssignments": assignments}
    return {**(workload.get("status") or {}), "admission": admission, "conditions": _with(workload, changes)}


def evicted(workload: Mapping[str, Any], *, reason: str = "Preempted") -> Status:
    """Return the status of a Workload whose quota is wanted by another; it keeps the quota until it is returned."""
    changes = {"Evicted": ("True", reason, "Preempted to accommodate a higher priority Workload")}
    return {**(workload.get("status") or {}), "conditions": _with(workload, changes)}


def pending(workload: Mapping[str, Any], message: str) -> Status:
    """Return the status of a Workload for which there is no quota now."""
    return {
        **(workload.get("status") or {}),
        "conditions": _with(workload, {"QuotaReserved": ("False", "Pending", message)}),
    }


def holds_quota(workload: Mapping[str, Any]) -> bool:
    """Return whether Kueue counts a Workload's quota as used."""
    return _holds(workload, "QuotaReserved") and not _holds(workload, "Finished")


def _holds(workload: Mapping[str, Any], kind: str) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any((each["type"], each["status"]) == (kind, "True") for each in conditions)


def _with(workload: Mapping[str, Any], changes: Mapping[str, tuple[str, str, str]]) -> list[dict[str, Any]]:
    conditions = {each["type"]: each for each in (workload.get("status") or {}).get("conditions") or ()}
    written = {
        kind: {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": _TIME}
        for kind, (status, reason, message) in changes.items()
    }
    return list({**conditions, **written}.values())
