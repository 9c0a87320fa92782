"""Blocks, tests, comparison and verdicts of programs, without running one (graders reference, 6.1 to 6.5)."""

import json

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_api import errors, names
from rljob_workers.verifier.graders import code_blocks, code_compare, code_tests, code_verdict

R, O = names.VerdictReason, names.VerifyOutcome  # noqa: E741  # short in tables
Case = code_verdict.Case
LONG = "x = 1  # twenty characters or more"


def fenced(tag: str, text: str) -> str:
    return f"```{tag}\n{text}\n```"


@pytest.mark.parametrize("tag", ["", "python", "py", "Python", "PY"])
def test_block_with_a_python_tag_or_none_counts(tag: str) -> None:
    assert code_blocks.program_of(f"so {fenced(tag, LONG)} done", compat=True) == LONG


@pytest.mark.parametrize(
    ("completion", "compat", "strict"),
    [
        (fenced("cpp", LONG), LONG, None),
        (fenced("CPP", LONG), LONG, None),
        (fenced("java", LONG), None, None),
        (fenced("python", "print(1)"), None, "print(1)"),  # under 20 characters; C1
        (fenced("python", "x" * 20), "x" * 20, "x" * 20),
        (fenced("py", LONG) + "\n" + fenced("py", LONG + "!"), LONG + "!", LONG + "!"),
        (fenced("py", LONG) + "\n" + fenced("py", "print(1)"), LONG, "print(1)"),
        (fenced("py", LONG) + "\n" + fenced("cpp", LONG + "!"), LONG + "!", LONG),  # C3
        (f"```python\n{LONG}", None, None),  # never closed
        ("The sum is a + b.", None, None),
        (fenced("python", "  "), None, None),
        (f"```python {LONG}```", LONG, LONG),
        (f"```{LONG}```", LONG, LONG),
    ],
)
def test_last_block_that_counts_is_the_program(completion: str, compat: str | None, strict: str | None) -> None:
    assert code_blocks.program_of(completion, compat=True) == compat
    assert code_blocks.program_of(completion, compat=False) == strict


@hypothesis.given(st.text(alphabet="`\n ap.", max_size=60))
def test_any_text_has_blocks_or_none(text: str) -> None:
    assert all(block.text in text for block in code_blocks.blocks(text))


def record(**value: object) -> dict[str, object]:
    return {"input_output": json.dumps(value)}


def test_tests_are_read_from_text_or_an_object() -> None:
    value = {"fn_name": "f", "inputs": ["[1, 2]\n3"], "outputs": ["[1]"]}
    for columns in (record(**value), {"input_output": value}):
        tests = code_tests.tests_of(columns)
        assert (tests.fn_name, tests.arguments(0), tests.expected(0)) == ("f", [[1, 2], 3], [1])


def test_integer_keys_of_a_lone_object_are_restored() -> None:
    tests = code_tests.tests_of(record(fn_name="f", inputs=['{"1": 2}\n{"a": 3}'], outputs=["0"]))
    assert tests.arguments(0) == [{1: 2}, {"a": 3}]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "'input_output' must be an object"),
        ({"input_output": "nonsense"}, "'input_output' is not JSON"),
        ({"input_output": "[" * 100_000}, "'input_output' is not JSON"),
        (record(inputs=[], outputs=[]), "'input_output.inputs' must be a list .* not an empty list"),
        (record(inputs=["1"], outputs=[]), "'input_output.outputs'"),
        (record(inputs=["1"], outputs=["1", "2"]), "1 inputs, but 2 outputs"),
        (record(inputs=[1], outputs=["1"]), "'input_output.inputs'"),
        (record(fn_name="f", inputs=["[1"], outputs=["1"]), r"inputs\[0\]' holds 2 characters that are not JSON"),
        (record(fn_name="f", inputs=["1"], outputs=["one"]), r"outputs\[0\]' holds 3 characters that are not JSON"),
        (record(fn_name="a.b", inputs=["1"], outputs=["1"]), "fn_name' is 'a.b'"),
        (record(inputs=["1", "2"], outputs=["1", "2"], num_visible=2), "num_visible' is 2, .* from 0 to 1"),
        (record(inputs=["1", "2"], outputs=["1", "2"], num_visible=-1), "num_visible' is -1"),
        (record(inputs=["1", "2"], outputs=["1", "2"], num_visible=True), "num_visible' is True"),
        (record(inputs=["1", "2"], outputs=["1", "2"], num_visible="1"), "num_visible' is a str"),
    ],
)
def test_tests_that_cannot_be_run_are_an_error_that_names_the_key(columns: dict[str, object], message: str) -> None:
    with pytest.raises(errors.DataError, match=message):
        code_tests.tests_of(columns)


P, W = code_verdict.Case.PASSED, code_verdict.Case.WRONG


