"""Blocks, tests, comparison and verdicts of programs, without running one (docs/design/graders.md#s-6)."""

import ast
import json
import time

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_api import enums, errors
from rljob_workers.verifier.graders.code import blocks, cases, comparison, verdict
from rljob_workers.verifier.sandbox.processes import candidate

R, O = enums.VerdictReason, enums.VerifyOutcome  # noqa: E741  # short in tables
Case = verdict.Case
LONG = "print(1)  # twenty characters or more"


def fenced(tag: str, text: str) -> str:
    return f"```{tag}\n{text}\n```"


@pytest.mark.covers("graders 6.1")
@pytest.mark.parametrize(
    ("completion", "program"),
    [
        (fenced("python", LONG), LONG),
        (fenced("PY", LONG), LONG),
        (fenced("", LONG), LONG),
        (fenced("cpp", LONG), LONG),
        (f"```python {LONG}```", LONG),
        (fenced("py", LONG) + "\n" + fenced("py", LONG + "!"), LONG + "!"),
        (fenced("py", LONG) + "\n" + fenced("py", "print(1)"), LONG),  # under 20 characters
        (fenced("python", "x" * 20), "x" * 20),
        # What it does not know stays in the text: a number is Python, a name is not there when it is run.
        (fenced("python3", LONG), f"3\n{LONG}"),
        (fenced("java", LONG), f"java\n{LONG}"),
        (f"``` python\n{LONG}\n```", f"python\n{LONG}"),
        (fenced("py", LONG) + "\n" + fenced("", "sample output of some length"), "sample output of some length"),
        (f"```python\n{LONG}", None),
        (f"~~~python\n{LONG}\n~~~", None),
        ("The sum is a + b.", None),
    ],
)
def test_last_block_of_twenty_characters_is_the_program_in_compat(completion: str, program: str | None) -> None:
    assert blocks.programs_of(completion, compat=True) == (() if program is None else (program,))


TAGS = (
    "python", "py", "Python", "PY", "python3", "Python3", "py3", "python 3", "python3.11", "Python 3.11", "python-3",
    " python", "python ", "python\t", "{python}", "{.python .numberLines}", "python {linenos=true}", "python linenos",
    'python title="solution.py"', "python solution.py", "python:solution.py", "python, linenos", "solution.py", "pypy3",
    "ipython3", "",
)  # fmt: skip
OTHER_TAGS = (
    "cpp", "c++", "C", "java", "javascript", "bash", "sh", "text", "txt", "plaintext", "output", "console", "json",
    "pycon", "python-repl", "rust", "go", "java title=x", "unheard_of", "diff",
)  # fmt: skip


def program_of(completion: str, fn_name: str = "") -> str | None:
    """Return the text that runs in mode strict: what the grader sends, and what the program's process takes of it."""
    sources = list(blocks.programs_of(completion, compat=False))
    if not sources:
        return None
    try:
        tree, _ = candidate.chosen(sources, fn_name, compat=False)
    except SyntaxError:
        return sources[0]
    return next(source for source in sources if parsed(source) == ast.dump(tree))


def parsed(source: str) -> str:
    try:
        return ast.dump(ast.parse(source))
    except SyntaxError:
        return ""


@pytest.mark.covers("graders 6.1")
@pytest.mark.parametrize("tag", TAGS)
def test_block_that_is_tagged_as_python_or_not_at_all_is_the_program(tag: str) -> None:
    assert program_of(f"so:\n{fenced(tag, LONG)}\ndone") == LONG


@pytest.mark.covers("graders 6.7")
@pytest.mark.parametrize("tag", OTHER_TAGS)
def test_block_of_another_language_is_never_taken(tag: str) -> None:
    assert program_of(fenced(tag, LONG)) is None
    assert program_of(f"{fenced('py', LONG)}\n{fenced(tag, LONG + '!')}") == LONG
    assert blocks.has_unsupported(fenced(tag, LONG))


READS = "print(int(input()) + 1)"
LOOPS = "for _ in range(2):\n    print(input())"


def shifted(text: str, by: str) -> str:
    return text.replace("\n", f"\n{by}")


