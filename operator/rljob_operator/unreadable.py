"""The status of a job whose spec this operator cannot read: an older schema admitted it. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api.conditions import ConditionType as Type
from rljob_api.job import OUR_OPERATOR
from rljob_operator import conditions, times

_STATES = {
    Type.ACCEPTED: ("False", "InvalidSpec"),
    Type.RUNNING: ("False", "NotReady"),
    Type.RECONCILING: ("False", "Blocked"),
    Type.STALLED: ("True", "NotAccepted"),
}


def status_of(raw: Mapping[str, Any], problems: Sequence[str], *, now: float) -> dict[str, Any] | None:
    """Return the status to write; None if it is written, or if the run is over or another controller's."""
    status, generation = raw.get("status") or {}, raw["metadata"].get("generation")
    if (raw.get("spec") or {}).get("managedBy", OUR_OPERATOR) != OUR_OPERATOR:
        return None
    before = {one["type"]: one for one in status.get("conditions") or ()}
    if any(before.get(kind, {}).get("status") == "True" for kind in (Type.COMPLETE, Type.FAILED)):
        return None
    message = conditions.shorten("; ".join(problems))
    made = {kind: _condition(kind, before.get(kind), message, generation, now) for kind in _STATES}
    others = {kind: one for kind, one in before.items() if kind in set(Type) and kind not in made}
    merged = {**others, **made}
    full = {
        **status,
        "observedGeneration": generation,
        "summary": "Invalid",
        "reason": "InvalidSpec",
        "conditions": [merged[kind] for kind in Type if kind in merged],
    }
    return None if full == status else full


def _condition(
    kind: Type, before: Mapping[str, Any] | None, message: str, generation: object, now: float
) -> dict[str, Any]:
    state, reason = _STATES[kind]
    since = before["lastTransitionTime"] if before and before["status"] == state else times.to_text(now)
    text = message if kind in (Type.ACCEPTED, Type.STALLED) else ""
    return {
        "type": str(kind),
        "status": state,
        "reason": reason,
        "message": text,
        "observedGeneration": generation,
        "lastTransitionTime": since,
    }
