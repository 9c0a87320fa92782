"""What follows from a refusal of the API server: it holds up one child and no other, and is tried again for ever. Pure.

    refused --> shown (a passing failure: after a minute) --> tried again after 1, 2, 4 .. 10 minutes --> taken
A change of the spec is tried at once. A refusal remains for as long as the plan wants what was refused, and no longer.
"""

import dataclasses
from collections.abc import Iterable

from rljob_api import lifecycle
from rljob_operator.model import Action, Apply, Observed, Plan, Ref, Refusal, StatusWrite, earliest

FORBIDDEN, REJECTED, NAME_CONFLICT = "Forbidden", "ChildRejected", "NameConflict"
_FIRST_S, _FIRST_PASSING_S, _MOST_S = 60.0, 2.0, 600.0
# A restart of a webhook or of the API server is over by then.
_SHOWN_AFTER_S = 60.0
# What a run can do without.
_DISPENSABLE = frozenset({"PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject", "PodMonitor"})
_TOO_LATE, _CONFLICT, _TOO_MANY, _FAILED = 408, 409, 429, 500


def reason(status: int) -> str:
    """Return the reason for which an answer of HTTP refuses one child; empty where it says nothing of this child.

    500 is what a webhook that does not answer makes of a request; other failures are the server's own.
    """
    if status == 403:
        return FORBIDDEN
    refuses = (400 <= status < 500 and status not in (_TOO_LATE, _TOO_MANY)) or status == _FAILED
    return REJECTED if refuses else ""


def may_pass(status: int) -> bool:
    """Return whether a refusal with this status of HTTP is a failure that may end by itself."""
    return status >= _FAILED or status == _CONFLICT


def with_backoff(previous: Refusal | None, new: Refusal, *, now: float) -> Refusal:
    """Return a new refusal with its place in a row, and when to try again."""
    follows = previous is not None and previous.generation == new.generation
    times = previous.times + 1 if previous is not None and follows else 1
    first_s = _FIRST_PASSING_S if new.passing else _FIRST_S
    wait_s = lifecycle.backoff_s(times, first_s=first_s, max_s=_MOST_S)
    since = previous.since if previous is not None and follows else now
    return dataclasses.replace(new, times=times, since=since, again_at=now + wait_s)


def without_refused(planned: Plan, observed: Observed, *, now: float) -> Plan:
    """Return the plan without what is not due yet, and with the refusals that still matter."""
    wanted_refs = {_ref(action) for action in planned.actions}
    still_wanted = {ref: refusal for ref, refusal in observed.refusals.items() if ref in wanted_refs}
    missing = still_wanted.keys() - observed.children.keys()
    due_now, later_times = list[Action](), list[float | None]()
    for action in planned.actions:
        due_at = _due_at(action, still_wanted, generation=observed.job.metadata.generation)
        if isinstance(action, Apply) and missing & set(action.needs):
            continue
        if due_at > now:
            later_times.append(due_at)
        else:
            due_now.append(action)
    refused = tuple(refusal for _, refusal in sorted(still_wanted.items()))
    again_at = earliest(planned.again_at, *later_times)
    return dataclasses.replace(
        planned, actions=tuple(due_now), again_at=again_at, refused=refused, waits=bool(later_times)
    )


def _due_at(action: Action, standing: dict[Ref, Refusal], *, generation: int) -> float:
    refusal = standing.get(_ref(action))
    refused_until = refusal.again_at if refusal is not None and refusal.generation == generation else 0.0
    return max(refused_until, action.due_at if isinstance(action, Apply) else 0.0)


def _ref(action: Action) -> Ref:
    # A status is not a child; nothing has an empty name.
    return Ref("", "") if isinstance(action, StatusWrite) else action.ref


def shown(refused: Iterable[Refusal], *, now: float) -> tuple[Refusal, ...]:
    """Return the refusals that a status reports on."""
    return tuple(refusal for refusal in refused if not refusal.passing or now - refusal.since >= _SHOWN_AFTER_S)


def keeps_from_running(refused: Iterable[Refusal], existing: Iterable[Ref]) -> Refusal | None:
    """Return the first refusal of something that pods need and that is not there; None without one."""
    present = frozenset(existing)
    return next(
        (refusal for refusal in refused if refusal.ref not in present and refusal.ref.kind not in _DISPENSABLE), None
    )


def sentence(refused: Iterable[Refusal]) -> str:
    """Return what was refused, and why, by child."""
    return "; ".join(f"{refusal.ref.kind} {refusal.ref.name}: {refusal.message}" for refusal in refused)
