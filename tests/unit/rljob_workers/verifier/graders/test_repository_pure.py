"""Repositories of records, files of answers, and what reports of tests are worth: what runs no process."""

import json
from collections.abc import Mapping

import pytest

from rljob_api import enums, errors
from rljob_workers.verifier.graders.repository import answer_files, record, verdict
from rljob_workers.verifier.graders.repository import paths as repository_paths
from rljob_workers.verifier.sandbox import programs

O, R = enums.VerifyOutcome, enums.VerdictReason  # noqa: E741  # short in tables
RECORD: Mapping[str, object] = {
    "files": {"pkg/sums.py": "def add(a, b): ..."},
    "test_files": {"tests/test_sums.py": "def test_a(): ...", "tests/conftest.py": ""},
    "tests": ["tests/test_sums.py::test_a"],
}


@pytest.mark.parametrize(
    "path", ["a.py", "pkg/a.py", "a/b/c/d.txt", "with space/ü.py", "-x.py", "a..b", "x" * 240, "/".join("a" * 16)]
)
def test_path_below_the_root_can_be_a_file(path: str) -> None:
    assert repository_paths.problem(path) == ""


@pytest.mark.parametrize(
    "path",
    [
        "", "/a.py", "a//b.py", "a/", "../a.py", "a/../b.py", "./a.py", ".git/HEAD", "pkg/.hidden", "a\\b.py", "a\x00",
        "a\n", "a\x1b[2J", "\ud800", "x" * 241, "ü" * 121, "/".join("a" * 17),
    ],
)  # fmt: skip
def test_path_that_leads_elsewhere_or_hides_is_no_file(path: str) -> None:
    assert repository_paths.problem(path)


@pytest.mark.parametrize(
    ("path", "is_configuration"),
    [
        ("conftest.py", True), ("tests/conftest.py", True), ("ConfTest.PY", True), ("pyproject.toml", True),
        ("setup.cfg", True), ("tox.ini", True), ("pytest.ini", True), ("pytest.toml", True), ("sitecustomize.py", True),
        ("pkg/usercustomize.py", True), ("a.pth", True), ("setup.py", False), ("pkg/conftest_of.py", False),
        ("conftest/a.py", False), ("pth", False),
    ],
)  # fmt: skip
def test_file_that_a_tool_reads_unasked_is_known_by_its_name(path: str, is_configuration: bool) -> None:
    assert repository_paths.is_configuration(path) is is_configuration


@pytest.mark.parametrize(
    ("paths", "clash"),
    [
        (["a.py", "b/a.py"], ""),
        (["a", "a/b.py"], "a"),
        (["a/b/c.py", "a/b"], "a/b"),
        (["ab", "a/b"], ""),
        ([], ""),
    ],
)
def test_path_that_others_need_as_a_folder_clashes(paths: list[str], clash: str) -> None:
    assert repository_paths.clash(paths) == clash


@pytest.mark.parametrize("encode", [dict, json.dumps])
def test_repository_is_read_from_text_or_an_object(encode: type) -> None:
    found = record.repository_of({"repository": encode(RECORD), "prompt": "p"})
    assert (found.files, found.test_files) == (RECORD["files"], RECORD["test_files"])
    assert found.tests == ("tests/test_sums.py::test_a",)


TEST = "tests/test_sums.py::test_a"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"files": None}, "'repository.files' must be an object of texts by path, not None"),
        ({"files": ["a.py"]}, "'repository.files' must be an object of texts by path, not a list"),
        ({"files": {"/etc/passwd": ""}}, "'repository.files' has the path '/etc/passwd', which must be relative"),
        ({"files": {"../a.py": ""}}, "'repository.files' has the path '../a.py', which has a name that begins with"),
        ({"files": {".git/HEAD": ""}}, "'repository.files' has the path '.git/HEAD', which has a name that begins"),
        ({"files": {"a.py": 5}}, "'repository.files' at 'a.py' must be a text, not 5"),
        ({"files": {"a.py": "\ud800"}}, "'repository.files' at 'a.py' must be a text, not a str"),
        ({"files": {"a.py": "x" * (1 << 20)}}, "'repository' has 1048593 bytes in all, but may have 1048576"),
        ({"files": {f"{n}.py": "" for n in range(511)}}, "'repository' has 513 files, but may have 512"),
        ({"files": {"tests": ""}}, "'repository' has 'tests' as a file, and files below it"),
        ({"test_files": {}}, "'repository.test_files' is empty"),
        ({"tests": []}, "'repository.tests' must be a list of 1 to 500 ids of tests, not 0 of them"),
        ({"tests": [TEST] * 501}, "'repository.tests' must be a list of 1 to 500 ids of tests, not 501 of them"),
        ({"tests": TEST}, "'repository.tests' must be a list of 1 to 500 ids of tests, not a str"),
        ({"tests": [TEST, 5]}, "'repository.tests[1]' must be a text of 1 to 500 characters, not 5"),
        ({"tests": ["pkg/sums.py::test_a"]}, "must read file::test with a file of test_files, which no answer can"),
        ({"tests": ["tests/test_sums.py"]}, "'repository.tests[0]' is 'tests/test_sums.py', but must read file::test"),
        ({"tests": ["tests/test_sums.py::"]}, "must read file::test"),
        ({"tests": [TEST, TEST]}, f"'repository.tests' names '{TEST}' twice"),
    ],
)
def test_repository_that_cannot_be_used_is_an_error_that_names_the_key(changes: dict[str, object], said: str) -> None:
    with pytest.raises(errors.DataError) as raised:
        record.repository_of({"repository": {**RECORD, **changes}})
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "'repository' must be an object with files, test_files and tests, not None"),
        ({"repository": "{"}, "'repository' holds 1 characters that are not JSON"),
        ({"repository": "[" * 100_000}, "'repository' holds 100000 characters that are not JSON"),
        ({"repository": "[]"}, "'repository' must be an object with files, test_files and tests, not a list"),
    ],
)
def test_record_without_a_repository_is_an_error_that_names_the_column(columns: dict[str, object], said: str) -> None:
    with pytest.raises(errors.DataError) as raised:
        record.repository_of(columns)
    assert said in str(raised.value)


