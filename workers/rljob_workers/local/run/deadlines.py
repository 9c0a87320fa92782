"""When a run has to end although nothing broke: start-up, whole-run and stall limits. Pure."""

import dataclasses
from typing import Literal

from rljob_api import lifecycle
from rljob_api.lifecycle import Failure


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds. `startup_s`: to this segment's first step; `active_s`: of this segment; `stall_s`: without progress."""

    startup_s: float
    active_s: float | None = None
    stall_s: float
    on_stall: Literal["Condition", "Restart", "Fail"] = "Condition"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Elapsed:
    """Seconds since the segment began and since the last progress (None before the coordinator answered)."""

    segment_s: float
    idle_s: float | None
    stepped: bool


def exceeded(elapsed: Elapsed, limits: Limits) -> Failure | None:
    """Return why the run must end now, None if it may continue."""
    if limits.active_s is not None and elapsed.segment_s >= limits.active_s:
        return lifecycle.active_exceeded(limits.active_s)
    if not elapsed.stepped:
        if elapsed.segment_s < limits.startup_s:
            return None
        return lifecycle.startup_exceeded(limits.startup_s)
    if limits.on_stall == "Fail" and is_stalled(elapsed, limits):
        return Failure(
            "StallTimeout", f"nothing moved for spec.failurePolicy.stall.timeoutSeconds = {limits.stall_s:.0f}"
        )
    return None


def is_stalled(elapsed: Elapsed, limits: Limits) -> bool:
    """Return whether nothing moved for too long; a run that is still starting has a limit of its own."""
    return elapsed.stepped and elapsed.idle_s is not None and elapsed.idle_s >= limits.stall_s
