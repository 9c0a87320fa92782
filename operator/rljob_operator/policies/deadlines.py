"""Absolute ends in unix seconds, computed from times in status: a restarted operator restarts no clock (8.7-8.13)."""


def startup_ends(*, start_time: float | None, first_step_time: float | None, limit_s: float) -> float | None:
    """Return when waiting for the segment's first step ends; None while queued, or once the step is done."""
    return None if start_time is None or first_step_time is not None else start_time + limit_s


def active_ends(*, start_time: float | None, limit_s: float | None) -> float | None:
    """Return when the segment must end; None without a limit, or while it has not started."""
    return None if start_time is None or limit_s is None else start_time + limit_s


def ttl_ends(*, completion_time: float | None, ttl_s: float | None) -> float | None:
    """Return when the RLJob may be deleted; None if it may not."""
    return None if completion_time is None or ttl_s is None else completion_time + ttl_s


def is_over(end: float | None, now: float) -> bool:
    """Return whether a deadline is set and reached; a clock that jumped back is before it, and so never early."""
    return end is not None and now >= end
