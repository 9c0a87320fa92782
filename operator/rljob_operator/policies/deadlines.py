"""Absolute ends in unix seconds, computed from times in status and of pods: a restarted operator restarts no clock.

Waiting for nodes and starting are two clocks (8.7): pods may wait for a place as long as `schedulingDeadlineSeconds`
says, without end where it is not set, and the start-up deadline counts from when all of them have one.
"""


def scheduling_ends(*, waiting_since: float | None, limit_s: float | None) -> float | None:
    """Return when waiting for nodes ends; None without a limit, or where nothing waits."""
    return None if waiting_since is None or limit_s is None else waiting_since + limit_s


def startup_ends(*, placed_at: float | None, limit_s: float) -> float | None:
    """Return when waiting for the segment's first step ends; None while a pod has no node."""
    return None if placed_at is None else placed_at + limit_s


def active_ends(*, start_time: float | None, limit_s: float | None) -> float | None:
    """Return when the segment must end; None without a limit, or while it has not started."""
    return None if start_time is None or limit_s is None else start_time + limit_s


def ttl_ends(*, completion_time: float | None, ttl_s: float | None) -> float | None:
    """Return when the RLJob may be deleted; None if it may not."""
    return None if completion_time is None or ttl_s is None else completion_time + ttl_s


def is_over(end: float | None, now: float) -> bool:
    """Return whether a deadline is set and reached; a clock that jumped back is before it, and so never early."""
    return end is not None and now >= end