ANSWERS: dict[str, tuple[str, dict[str, str]]] = {
    "the path is on the line of the fence": ("```python pkg/a.py\nx = 1\n```", {"pkg/a.py": "x = 1\n"}),
    "the path is in the first line, which stays": (
        "```python\n# path: pkg/a.py\nx = 1\n```",
        {"pkg/a.py": "# path: pkg/a.py\nx = 1\n"},
    ),
    "the first line counts if both say one": (
        "```python b.py\n# path: a.py\n```", {"a.py": "# path: a.py\n"},
    ),
    "a block without a path is no file": ("```python\nx = 1\n```\n```\ny\n```", {}),
    "the last block of a path counts": ("```py a.py\n1\n```\nor\n```py a.py\n2\n```", {"a.py": "2\n"}),
    "two files": ("```py a.py\n1\n```\n```toml b.toml\n2\n```", {"a.py": "1\n", "b.toml": "2\n"}),
    "the end of the answer closes a block": ("```py a.py\nx = 1", {"a.py": "x = 1\n"}),
    "a fence of tildes": ("~~~python a.py\nx = '```'\n~~~", {"a.py": "x = '```'\n"}),
    "a block in a list": ("1. so:\n   ```py a.py\n   def f():\n       f()\n   ```", {"a.py": "def f():\n    f()\n"}),
    "a version": ("```Python3 a.py\n1\n```\n```python 3 b.py\n2\n```", {"a.py": "1\n", "b.py": "2\n"}),
    "a path in an attribute": ('```python title="pkg/a.py"\n1\n```', {"pkg/a.py": "1\n"}),
    "a path behind a colon": ("```python:pkg/a.py\n1\n```", {"pkg/a.py": "1\n"}),
    "a path alone": ("```pkg/a.py\n1\n```", {"pkg/a.py": "1\n"}),
    "a longer fence holds a shorter one": (
        "````py a.py\nx = '''\n```\n'''\n````", {"a.py": "x = '''\n```\n'''\n"},
    ),
    "backticks within a line are no fence": ("```py a.py\nx = '```'\n```", {"a.py": "x = '```'\n"}),
    "ends of lines of Windows": ("```py a.py\r\nx = 1\r\n```\r\n", {"a.py": "x = 1\n"}),
    "an empty file": ("```py a.py\n```", {"a.py": ""}),
    "paths that lead elsewhere are passed over": ("```py ../a.py\n1\n```\n```py /b.py\n1\n```\n```py .c\n1\n```", {}),
    "configuration is passed over": ("```py tests/conftest.py\n1\n```\n```py a.py\n1\n```", {"a.py": "1\n"}),
    "no answer": ("", {}),
}  # fmt: skip


@pytest.mark.parametrize("what", ANSWERS)
def test_files_of_an_answer_are_the_blocks_that_say_their_path(what: str) -> None:
    completion, files = ANSWERS[what]
    assert answer_files.files_of(completion) == files


@pytest.mark.parametrize(
    ("num_files", "text", "said"),
    [
        (65, "", "65 files, but an answer may write 64"),
        (2, "x" * (1 << 17), "262146 bytes of files, but an answer may write 262144"),
    ],
)
def test_answer_that_writes_more_than_it_may_is_unusable(num_files: int, text: str, said: str) -> None:
    completion = "\n".join(f"```py {number}.py\n{text}\n```" for number in range(num_files))
    with pytest.raises(answer_files.UnusableError, match=said):
        answer_files.files_of(completion)


@pytest.mark.covers("sandbox S-4")
def test_tests_are_put_over_what_the_answer_wrote_and_the_answer_over_the_repository() -> None:
    files = {"a.py": "given", "b.py": "given", "tests/t.py": "given"}
    written = {"b.py": "written", "tests/t.py": "written", "c.py": "written"}
    whole = answer_files.merged(files, written, {"tests/t.py": "restored"})
    assert whole == {"a.py": "given", "b.py": "written", "tests/t.py": "restored", "c.py": "written"}