FORMS: dict[str, tuple[str, str | None]] = {
    "short": (fenced("python", "print(1)"), "print(1)"),
    "tildes": (f"~~~python\n{READS}\n~~~", READS),
    "tildes around backticks": ("~~~python\nprint('''\n```\n''')\n~~~", "print('''\n```\n''')"),
    "more than three backticks": (f"````python\n{READS}\n````", READS),
    "backticks in a longer fence": ("````python\nprint('''\n```\n''')\n````", "print('''\n```\n''')"),
    "a shorter closing fence": (f"````python\n{READS}\n```\nThat is all.", READS),
    "a longer closing fence": (f"```python\n{READS}\n`````\nso", READS),
    "backticks within a line": ("```python\nprint('```', '`')\n```", "print('```', '`')"),
    "in a list": (f"1. This:\n   ```python\n   {shifted(LOOPS, '   ')}\n   ```\n2. Done", LOOPS),
    "in a list, less indented": (f"1. This:\n\n    ```python\n{LOOPS}\n    ```", LOOPS),
    "in a list, more indented": (f"- This:\n  ```py\n      {shifted(LOOPS, '      ')}\n  ```", LOOPS),
    "behind the mark of a list": (f"- ```python\n  {shifted(LOOPS, '  ')}\n  ```", LOOPS),
    "indented by a tab": (f"\t```python\n\t{READS}\n\t```", READS),
    "in a quotation": (f"> ```python\n> {shifted(LOOPS, '> ')}\n> ```\nso", LOOPS),
    "behind prose": (f"Here it is: ```python\n{READS}\n```", READS),
    "before prose": (f"```python\n{READS}\n``` That is all.", READS),
    "a fence behind the last statement": (f"```python\n{READS}```", READS),
    "on one line": (f"```python {READS}```", READS),
    "on one line, without a tag": (f"```{READS}```", READS),
    "code on the line of the fence": ("```python import sys\nprint(sys.argv)\n```", "import sys\nprint(sys.argv)"),
    "code on the line of an untagged fence": ("```import sys\nprint(sys.argv)\n```", "import sys\nprint(sys.argv)"),
    "lines of Windows": (f"```python\r\n{shifted(LOOPS, '').replace(chr(10), chr(13) + chr(10))}\r\n```\r\n", LOOPS),
    "unclosed at the end": (f"so\n```python\n{READS}\n", READS),
    "unclosed before the next": (f"```python\nx = (\nAgain:\n```python\n{READS}\n```", READS),
    "fences in a docstring": (
        '```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\nprint(f())\n```',
        'def f():\n    """\n    ```\n    f()\n    ```\n    """\nprint(f())',
    ),
    "no fence": (READS, None),
    "empty": (fenced("python", "  "), None),
    # Which one of several.
    "the last of two": (fenced("python", "print(1)") + "\n" + fenced("python3", READS), READS),
    "a sample of the output behind it": (fenced("python", READS) + "\nprints\n" + fenced("", "3\n7"), READS),
    "output that is Python": (fenced("", READS) + "\nprints\n" + fenced("", "x = 5"), READS),
    "output that is a name": (fenced("", READS) + "\nprints\n" + fenced("", "YES"), READS),
    "output that is no Python": (fenced("", READS) + "\nprints\n" + fenced("", "1 2 3"), READS),
    "output that is tagged": (fenced("py", READS) + "\nprints\n" + fenced("python", "3"), READS),
    "a call that is tagged as text": (fenced("py", READS) + "\n" + fenced("text", "print(1)"), READS),
    "an untagged program behind it": (fenced("py", READS) + "\n" + fenced("", "print(1)"), READS),
    "a transcript behind it": (fenced("py", READS) + "\n" + fenced("py", ">>> f(1)\n2"), READS),
    "a helper explained behind it": (fenced("py", READS) + "\n" + fenced("py", "def f(a):\n    return len(a)"), READS),
    "one that was cut off behind it": (fenced("py", READS) + "\nBetter:\n```py\nfor i in ran", READS),
    "none that can be it": (fenced("py", "x = (") + "\n" + fenced("py", "y = )"), "y = )"),
    "nothing but a sample of the output": (fenced("", "3\n7"), "3\n7"),
}  # fmt: skip


@pytest.mark.covers("graders 6.7")
@pytest.mark.parametrize("form", FORMS)
def test_program_is_found_in_the_form(form: str) -> None:
    completion, program = FORMS[form]
    assert program_of(completion) == program


ADDS = "def add(a, b):\n    return a + b"


@pytest.mark.covers("graders 6.7")
@pytest.mark.parametrize(
    "behind",
    [
        fenced("python", "print(add(1, 2))"),
        fenced("python", ">>> add(1, 2)\n3"),
        fenced("python", "def other():\n    print(add(1, 2))"),
        fenced("", "add(1, 2)"),
        fenced("", "def add(a, b):\n    return a"),  # tagged blocks come first
    ],
)
def test_block_that_defines_the_function_is_the_program_of_a_call(behind: str) -> None:
    for program in (ADDS, f"class Solution:\n    {shifted(ADDS, '    ')}"):
        assert program_of(f"{fenced('python', program)}\nFor example:\n{behind}", fn_name="add") == program


