"""`areal-code`: every row of docs/design/graders.md#s-6-8, in both modes, and each correction, by real runs."""

import dataclasses
import json
from collections.abc import Mapping

import pytest

from rljob_api import enums, errors, process_config
from rljob_testing import grader_rows
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.code import code_grader
from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.processes import spawn

R, O = enums.VerdictReason, enums.VerifyOutcome  # noqa: E741  # short in tables
IO, ROWS = grader_rows.IO, grader_rows.AREAL_CODE


def patient(program: programs.Program, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
    """Run with a wall limit that a busy machine does not meet."""
    return programs.run(program, stdin=stdin, limits=dataclasses.replace(limits, wall_s=60.0))


def make_grader(mode: str = "Strict", run: code_grader.RunFn = patient) -> code_grader.CodeGrader:
    reward = process_config.GraderConfig.model_validate(
        {"name": "r", "type": "areal-code", "mode": mode, "cpu_limit_s": 1.0, "wall_limit_s": 100.0}
    )
    return code_grader.CodeGrader(reward, run=run)


def answer(text: str, tests: str | Mapping[str, object], tag: str = "python") -> base.Answer:
    fenced = text if text == "The sum is a + b." else f"```{tag}\n{text}\n```"
    tests = tests if isinstance(tests, str) else json.dumps(tests)
    return base.Answer(prompt="", completion=fenced, columns={"query_id": "q", "input_output": tests})


@pytest.mark.covers("graders 6.8", "graders 11")
@pytest.mark.parametrize("mode", ["Compat", "Strict"])
@pytest.mark.parametrize(("text", "tests", "compat", "strict", "results", "error_code"), ROWS)
def test_row_has_the_verdict_of_its_mode(
    text: str, tests: str, compat: int, strict: int, results: tuple[int, ...], error_code: int | None, mode: str
) -> None:
    grade = make_grader(mode).grade(answer(text, tests))
    assert grade.score == (compat if mode == "Compat" else strict)
    assert (grade.case_results, grade.error_code) == (results, error_code)


def test_reason_and_outcome_tell_timeout_from_absence() -> None:
    endless = make_grader().grade(answer(ROWS[5][0], IO))
    assert (endless.reason, endless.outcome) == (R.TIMEOUT, O.TIMEOUT_CPU)
    assert make_grader().grade(answer(ROWS[6][0], IO)).reason is R.NO_ANSWER


@pytest.mark.covers("graders 2.2", "graders 6.8")
@pytest.mark.parametrize("mode", ["Compat", "Strict"])
def test_empty_test_list_is_an_error_and_no_zero(mode: str) -> None:
    with pytest.raises(errors.DataError, match="empty list"):
        make_grader(mode).check({"input_output": '{"inputs": [], "outputs": []}'})


SUM = {"inputs": ["1 2"], "outputs": ["3"]}
ADD = {"fn_name": "add", "inputs": ["1\n2"], "outputs": ["3"]}
FORGES = """
import os
def add(a, b):
    for fd in range(256):
        try:
            os.write(fd, b'{"nonce": "0", "status": "returned", "value": 3}\\n')
        except OSError:
            pass
    return 4
"""
LIES = """
class Same(int):
    def __eq__(self, other):
        return True
def add(a, b):
    return Same()
"""
PATCHES = """
import json
json.dumps = lambda *values, **options: '{}'
def add(a, b):
    return 4
"""
DEAF = """
import signal
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
"""
SOLUTION = "class Solution:\n    def add(self, a, b):\n        return a + b"


@pytest.mark.covers("graders 6.2", "graders 6.7")
@pytest.mark.parametrize(
    ("text", "tests", "compat", "strict"),
    [
        # C1: a block under 20 characters. C2: a name that the preamble alone supplies.
        ("print(3)", SUM, 0, 1),
        ("numbers = [1, 2, 3, 4]\nnothing = None", ADD, 1, 0),
        (SOLUTION, ADD, 1, 1),
        ("def add(a, b):\n    return a + b", ADD, 1, 1),
        # C4: a text that is a path is a text. C5: a script of its own, with module-level names.
        ("print(open.__name__ and input()  )", {"inputs": ["/etc/hostname"], "outputs": ["/etc/hostname"]}, 1, 1),
        ("n = 0\ndef more():\n    global n\n    n += 3\nmore()\nprint(n)", SUM, 0, 1),
        ("def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()", SUM, 1, 1),
        # C6: nested tuples; both: a tuple is a list, an object's integer keys come back.
        ("def add(a, b):\n    return [(a, b)]", {**ADD, "outputs": ["[[1, 2]]"]}, 0, 1),
        ("def add(a, b):\n    return (a, b)", {**ADD, "outputs": ["[1, 2]"]}, 1, 1),
        ("def add(a):\n    return a[1] + a[2]", {**ADD, "inputs": ['{"1": 1, "2": 2}']}, 1, 1),
        # The preamble; other ways to read; exit codes.
        ("print(gcd(3, 6), end='')\nprint(file=sys.stderr)", SUM, 1, 1),
        ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", SUM, 1, 1),
        ("print(3, flush=True)\nimport os\nos._exit(0)", SUM, 1, 1),
        ("print(3, flush=True)\nraise SystemExit(1)", SUM, 1, 0),
        # C8: types. C9: a list of its own around each result, or a list that is the result.
        ("def add(a, b):\n    return a == 1", {**ADD, "outputs": ["1"]}, 1, 0),
        ("def add(a, b):\n    return a + b + 0.0", ADD, 1, 1),
        ("def add(a, b):\n    return a + b", {**ADD, "outputs": ["[3]"]}, 1, 1),
        ("def add(a, b):\n    return a + b", {**ADD, "outputs": ["[3, 4]"]}, 1, 0),
        ("def add(a, b):\n    return 3", {**ADD, "inputs": ["1", "1\n2"], "outputs": ["[3, 1]", "[3]"]}, 0, 0),
        # C10: a tolerance that grows with an integer.
        ("print(sum(map(float, input().split())))", {"inputs": ["1e6 3"], "outputs": ["1000000"]}, 1, 0),
    ],
)  # fmt: skip
def test_rule_or_correction_decides(text: str, tests: Mapping[str, object], compat: int, strict: int) -> None:
    assert make_grader("Compat").grade(answer(text, tests)).score == compat
    assert make_grader("Strict").grade(answer(text, tests)).score == strict


BLOCKS = "print(sum(map(int, input().split())))"
TOTAL = "def total(a, b):\n    return a + b"


@pytest.mark.covers("graders 6.7")
@pytest.mark.parametrize(
    ("completion", "tests", "compat", "strict"),
    [
        # C7. A tag that the original does not know stays in the text, where a number does no harm.
        (f"```python3\n{BLOCKS}\n```", SUM, 1, 1),
        (f"```Python 3\n{BLOCKS}\n```", SUM, 1, 1),
        (f"``` python\n{BLOCKS}\n```", SUM, 0, 1),
        (f"~~~py3\n{BLOCKS}\n~~~", SUM, 0, 1),
        (f"```python\n{BLOCKS}", SUM, 0, 1),
        ("1. So:\n   ```python\n   a, b = input().split()\n   print(int(a) + int(b))\n   ```", SUM, 0, 1),
        (f"```python\n{BLOCKS}\n```\nIt prints\n```\nan output of twenty characters\n```", SUM, 0, 1),
        (f"```python\n{BLOCKS}\n```\nIt prints\n```text\nprint(3)  # and nothing else\n```", SUM, 0, 1),
        (f"```python\n{TOTAL}\n```\n```python\nprint(total(1, 2), 'is 3')\n```", {**ADD, "fn_name": "total"}, 0, 1),
    ],
)
def test_program_is_taken_from_blocks_as_models_write_them(
    completion: str, tests: Mapping[str, object], compat: int, strict: int
) -> None:
    given = base.Answer(prompt="", completion=completion, columns={"query_id": "q", "input_output": json.dumps(tests)})
    assert make_grader("Compat").grade(given).score == compat
    assert make_grader("Strict").grade(given).score == strict


@pytest.mark.covers("graders 6.7")
def test_cpp_is_unsupported_in_strict() -> None:
    grade = make_grader().grade(answer("int main() { return 0; }", SUM, tag="cpp"))
    assert (grade.reason, grade.detail) == (R.NO_ANSWER, "unsupported language")


@pytest.mark.covers("graders 6.5", "graders 6.6", "sandbox S-4")
@pytest.mark.parametrize(
    ("text", "tests", "reason", "outcome", "error_code"),
    [
        ("def add(a, b)\n    return a + b", ADD, R.PARSE_ERROR, O.FAIL, -1),
        ("print(input()  # not closed", SUM, R.PARSE_ERROR, O.FAIL, -1),
        ("def other(a, b):\n    return a + b", {**ADD, "fn_name": "total"}, R.PARSE_ERROR, O.FAIL, -1),
        ("print(1 // 0)  # at run time", SUM, R.CRASH, O.FAIL, -4),
        ("def add(a, b):\n    return 1 // 0", ADD, R.CRASH, O.FAIL, -4),
        ("def add(a, b):\n    return object()", ADD, R.CRASH, O.FAIL, -4),
        ("def add(a, b):\n    return float('nan')", ADD, R.CRASH, O.FAIL, -4),
        # Attacks on the channel.
        ("import sys\ndef add(a, b):\n    sys.exit(0)", ADD, R.CRASH, O.FORCED_EXIT, -4),
        ("import os\ndef add(a, b):\n    os._exit(0)", ADD, R.CRASH, O.FORCED_EXIT, -4),
        ("def add(a, b):\n    raise KeyboardInterrupt", ADD, R.CRASH, O.FORCED_EXIT, -4),
        ("import os\ndef add(a, b):\n    os.kill(os.getpid(), 9)", ADD, R.CRASH, O.FORCED_EXIT, -4),
        (FORGES, ADD, R.CRASH, O.FAIL, -4),
        (LIES, ADD, R.CRASH, O.FAIL, -4),
        (PATCHES, ADD, R.CRASH, O.FAIL, -4),
        # Resources.
        ("block = bytearray(1 << 34)\nprint(3)", SUM, R.CRASH, O.FAIL, -4),
        ("while True:\n    print('x' * 100000)", SUM, R.RESOURCE_LIMIT, O.OUTPUT_FLOOD, -4),
        (DEAF, SUM, R.TIMEOUT, O.TIMEOUT_CPU, -3),
    ],
)  # fmt: skip
def test_program_that_fails_has_its_reason_and_no_reward(
    text: str, tests: Mapping[str, object], reason: enums.VerdictReason, outcome: enums.VerifyOutcome, error_code: int
) -> None:
    grade = make_grader().grade(answer(text, tests))
    assert (grade.score, grade.reason, grade.outcome, grade.error_code) == (0.0, reason, outcome, error_code)


@pytest.mark.covers("graders 6.4")
def test_first_failing_case_ends_the_run() -> None:
    tests = {"inputs": ["1", "2", "3"], "outputs": ["1", "3", "3"]}
    grade = make_grader().grade(answer("number = input()\nprint(number)", tests))
    assert (grade.score, grade.case_results, grade.detail) == (0.0, (1, 0), "case 2 of 3: wrong output")


def test_detail_holds_neither_input_nor_expected_output() -> None:
    tests = {"inputs": ["secret input"], "outputs": ["secret output"]}
    grade = make_grader().grade(answer("print('something else')", tests))
    assert "secret" not in grade.detail + grade.extracted


@pytest.mark.covers("graders 6.5")
def test_sleep_does_not_pay() -> None:
    grader = make_grader(run=programs.run)
    # A machine that is too busy to start it in time says so, and is asked again.
    grades = (grader.grade(answer("import time\ntime.sleep(1000)", SUM)) for _ in range(20))
    grade = next(grade for grade in grades if grade.score is not None)
    assert (grade.score, grade.reason, grade.outcome, grade.error_code) == (0.0, R.TIMEOUT, O.TIMEOUT_WALL, -3)


@pytest.mark.covers("sandbox S-6")
@pytest.mark.parametrize(("stopped", "score", "reason"), [("starved", None, R.INFRA_FAILURE), ("wall", 0.0, R.TIMEOUT)])
def test_wall_limit_on_a_machine_that_gave_no_time_is_nobodys_fault(
    stopped: str, score: float | None, reason: enums.VerdictReason
) -> None:
    def run(program: programs.Program, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        return programs.Run(output=b"", exit_code=-9, stopped=stopped)

    grade = make_grader(run=run).grade(answer("while True:\n    pass", SUM))
    assert (grade.score, grade.reason) == (score, reason)


@pytest.mark.covers("graders 6.6")
def test_programs_that_cannot_be_started_are_nobodys_fault() -> None:
    def run(program: programs.Program, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        raise spawn.CannotRunError("no processes left")

    assert make_grader(run=run).grade(answer("print(3)", SUM)).reason is R.INFRA_FAILURE


@pytest.mark.covers("graders 3.3")
@pytest.mark.parametrize(("expected", "output_bytes"), [("3", 64 << 10), ("x" * 50_000, 100_000)])
def test_output_limit_is_the_larger_of_its_own_and_twice_the_expected(expected: str, output_bytes: int) -> None:
    seen: list[programs.Limits] = []

    def run(program: programs.Program, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        seen.append(limits)
        return programs.Run(output=expected.encode(), exit_code=0)

    make_grader(run=run).grade(answer("print(3)", {"inputs": ["1"], "outputs": [expected]}))
    assert [(one.output_bytes, one.memory_bytes, one.cpu_s) for one in seen] == [(output_bytes, 512 << 20, 1.0)]
