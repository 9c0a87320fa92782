"""From what a repository's tests reported to a grade (docs/design/sandbox.md#s-6). Pure.

The reports come from the process in which the answer's code ran, too. They are counted as if they were true, since
nothing can prove them: the grade is marked, by the part `in_process`.
"""

from collections.abc import Mapping, Sequence

from rljob_workers.verifier import sandbox
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.code import verdict

IN_PROCESS = "in_process"

Case = verdict.Case
TEST, FINISHED = "test", "finished"
PASSED = "passed"
_NOT_PASSED, _NOT_THERE = 0, -1


def grade_of(run: sandbox.Run, *, num_tests: int) -> base.Grade:
    """Return the grade of one run: 1 exactly if each of the tests [N] was reported once, as passed, and all ended well.

    case_results [N]: 1 passed, 0 reported otherwise, -1 not reported.
    """
    reported = _reported(run, num_tests)
    results = tuple(_result(reported.get(index)) for index in range(num_tests))
    case = _case(run, reported, results)
    if case is Case.UNJUDGED:
        return verdict.unjudged()
    passed = case is Case.PASSED
    reason, outcome = verdict.meaning(case)
    return base.Grade(
        score=float(passed),
        reason=reason,
        outcome=outcome,
        formatted=True,
        detail="" if passed else _detail(case, results),
        parts={IN_PROCESS: 1.0},
        case_results=results,
    )


def _case(run: sandbox.Run, reported: Mapping[int, Sequence[object]], results: Sequence[int]) -> Case:
    if run.stopped:
        return verdict.STOPPED[run.stopped]
    if run.malformed:
        return Case.MALFORMED
    # Whatever was reported and whatever the exit code says: a suite that does not come to its end has failed.
    if not run.records or run.records[-1][0] != FINISHED or run.exit_code < 0:
        return Case.LEFT
    if run.exit_code:
        return Case.RAISED
    # Each record but the last is the one report of one test.
    if sum(len(words) == 1 for words in reported.values()) != len(run.records) - 1:
        return Case.MALFORMED
    return Case.PASSED if all(result == 1 for result in results) else Case.WRONG


def _reported(run: sandbox.Run, num_tests: int) -> dict[int, list[object]]:
    """Return what was said of each test, by index; what names no test is left out."""
    reports: dict[int, list[object]] = {}
    for status, value in run.records:
        if status != TEST or not isinstance(value, list) or len(value) != 2:
            continue
        index, report = value
        if type(index) is int and 0 <= index < num_tests:
            reports.setdefault(index, []).append(report)
    return reports


def _result(report: Sequence[object] | None) -> int:
    if report is None:
        return _NOT_THERE
    return 1 if list(report) == [PASSED] else _NOT_PASSED


def _detail(case: Case, results: Sequence[int]) -> str:
    if case is not Case.WRONG:
        return str(case.value)
    first = next(index for index, result in enumerate(results) if result != 1)
    how = "was not reported" if results[first] == _NOT_THERE else "did not pass"
    return f"test {first + 1} of {len(results)} {how}"