def test_answer_that_writes_a_file_where_a_folder_is_cannot_be_merged() -> None:
    with pytest.raises(answer_files.UnusableError, match="a file where there is a folder"):
        answer_files.merged({"a.py": ""}, {"tests": "x"}, {"tests/t.py": ""})


FIRST, SECOND = ("test", [0, "passed"]), ("test", [1, "passed"])
FINISHED = ("finished", None)


def run(*records: tuple[str, object], exit_code: int = 0, stopped: str = "", malformed: bool = False) -> programs.Run:
    return programs.Run(output=b"", exit_code=exit_code, stopped=stopped, records=records, malformed=malformed)


def test_all_tests_reported_once_as_passed_and_a_good_end_are_worth_one_and_marked() -> None:
    grade = verdict.grade_of(run(SECOND, FIRST, FINISHED), num_tests=2)
    assert (grade.score, grade.reason, grade.outcome, grade.case_results) == (1.0, R.OK, O.PASS, (1, 1))
    assert grade.parts == {"in_process": 1.0}


NOT_PASSED: dict[str, tuple[programs.Run, R, O, tuple[int, ...]]] = {
    "a test that failed": (run(FIRST, ("test", [1, "failed"]), FINISHED), R.WRONG, O.FAIL, (1, 0)),
    "a word that is not passed": (run(FIRST, ("test", [1, True]), FINISHED), R.WRONG, O.FAIL, (1, 0)),
    "a test that is missing": (run(FIRST, FINISHED), R.WRONG, O.FAIL, (1, -1)),
    "no test at all": (run(FINISHED), R.WRONG, O.FAIL, (-1, -1)),
    "a test that was reported twice": (run(FIRST, SECOND, SECOND, FINISHED), R.CRASH, O.FAIL, (1, 0)),
    "a test that nobody asked for": (run(FIRST, SECOND, ("test", [2, "passed"]), FINISHED), R.CRASH, O.FAIL, (1, 1)),
    "an index below the first": (run(FIRST, SECOND, ("test", [-1, "passed"]), FINISHED), R.CRASH, O.FAIL, (1, 1)),
    "a truth value for an index": (run(FIRST, ("test", [True, "passed"]), FINISHED), R.CRASH, O.FAIL, (1, -1)),
    "a report of another form": (run(FIRST, SECOND, ("test", "passed"), FINISHED), R.CRASH, O.FAIL, (1, 1)),
    "a record of another kind": (run(FIRST, SECOND, ("returned", 3), FINISHED), R.CRASH, O.FAIL, (1, 1)),
    "a report after the end": (run(FIRST, FINISHED, SECOND), R.CRASH, O.FORCED_EXIT, (1, 1)),
    "an end that was told twice": (run(FIRST, SECOND, FINISHED, FINISHED), R.CRASH, O.FAIL, (1, 1)),
    "no end": (run(FIRST, SECOND), R.CRASH, O.FORCED_EXIT, (1, 1)),
    "no record": (run(), R.CRASH, O.FORCED_EXIT, (-1, -1)),
    "a signal after the end": (run(FIRST, SECOND, FINISHED, exit_code=-9), R.CRASH, O.FORCED_EXIT, (1, 1)),
    "an exit code after the end": (run(FIRST, SECOND, FINISHED, exit_code=3), R.CRASH, O.FAIL, (1, 1)),
    "a reply that is none": (run(malformed=True), R.CRASH, O.FAIL, (-1, -1)),
    "a limit of CPU": (run(FIRST, SECOND, FINISHED, stopped="cpu"), R.TIMEOUT, O.TIMEOUT_CPU, (1, 1)),
    "a limit of wall time": (run(FIRST, stopped="wall"), R.TIMEOUT, O.TIMEOUT_WALL, (1, -1)),
    "a limit of memory": (run(stopped="memory"), R.RESOURCE_LIMIT, O.OOM, (-1, -1)),
    "a flood": (run(stopped="output"), R.RESOURCE_LIMIT, O.OUTPUT_FLOOD, (-1, -1)),
    "a forbidden call": (run(stopped="forbidden"), R.RESOURCE_LIMIT, O.FORBIDDEN, (-1, -1)),
}


@pytest.mark.covers("sandbox S-4")
@pytest.mark.parametrize("what", NOT_PASSED)
def test_run_is_worth_nothing_with(what: str) -> None:
    ended, reason, outcome, case_results = NOT_PASSED[what]
    grade = verdict.grade_of(ended, num_tests=2)
    assert (grade.score, grade.reason, grade.outcome) == (0.0, reason, outcome)
    assert grade.case_results == case_results
    assert grade.parts == {"in_process": 1.0}
    assert grade.detail


def test_run_that_the_machine_gave_no_time_is_not_judged() -> None:
    grade = verdict.grade_of(run(FIRST, stopped="starved"), num_tests=2)
    assert (grade.score, grade.outcome) == (None, O.INFRA_ERROR)
