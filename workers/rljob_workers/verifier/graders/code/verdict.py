"""From what each test case did to a grade (docs/design/graders.md#s-6-4). Pure."""

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from rljob_api import enums
from rljob_workers.verifier.graders import base

# A part of the grade where a record distinguishes visible cases from hidden ones: 1 if the answer passes the visible
# alone.
VISIBLE_ONLY = "visible_only"

R, O = enums.VerdictReason, enums.VerifyOutcome  # noqa: E741  # short in the table


class Case(enum.Enum):
    """How one case ended."""

    PASSED = "passed"
    WRONG = "wrong output"
    CPU_LIMIT = "over the CPU limit"
    WALL_LIMIT = "over the wall limit"
    RAISED = "failed at run time"
    LEFT = "ended without a result"
    NOT_COMPILED = "does not compile"
    NO_FUNCTION = "the function is not there"
    MEMORY = "over the limit of memory or processes"
    FLOOD = "printed more than the limit"
    MALFORMED = "answered with something that is not a result"
    FORBIDDEN = "made a call that is forbidden"
    UNJUDGED = "could not be run"


# What ended a run, by the runner's own record of it (`programs.Run.stopped`).
STOPPED: Mapping[str, Case] = {
    "cpu": Case.CPU_LIMIT,
    "wall": Case.WALL_LIMIT,
    "starved": Case.UNJUDGED,
    "memory": Case.MEMORY,
    "output": Case.FLOOD,
    "forbidden": Case.FORBIDDEN,
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Means:
    result: int
    error_code: int | None
    reason: enums.VerdictReason
    outcome: enums.VerifyOutcome


_MEANS = {
    Case.PASSED: _Means(1, None, R.OK, O.PASS),
    Case.WRONG: _Means(0, -2, R.WRONG, O.FAIL),
    Case.CPU_LIMIT: _Means(-1, -3, R.TIMEOUT, O.TIMEOUT_CPU),
    Case.WALL_LIMIT: _Means(-1, -3, R.TIMEOUT, O.TIMEOUT_WALL),
    Case.RAISED: _Means(-1, -4, R.CRASH, O.FAIL),
    Case.LEFT: _Means(-1, -4, R.CRASH, O.FORCED_EXIT),
    Case.MEMORY: _Means(-1, -4, R.RESOURCE_LIMIT, O.OOM),
    Case.FLOOD: _Means(-1, -4, R.RESOURCE_LIMIT, O.OUTPUT_FLOOD),
    Case.MALFORMED: _Means(-1, -4, R.CRASH, O.FAIL),
    Case.FORBIDDEN: _Means(-1, -4, R.RESOURCE_LIMIT, O.FORBIDDEN),
    Case.NOT_COMPILED: _Means(-2, -1, R.PARSE_ERROR, O.FAIL),
    Case.NO_FUNCTION: _Means(-2, -1, R.PARSE_ERROR, O.FAIL),
}


def grade_of(cases: Sequence[Case], *, num_cases: int, num_visible: int = 0) -> base.Grade:
    """Return the grade of the cases that ran: 1 exactly if all `num_cases` passed. The last one is what failed.

    num_visible: how many of them the prompt shows, 0 where that is not reported. A case that could not be run at all
    leaves the answer unjudged.
    """
    if not cases:
        raise ValueError("an answer with a program runs at least one case")
    last = cases[-1]
    if last is Case.UNJUDGED:
        return unjudged()
    if last is Case.PASSED and len(cases) < num_cases:
        raise ValueError(f"{len(cases)} of {num_cases} cases ran, and none failed")
    means = _MEANS[last]
    return base.Grade(
        score=1.0 if last is Case.PASSED else 0.0,
        reason=means.reason,
        outcome=means.outcome,
        formatted=True,
        detail="" if last is Case.PASSED else f"case {len(cases)} of {num_cases}: {last.value}",
        parts={VISIBLE_ONLY: float(last is not Case.PASSED and len(cases) > num_visible)} if num_visible else {},
        case_results=tuple(_MEANS[case].result for case in cases),
        error_code=means.error_code,
    )


def meaning(case: Case) -> tuple[enums.VerdictReason, enums.VerifyOutcome]:
    """Return the reason and the outcome of an answer whose run ended so. Raises KeyError for UNJUDGED."""
    means = _MEANS[case]
    return means.reason, means.outcome


def unjudged() -> base.Grade:
    """Return the grade that is none: the answer could not be run, and is not to blame."""
    return base.Grade(score=None, reason=R.INFRA_FAILURE, outcome=O.INFRA_ERROR, detail=Case.UNJUDGED.value)


def no_program(*, num_cases: int, detail: str = "") -> base.Grade:
    """Return the grade of an answer without a program: every case counts as wrong."""
    return dataclasses.replace(base.failed(R.NO_ANSWER, detail=detail), case_results=(0,) * num_cases)
