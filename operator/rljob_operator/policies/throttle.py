"""When a status is written: decisions at once, counts of pods and numbers together (docs/design/operator.md#s-7-5,
#s-17-4).

While a job starts, each pod that becomes ready changes a count; a write for each would be most of the writes of its
life, and no one reads them as fast.
"""

from rljob_api.manifest.status import JobStatus

BETWEEN_COUNTS_S = 2.0


def wait_s(before: JobStatus, after: JobStatus, *, written_at: float | None, now: float) -> float:
    """Return the seconds that a write of `after` over `before` has to wait; 0 if it is due.

    written_at: when this job's status was last written, unix seconds; None if that is not known.
    """
    if written_at is None or _decisions(before) != _decisions(after):
        return 0.0
    # A clock that jumped back must not hold anything up.
    remaining_s = written_at + BETWEEN_COUNTS_S - now
    return remaining_s if 0.0 < remaining_s <= BETWEEN_COUNTS_S else 0.0


def _decisions(status: JobStatus) -> JobStatus:
    """Return the status without what may wait: all that others act on, and all history, is left."""
    conditions = tuple(condition.model_copy(update={"reason": "-", "message": ""}) for condition in status.conditions)
    blank = {"conditions": conditions, "reason": None, "roles": (), "rollout": None, "images": ()}
    numbers = {"step": None, "version": None, "trajectories": None, "reward": None, "pace": None}
    return status.model_copy(update=blank | numbers)