def test_only_the_last_blocks_are_looked_at() -> None:
    completion = "\n".join(fenced("py", f"print({number})") for number in range(1000))
    assert blocks.programs_of(completion, compat=False)[0] == "print(999)"
    assert len(blocks.programs_of(completion, compat=False)) == blocks.MAX_TEXTS


@hypothesis.given(st.text(alphabet="`~>-1. \n\tap=(", max_size=80))
def test_any_text_has_blocks_of_its_own_lines(text: str) -> None:
    for block in blocks.blocks(text):
        blocks.language(block.info)
        assert all(line in text for line in block.lines)


UNITS = ("`", "~", "```\n", "````", "> ", "- ", "1. ", " ", "\t", "```py\n", "``` a\n", "a ```\n", "\n", "```py\n >> ")


@pytest.mark.parametrize("unit", UNITS)
def test_hostile_text_takes_linear_time(unit: str) -> None:
    def cpu_s(size: int) -> float:
        text = unit * (size // len(unit))
        before_s = time.process_time()
        blocks.programs_of(text, compat=False)
        blocks.programs_of(text, compat=True)
        return time.process_time() - before_s

    small_s = min(cpu_s(16 << 10) for _ in range(3))
    # Sixteen times as much text; what is quadratic takes 256 times as long.
    assert min(cpu_s(256 << 10) for _ in range(3)) < 64 * max(small_s, 1e-3)


def record(**value: object) -> dict[str, object]:
    return {"input_output": json.dumps(value)}


@pytest.mark.covers("graders 4.1")
def test_tests_are_read_from_text_or_an_object() -> None:
    value = {"fn_name": "f", "inputs": ["[1, 2]\n3"], "outputs": ["[1]"]}
    for columns in (record(**value), {"input_output": value}):
        tests = cases.tests_of(columns)
        assert (tests.fn_name, tests.arguments(0), tests.expected(0)) == ("f", [[1, 2], 3], [1])


@pytest.mark.covers("graders 6.2")
def test_integer_keys_of_a_lone_object_are_restored() -> None:
    tests = cases.tests_of(record(fn_name="f", inputs=['{"1": 2}\n{"a": 3}'], outputs=["0"]))
    assert tests.arguments(0) == [{1: 2}, {"a": 3}]


@pytest.mark.covers("graders 4.1")
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
        cases.tests_of(columns)


P, W = verdict.Case.PASSED, verdict.Case.WRONG


@pytest.mark.parametrize(
    ("cases", "num_visible", "parts"),
    [
        ([P, P, P], 0, {}),
        ([P, P, W], 0, {}),
        ([P, P, P], 2, {"visible_only": 0.0}),
        ([P, P, W], 2, {"visible_only": 1.0}),
        ([P, W], 2, {"visible_only": 0.0}),
        ([P, verdict.Case.CPU_LIMIT], 1, {"visible_only": 1.0}),
        ([P, verdict.Case.UNJUDGED], 1, {}),
    ],
)
def test_grade_tells_whether_the_visible_cases_alone_passed(
    cases: list[verdict.Case], num_visible: int, parts: dict[str, float]
) -> None:
    assert verdict.grade_of(cases, num_cases=3, num_visible=num_visible).parts == parts


@pytest.mark.covers("graders 6.3")
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
    for compat in (True, False):
        assert comparison.same_output(printed, expected, compat=compat) is same


@pytest.mark.covers("graders 6.7")
@pytest.mark.parametrize(
    ("printed", "expected", "compat", "strict"),
    [
        ("1000003.0", "1000000", True, False),
        ("1e6\n1000003.0", "1000000.0\n1000000", True, False),
        ("1000000007.5", "1000000000", True, False),
        ("1000000.000001", "1000000", True, True),
        ("1000000.0", "1000000", True, True),
        ("0.99999999", "1", True, True),
        ("1000003.0", "1000000.0", True, True),
        ("-1000003.0", "-1000000", True, False),
    ],
)
def test_tolerance_does_not_grow_with_an_integer_in_strict(
    printed: str, expected: str, compat: bool, strict: bool
) -> None:
    assert comparison.same_output(printed, expected, compat=True) is compat
    assert comparison.same_output(printed, expected, compat=False) is strict


@hypothesis.given(st.text(max_size=40))
def test_output_equals_itself_whatever_blank_lines_surround_it(text: str) -> None:
    assert comparison.same_output(f"\n{text}  \n\n", text, compat=False)


@pytest.mark.covers("graders 6.2", "graders 6.7")
@pytest.mark.parametrize(
    ("returned", "expected", "compat", "strict"),
    [
        ((1, 2), [1, 2], True, True),
        ([(1, 2)], [[1, 2]], False, True),  # C6
        ([(1, 2)], [[[1, 2]]], True, False),
        ({1: 2}, {"1": 2}, True, True),
        ([{1: 2}], [{"1": 2}], True, True),
        ([{1: 2}], {"1": 2}, True, False),
        ([{1: 2}, {3: 4}], [{"1": 2}, {"3": 4}], False, True),
        ({1: 2}, [{"1": 2}, {"3": 4}], True, False),
        (2, [1], False, False),
        ([], [], True, True),
        (None, None, True, True),
        ("1", 1, False, False),
        # C8: types.
        (True, 1, True, False),
        (1, True, True, False),
        (False, 0, True, False),
        (0.0, False, True, False),
        ([True], [1], True, False),
        ({"a": True}, {"a": 1}, True, False),
        (True, True, True, True),
        ([True, False], [True, False], True, True),
        (1.0, 1, True, True),
        (1, 1.0, True, True),
        (10**400, 10**400, True, True),
        (2.0**53, 2**53 + 1, False, False),
        (0.1 + 0.2, 0.3, False, False),
        ("", None, False, False),
        (0, None, False, False),
        ([], None, False, False),
        ({}, [], False, False),
        ({True: 1}, {"true": 1}, False, True),
        ({None: 1}, {"null": 1}, False, True),
        ({1: 0, "1": 2}, {"1": 2}, False, False),
        ([1, 2], [1, 2, 3], False, False),
        # C9: where the record's expected values are lists of several lengths, a list is what is expected.
        (1, [1, 2], True, False),
        ([1, 2], [[1, 2], [3]], True, False),
        (None, [None, 1], True, False),
        ("a", ["a", "b"], True, False),
    ],
)
def test_result_is_compared_as_data(returned: object, expected: object, compat: bool, strict: bool) -> None:
    assert comparison.same_result(returned, expected, wrapped=False, compat=True) is compat
    assert comparison.same_result(returned, expected, wrapped=False, compat=False) is strict


@pytest.mark.covers("graders 6.7")
@pytest.mark.parametrize(
    ("returned", "expected", "strict"),
    [
        (1, [1], True), ([1], [1], True), ((1, 2), [[1, 2]], True), (True, [1], False), (1, [2], False),
        (1, [1, 2], False),
    ],
)  # fmt: skip
def test_wrapped_result_may_leave_out_its_list(returned: object, expected: object, strict: bool) -> None:
    assert comparison.same_result(returned, expected, wrapped=True, compat=False) is strict


@pytest.mark.covers("graders 6.7")
@pytest.mark.parametrize(
    ("outputs", "wrapped"),
    [(["[1]"], True), (["[1]", "[[1, 2]]"], True), (["[1]", "[1, 2]"], False), (["[1]", "[]"], False), (["1"], False)],
)
def test_record_wraps_its_results_where_each_is_a_list_of_one(outputs: list[str], wrapped: bool) -> None:
    tests = cases.tests_of(record(fn_name="f", inputs=["1"] * len(outputs), outputs=outputs))
    assert tests.wraps_results() is wrapped
    assert not cases.tests_of(record(inputs=["1"], outputs=["[1]"])).wraps_results()


@pytest.mark.covers("graders 6.7")
@pytest.mark.parametrize("key", [(1, 2), b"a"])
def test_key_that_json_has_no_form_for_is_an_error_of_the_program(key: object) -> None:
    with pytest.raises(TypeError, match="not a JSON object key"):
        comparison.same_result({key: 1}, {"a": 1}, wrapped=False, compat=False)


@pytest.mark.covers("graders 6.5")
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
    case: Case, result: int, code: int | None, reason: enums.VerdictReason, outcome: enums.VerifyOutcome
) -> None:
    grade = verdict.grade_of([Case.PASSED, case], num_cases=2)
    assert (grade.case_results, grade.error_code) == ((1, result), code)
    assert (grade.reason, grade.outcome, grade.score) == (reason, outcome, float(case is Case.PASSED))


def test_case_that_could_not_be_run_leaves_no_score() -> None:
    grade = verdict.grade_of([Case.PASSED, Case.UNJUDGED], num_cases=3)
    assert (grade.score, grade.reason) == (None, R.INFRA_FAILURE)


@pytest.mark.covers("graders 6.4")
def test_answer_is_right_only_if_every_case_of_the_record_passed() -> None:
    with pytest.raises(ValueError, match="1 of 2 cases ran"):
        verdict.grade_of([Case.PASSED], num_cases=2)


@pytest.mark.covers("graders 6.5")
def test_answer_without_a_program_has_every_case_wrong() -> None:
    grade = verdict.no_program(num_cases=2)
    assert (grade.reason, grade.case_results, grade.error_code) == (R.NO_ANSWER, (0, 0), None)
