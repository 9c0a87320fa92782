"""What can go wrong, below `rljob_api.errors.RLJobError`.

ManifestError       the manifest is wrong, found before anything was sent; `problems` are sentences
ClusterError
|- ApiError         the API server answered with an error, or did not answer; `status` is the HTTP code, 0 for none
|  |- NotFoundError no such job or namespace, or no RLJob is known there
|  |- RefusedError  the server does not take it; `problems` name the fields
|- GoneError        the job was deleted while it was followed
|- JobFailedError   it ended as Failed; `reason` and `message` are those of the condition
|- WaitTimeoutError it has not ended in time (a TimeoutError too)
"""

import dataclasses
import json

from rljob_api.errors import ClusterError, ManifestError

__all__ = [
    "ApiError",
    "ClusterError",
    "GoneError",
    "JobFailedError",
    "ManifestError",
    "NotFoundError",
    "Problem",
    "RefusedError",
    "WaitTimeoutError",
    "of_answer",
]

NO_ANSWER = 0
_REFUSALS = (400, 403, 409, 422)


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One field that the API server refuses, such as `spec.maxSteps`; empty where it names none."""

    field: str
    message: str


class ApiError(ClusterError):
    """An error of the API server, or no answer."""

    def __init__(self, message: str, status: int = NO_ANSWER) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class NotFoundError(ApiError):
    """There is no such object."""


class RefusedError(ApiError):
    """The server does not take an object: a field, a right, a quota, or a conflict."""

    def __init__(self, message: str, status: int, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message, status)
        self.args = (message, status, problems)
        self.problems = problems


class GoneError(ClusterError):
    """A job was deleted while it was followed."""


class JobFailedError(ClusterError):
    """A job ended as Failed."""

    def __init__(self, name: str, reason: str, message: str) -> None:
        super().__init__(name, reason, message)
        self.reason, self.message = reason, message

    def __str__(self) -> str:
        return f"{self.args[0]} failed ({self.reason}): {self.message}"


class WaitTimeoutError(ClusterError, TimeoutError):
    """A job has not ended in time."""


def of_answer(status: int, body: str) -> ApiError:
    """Return the error for an answer of the API server: its code, and its body, a Status where it could say one."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        answer = {"message": body.strip()[:500] or f"the API server answered {status}"}
    message = str(answer.get("message", ""))
    if status == 404:
        return NotFoundError(message, status)
    if status not in _REFUSALS:
        return ApiError(message, status)
    causes = (answer.get("details") or {}).get("causes") or ()
    problems = tuple(Problem(str(cause.get("field", "")), str(cause.get("message", ""))) for cause in causes)
    return RefusedError(message, status, problems)
