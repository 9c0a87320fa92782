"""What a grading worker answers, as it crosses the socket: a grade, the grader's own error, or the worker's. JSON.

It is asked for a grade, or for its canaries.
"""

import enum
from collections.abc import Mapping
from typing import TypeVar

from rljob_api import enums, errors
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.sandbox.processes import launcher

EnumT = TypeVar("EnumT", bound=enum.StrEnum)


# The request for the canaries.
CANARIES = {"canaries": True}


class Then(enum.StrEnum):
    """What a worker can do after an answer: serve the next, rather run its canaries before, or nothing any more."""

    SERVE = "serve"
    CANARIES = "canaries"
    RETIRE = "retire"


class WrongCanaryError(Exception):
    """Instead of a grade: a program of known outcome came out otherwise, and the answer was not looked at."""

    def __init__(self, name: str) -> None:
        super().__init__(f"canary {name} had an unexpected outcome")
        self.name = name


def grade_to(grade: base.Grade, then: Then = Then.SERVE) -> dict[str, object]:
    return {
        "then": then.value,
        "score": grade.score,
        "reason": grade.reason.value,
        "outcome": grade.outcome.value,
        "formatted": grade.formatted,
        "extracted": grade.extracted,
        "detail": grade.detail,
        "cpu_s": grade.cpu_s,
        "parts": dict(grade.parts),
        "case_results": list(grade.case_results),
        "error_code": grade.error_code,
    }


def error_to(error: errors.GraderError) -> dict[str, object]:
    """Return the reply for a grader that is wrong whatever the answer is."""
    return {"error": str(error)[: base.MAX_DETAIL_CHARS]}


def wrong_canary_to(name: str) -> dict[str, object]:
    """Return the reply of a worker whose verdicts are not to be believed any more; of one whose are, for no name."""
    return {"canary": name}


def check_canaries(reply: Mapping[str, object]) -> None:
    """Look at the answer to the request for the canaries. Raises WrongCanaryError and WorkerLostError."""
    name = reply.get("canary")
    if name:
        raise WrongCanaryError(str(name))
    if name is None:
        raise launcher.WorkerLostError("malformed reply: it is not on the canaries")


def grade_from(reply: Mapping[str, object]) -> base.Grade:
    """Return the grade of a reply.

    Raises GraderError if the grader is at fault, WrongCanaryError if the worker is, and WorkerLostError if the reply is
    malformed: that worker is not trusted again.
    """
    if "canary" in reply:
        check_canaries(reply)
    if "error" in reply:
        raise errors.GraderError(str(reply["error"]))
    try:
        score, cpu_s = reply["score"], reply["cpu_s"]
        if isinstance(score, bool) or not isinstance(score, int | float | None) or not isinstance(cpu_s, int | float):
            raise ValueError("score or cpu_s is not a number")
        return base.Grade(
            score=None if score is None else float(score),
            reason=_member(enums.VerdictReason, reply, "reason"),
            outcome=_member(enums.VerifyOutcome, reply, "outcome"),
            formatted=reply["formatted"] is True,
            extracted=str(reply["extracted"]),
            detail=str(reply["detail"]),
            cpu_s=float(cpu_s),
            parts=_parts(reply["parts"]),
            case_results=_case_results(reply["case_results"]),
            error_code=_error_code(reply["error_code"]),
        )
    except (KeyError, ValueError) as error:
        raise launcher.WorkerLostError(f"malformed reply: {error}") from error


def then_from(reply: Mapping[str, object]) -> Then:
    """Return what its worker can do next. Raises WorkerLostError if the reply is malformed."""
    try:
        return _member(Then, reply, "then")
    except (KeyError, ValueError) as error:
        raise launcher.WorkerLostError(f"malformed reply: {error}") from error


def _member(kind: type[EnumT], reply: Mapping[str, object], key: str) -> EnumT:
    try:
        return kind(str(reply[key]))
    except ValueError:
        # Its own message quotes the value, which may be anything that a worker holds.
        raise ValueError(f"{key} is no {kind.__name__}") from None


def _parts(value: object) -> dict[str, float]:
    if not isinstance(value, dict) or not all(isinstance(part, int | float) for part in value.values()):
        raise ValueError("parts is not a mapping of names to numbers")
    return {str(name): float(part) for name, part in value.items()}


def _case_results(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(result, int) for result in value):
        raise ValueError("case_results is not a list of integers")
    return tuple(value)


def _error_code(value: object) -> int | None:
    if value is not None and not isinstance(value, int):
        raise ValueError("error_code is not an integer")
    return value