@pytest.mark.parametrize(
    ("cases", "num_visible", "parts"),
    [
        ([P, P, P], 0, {}),
        ([P, P, W], 0, {}),
        ([P, P, P], 2, {"visible_only": 0.0}),
        ([P, P, W], 2, {"visible_only": 1.0}),
        ([P, W], 2, {"visible_only": 0.0}),
        ([P, code_verdict.Case.CPU_LIMIT], 1, {"visible_only": 1.0}),
        ([P, code_verdict.Case.UNJUDGED], 1, {}),
    ],
)
def test_grade_tells_whether_the_visible_cases_alone_passed(
    cases: list[code_verdict.Case], num_visible: int, parts: dict[str, float]
) -> None:
    assert code_verdict.grade_of(cases, num_cases=3, num_visible=num_visible).parts == parts


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("3\n", "3", True),
        ("3 \n4", "3\n4", True),
        (" 3\n  4", "3\n4", True),
        ("3\n\n4", "3\n4", True),
        ("0.30000000000000004", "0.3", True),
        ("1.0\n2.00001", "1\n2", True),
        ("1.0\n2.0001", "1\n2", False),
        ("100001", "100000", False),  # within the tolerance, but both are integers
        ("100001", "100000.0", True),
        ("b\na", "a\nb", False),
        ("2 1", "1 2", False),
        ("Yes", "yes", False),
        ("1.0 2.0", "1 2", False),  # one number a line
        ("1\n2\n3", "1\n2", False),
        ("nan", "nan ", True),
        ("", "", True),
    ],
)
def test_output_is_compared_in_five_ways(printed: str, expected: str, same: bool) -> None:
    assert code_compare.same_output(printed, expected) is same


@hypothesis.given(st.text(max_size=40))
def test_output_equals_itself_whatever_blank_lines_surround_it(text: str) -> None:
    assert code_compare.same_output(f"\n{text}  \n\n", text)


@pytest.mark.parametrize(
    ("returned", "expected", "compat", "strict"),
    [
        (1, [1], True, True),
        ((1, 2), [1, 2], True, True),
        ([(1, 2)], [[1, 2]], False, True),  # C6
        ({1: 2}, {"1": 2}, True, True),
        ([{1: 2}], [{"1": 2}], True, True),
        (2, [1], False, False),
        ([], [], True, True),
        (None, None, True, True),
        ("1", 1, False, False),
    ],
)
def test_result_is_compared_as_data(returned: object, expected: object, compat: bool, strict: bool) -> None:
    assert code_compare.same_result(returned, expected, compat=True) is compat
    assert code_compare.same_result(returned, expected, compat=False) is strict


@pytest.mark.parametrize(
    ("case", "result", "code", "reason", "outcome"),
    [
        (Case.PASSED, 1, None, R.OK, O.PASS),
        (Case.WRONG, 0, -2, R.WRONG, O.FAIL),
        (Case.CPU_LIMIT, -1, -3, R.TIMEOUT, O.TIMEOUT_CPU),
        (Case.WALL_LIMIT, -1, -3, R.TIMEOUT, O.TIMEOUT_WALL),
        (Case.RAISED, -1, -4, R.CRASH, O.FAIL),
        (Case.LEFT, -1, -4, R.CRASH, O.FORCED_EXIT),
        (Case.NOT_COMPILED, -2, -1, R.PARSE_ERROR, O.FAIL),
        (Case.NO_FUNCTION, -2, -1, R.PARSE_ERROR, O.FAIL),
        (Case.MEMORY, -1, -4, R.RESOURCE_LIMIT, O.OOM),
        (Case.FLOOD, -1, -4, R.RESOURCE_LIMIT, O.OUTPUT_FLOOD),
    ],
)
def test_case_has_its_codes(
    case: Case, result: int, code: int | None, reason: names.VerdictReason, outcome: names.VerifyOutcome
) -> None:
    grade = code_verdict.grade_of([Case.PASSED, case], num_cases=2)
    assert (grade.case_results, grade.error_code) == ((1, result), code)
    assert (grade.reason, grade.outcome, grade.score) == (reason, outcome, float(case is Case.PASSED))


def test_case_that_could_not_be_run_leaves_no_score() -> None:
    grade = code_verdict.grade_of([Case.PASSED, Case.UNJUDGED], num_cases=3)
    assert (grade.score, grade.reason) == (None, R.INFRA_FAILURE)


def test_answer_is_right_only_if_every_case_of_the_record_passed() -> None:
    with pytest.raises(ValueError, match="1 of 2 cases ran"):
        code_verdict.grade_of([Case.PASSED], num_cases=2)


def test_answer_without_a_program_has_every_case_wrong() -> None:
    grade = code_verdict.no_program(num_cases=2)
    assert (grade.reason, grade.case_results, grade.error_code) == (R.NO_ANSWER, (0, 0), None)
