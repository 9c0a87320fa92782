"""What conditions say together: which contradict each other, and what kstatus concludes (docs/conditions.md)."""

from rljob_api.conditions import ConditionType as Type
from rljob_operator.reconcile.status import Statuses

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
    problems = [f"{first} and {other} are both True" for first, other in _NEVER_BOTH if {first, other} <= true]
    problems += [
        f"{first} is True but {other} is not" for first, other in _IMPLIES if first in true and other not in true
    ]
    if statuses.get(Type.ACCEPTED) == "False" and Type.STALLED not in true:
        problems.append("Accepted is False but Stalled is not True")
    return problems


def kstatus(statuses: Statuses, *, generation: int, observed_generation: int) -> str:
    """Return what generic clients conclude, in the order of kstatus: an older generation is in progress, then the two
    conditions, of which it takes the first that it meets; everything else is current.
    """
    if observed_generation < generation or statuses.get(Type.RECONCILING) == "True":
        return "InProgress"
    return "Failed" if statuses.get(Type.STALLED) == "True" else "Current"
