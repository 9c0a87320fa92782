"""A failed run that goes on: `spec.retry` was raised above the value that was acted on last. Pure.

Failed --raised--> Suspending/RetryRequested --no pod left--> Suspended/RetryRequested --> the next segment
"""

from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.status import JobStatus

REQUESTED = "RetryRequested"


def is_asked_for(spec: JobSpec, status: JobStatus) -> bool:
    """Return whether a run that is over is to go on. One that is complete is not; one that is suspended waits."""
    failed = any((each.type, each.status) == (Type.FAILED, "True") for each in status.conditions)
    return failed and not spec.suspend and spec.retry > (status.retry or 0)


def is_stopping(status: JobStatus) -> bool:
    """Return whether what is left of a failed run is being stopped."""
    return any(
        (each.type, each.status, each.reason) == (Type.SUSPENDING, "True", REQUESTED) for each in status.conditions
    )


def begun(status: JobStatus, spec: JobSpec) -> JobStatus:
    """Return the status of a run that is no longer over. Its attempts stay; its budget of restarts is a new one."""
    return status.model_copy(update={"retry": spec.retry, "completion_time": None, "restarts": None})


def acknowledged(status: JobStatus, spec: JobSpec, *, failed: bool) -> JobStatus:
    """Return the status with `spec.retry` as acted on where there is no failure: none is saved up for a later one.

    The failure that is being written now belongs to the value that was there before it.
    """
    if failed or spec.retry == (status.retry or 0):
        return status
    return status.model_copy(update={"retry": spec.retry})
