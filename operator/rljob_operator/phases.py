"""What follows from a job's conditions: contradictions, the summary word, and kstatus (operator reference 6, 7.3)."""

from collections.abc import Mapping

from rljob_api.conditions import ConditionType as Type

# Statuses by type: "True", "False" or "Unknown"; an optional condition may be absent.
Statuses = Mapping[Type, str]

_NEVER_BOTH = (
    (Type.COMPLETE, Type.FAILED),
    (Type.SUSPENDING, Type.SUSPENDED),
    (Type.RUNNING, Type.SUSPENDED),
    (Type.RUNNING, Type.COMPLETE),
    (Type.RUNNING, Type.FAILED),
    (Type.RECONCILING, Type.STALLED),
    (Type.COMPLETE, Type.STALLED),
    (Type.COMPLETE, Type.RECONCILING),
)
_IMPLIES = ((Type.DEGRADED, Type.RUNNING), (Type.RUNNING, Type.ACCEPTED), (Type.FAILED, Type.STALLED))


def contradictions(statuses: Statuses) -> list[str]:
    """Return a sentence for each rule of 6.1 and 6.2 that the conditions break; empty if they agree."""
    true = {kind for kind, status in statuses.items() if status == "True"}
    found = [f"{one} and {other} are both True" for one, other in _NEVER_BOTH if {one, other} <= true]
    found += [f"{one} is True but {other} is not" for one, other in _IMPLIES if one in true and other not in true]
    if statuses.get(Type.ACCEPTED) == "False" and Type.STALLED not in true:
        found.append("Accepted is False but Stalled is not True")
    return found


def is_terminal(statuses: Statuses) -> bool:
    """Return whether the run has ended: Complete or Failed is True, which is never taken back (6.3)."""
    return "True" in (statuses.get(Type.COMPLETE), statuses.get(Type.FAILED))


def summary(statuses: Statuses, reasons: Mapping[Type, str], *, deleting: bool = False) -> str:
    """Return one word for people, the first that fits; display only, nothing decides by it (7.3)."""
    true = {kind for kind, status in statuses.items() if status == "True"}
    restarting = reasons.get(Type.TRAINER_READY) in ("Restarting", "BackingOff") and Type.TRAINER_READY not in true
    words = (
        ("Terminating", deleting),
        ("Succeeded", Type.COMPLETE in true),
        ("Failed", Type.FAILED in true),
        ("Invalid", statuses.get(Type.ACCEPTED) == "False"),
        ("Suspending", Type.SUSPENDING in true),
        ("Suspended", Type.SUSPENDED in true and reasons.get(Type.SUSPENDED) != "WaitingForQuota"),
        ("Queued", statuses.get(Type.QUOTA_RESERVED) == "False"),
        ("Stalled", Type.STALLED in true),
        ("Restarting", restarting or reasons.get(Type.RUNNING) == "Restarting"),
        ("Starting", reasons.get(Type.RUNNING) == "Starting" and Type.ACCEPTED in true),
        ("Degraded", Type.DEGRADED in true),
        ("Running", Type.RUNNING in true),
    )
    return next((word for word, holds in words if holds), "Pending")


def kstatus(statuses: Statuses, *, generation: int, observed_generation: int) -> str:
    """Return what generic clients conclude: Failed if Stalled, InProgress while work is under way, else Current."""
    if statuses.get(Type.STALLED) == "True":
        return "Failed"
    lags = observed_generation < generation
    return "InProgress" if lags or statuses.get(Type.RECONCILING) == "True" else "Current"
