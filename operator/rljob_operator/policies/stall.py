"""Whether a run stands still (operator reference 11). Pure; who holds it up, `diagnose.py` says."""

import enum


class StallState(enum.StrEnum):
    """What a progress counter says."""

    PROGRESSING = "progressing"
    STALLED = "stalled"
    UNREADABLE = "unreadable"


def stall_state(
    *, counter_readable: bool, active: bool, past_startup: bool, last_progress_at: float, timeout_s: float, now: float
) -> StallState:
    """Return whether the run stands still: no progress for `timeout_s` while active and past start-up (11.2).

    A counter that cannot be read is no stall of the data loop (11.6).
    """
    if not active or not past_startup:
        return StallState.PROGRESSING
    if not counter_readable:
        return StallState.UNREADABLE
    return StallState.STALLED if now - last_progress_at >= timeout_s else StallState.PROGRESSING
