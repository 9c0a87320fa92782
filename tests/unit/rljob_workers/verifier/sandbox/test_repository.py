"""Tests of repositories in real processes: what is reported as passed, what they may read, and what is left of them."""

import asyncio
import contextlib
import dataclasses
import os
import pathlib
import signal
from collections.abc import AsyncIterator, Mapping

import pytest

from rljob_api import enums, errors, process_config
from rljob_testing import attack_repositories
from rljob_workers.verifier import frames, service
from rljob_workers.verifier import worker as grading_worker
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.repository import repository_grader
from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox import repository as suites
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import launcher

O = enums.VerifyOutcome  # noqa: E741  # short in tables
# Another limit of CPU than the one that a test is about, and a wall cap that no busy machine meets.
LONG_S, WALL_S = 30.0, 240.0
TEST_FILE = "tests/test_it.py"


@pytest.fixture
def run(confined: profile.Confinement) -> repository_grader.RunFn:
    def patient(program: suites.Suite, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        return programs.run(program, stdin=stdin, limits=dataclasses.replace(limits, wall_s=WALL_S), confined=confined)

    return patient


def graded(
    run: repository_grader.RunFn,
    scratch: pathlib.Path,
    tests: Mapping[str, str],
    *ids: str,
    sums: str = "def add(a, b):\n    return a + b\n",
    cpu_limit_s: float = LONG_S,
) -> base.Grade:
    """Return the grade of an answer that writes a module of sums. ids: without the path of the file."""
    reward = process_config.GraderConfig(
        name="r", type="repository-tests", cpu_limit_s=cpu_limit_s, wall_limit_s=WALL_S
    )
    columns = {"repository": {"files": {}, "test_files": tests, "tests": [f"{TEST_FILE}::{one}" for one in ids]}}
    answer = base.Answer(prompt="", completion=attack_repositories.completion({"sums.py": sums}), columns=columns)
    return repository_grader.RepositoryGrader(reward, run=run, scratch=scratch).grade(answer)


# Each test is named for whether it has passed in every way.
KINDS = """
import unittest
import pytest
from sums import add

def test_passes(): assert add(1, 2) == 3
@pytest.mark.parametrize("a", [1, "x[y"])
def test_passes_with(a): assert a
def test_passes_and_reads_what_it_prints(capsys):
    print(3)
    assert capsys.readouterr().out == "3\\n"
class TestOfUnittest(unittest.TestCase):
    def test_passes(self): self.assertEqual(add(1, 1), 2)
    def test_fails(self): self.assertEqual(add(1, 1), 3)
    def test_fails_in_a_part(self):
        with self.subTest(part=1):
            self.assertEqual(add(1, 1), 3)
    @unittest.expectedFailure
    def test_fails_as_expected(self): self.assertEqual(add(1, 1), 3)
    @unittest.skip("not now")
    def test_is_skipped(self): pass
def test_fails(): assert add(1, 2) == 4
def test_fails_in_a_part(subtests):
    with subtests.test():
        assert add(1, 2) == 4
@pytest.fixture
def broken_before(): raise OSError
@pytest.fixture
def broken_after():
    yield
    raise OSError
def test_fails_before(broken_before): pass
def test_fails_after(broken_after): pass
def test_is_skipped(): pytest.skip("not now")
@pytest.mark.skip
def test_is_skipped_by_its_mark(): pass
@pytest.mark.xfail
def test_fails_as_expected(): assert add(1, 2) == 4
@pytest.mark.xfail
def test_was_expected_to_fail(): pass
def test_that_nobody_asked_for():
    import os
    os._exit(0)
"""
PASS = (
    "test_passes", "test_passes_with[1]", "test_passes_with[x[y]", "test_passes_and_reads_what_it_prints",
    "TestOfUnittest::test_passes",
)  # fmt: skip
FAIL = (
    "TestOfUnittest::test_fails", "TestOfUnittest::test_fails_in_a_part", "TestOfUnittest::test_fails_as_expected",
    "TestOfUnittest::test_is_skipped", "test_fails", "test_fails_in_a_part", "test_fails_before", "test_fails_after",
    "test_is_skipped", "test_is_skipped_by_its_mark", "test_fails_as_expected", "test_was_expected_to_fail",
)  # fmt: skip
MISSING = ("test_of_nothing", "test_passes_with[2]")


@pytest.mark.covers("sandbox S-4")
def test_only_tests_that_pass_in_every_way_are_reported_as_passed(
    run: repository_grader.RunFn, tmp_path: pathlib.Path
) -> None:
    grade = graded(run, tmp_path, {TEST_FILE: KINDS}, *PASS, *FAIL, *MISSING)
    assert (grade.score, grade.outcome) == (0.0, O.FAIL)
    assert grade.case_results == (1,) * len(PASS) + (0,) * len(FAIL) + (-1,) * len(MISSING)
    assert grade.detail == "test 6 of 19 did not pass"


def test_tests_that_were_asked_for_decide_alone(run: repository_grader.RunFn, tmp_path: pathlib.Path) -> None:
    grade = graded(run, tmp_path, {TEST_FILE: KINDS}, *PASS)
    assert (grade.score, grade.outcome, grade.case_results) == (1.0, O.PASS, (1,) * len(PASS))


def test_tests_find_their_fixtures_their_neighbours_and_code_in_src(
    run: repository_grader.RunFn, tmp_path: pathlib.Path
) -> None:
    tests = {
        "conftest.py": "import pytest\n@pytest.fixture\ndef three():\n    return 3\n",
        "tests/expected.py": "THREE = 3\n",
        "src/more/__init__.py": "def three():\n    return 3\n",
        TEST_FILE: "import more, sums\nfrom tests.expected import THREE\n"
        "def test_of_all(three):\n    assert more.three() == sums.add(1, 2) == THREE == three\n",
    }
    assert graded(run, tmp_path, tests, "test_of_all").outcome is O.PASS


def test_file_whose_name_begins_with_a_dash_is_no_option(run: repository_grader.RunFn, tmp_path: pathlib.Path) -> None:
    columns = {
        "repository": {
            "files": {},
            "test_files": {"--collect-only.py": "def test_a():\n    assert True\n"},
            "tests": ["--collect-only.py::test_a"],
        }
    }
    reward = process_config.GraderConfig(name="r", type="repository-tests", cpu_limit_s=LONG_S, wall_limit_s=WALL_S)
    answer = base.Answer(prompt="", completion="```py a.py\n```", columns=columns)
    grade = repository_grader.RepositoryGrader(reward, run=run, scratch=tmp_path).grade(answer)
    assert grade.outcome is O.PASS


@pytest.mark.covers("security")
def test_run_reads_its_own_folder_and_no_other_one(run: repository_grader.RunFn, tmp_path: pathlib.Path) -> None:
    with suites.laid_out({"secret.py": "SECRET = 1"}, below=tmp_path) as other:
        tests = {
            TEST_FILE: f"""
import os, pathlib, pytest
OTHER = pathlib.Path({str(other)!r})

def test_of_its_own():
    assert "tests" in os.listdir() and pathlib.Path("sums.py").read_text()

@pytest.mark.parametrize("look", [
    lambda: (OTHER / "tree/secret.py").read_text(), lambda: os.listdir(OTHER / "tree"), lambda: os.listdir(OTHER),
    lambda: (OTHER / "pytest.ini").read_text(), lambda: OTHER.stat(),
], ids=range(5))
def test_of_others(look):
    with pytest.raises(FileNotFoundError):
        look()

@pytest.mark.parametrize("write", [
    lambda: os.listdir({str(tmp_path)!r}), lambda: open("written", "w"), lambda: os.mkdir("made"),
    lambda: os.unlink("sums.py"),
], ids=range(4))
def test_of_writing(write):
    with pytest.raises(PermissionError):
        write()
"""
        }
        others = [f"test_of_others[{number}]" for number in range(5)]
        asked = ("test_of_its_own", *others, *(f"test_of_writing[{number}]" for number in range(4)))
        grade = graded(run, tmp_path, tests, *asked)
        assert (grade.outcome, grade.case_results) == (O.PASS, (1,) * 10)
        assert list(tmp_path.iterdir()) == [other]


@pytest.mark.covers("security")
@pytest.mark.parametrize(
    ("sums", "outcome"),
    [
        ("while True:\n    pass", O.TIMEOUT_CPU),
        ("print('x' * (1 << 20), flush=True)", O.OUTPUT_FLOOD),
        ("import os\nos.kill(os.getpid(), 9)", O.FORCED_EXIT),
        ("import ctypes\nctypes.CDLL(None).ptrace(16, 1, 0, 0)", O.FORBIDDEN),
    ],
)
def test_run_that_is_ended_has_its_outcome_and_nothing_of_it_is_left(
    run: repository_grader.RunFn, tmp_path: pathlib.Path, sums: str, outcome: enums.VerifyOutcome
) -> None:
    # A limit of CPU for the endless one alone to meet.
    cpu_limit_s = 3.0 if outcome is O.TIMEOUT_CPU else LONG_S
    tests = {TEST_FILE: "from sums import add\ndef test_a():\n    assert add\n"}
    grade = graded(run, tmp_path, tests, "test_a", sums=sums, cpu_limit_s=cpu_limit_s)
    assert (grade.score, grade.outcome) == (0.0, outcome)
    assert list(tmp_path.iterdir()) == []


def never_runs(program: suites.Suite, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
    raise AssertionError("nothing was laid out")


def test_answer_is_not_judged_where_its_repository_cannot_be_laid_out(tmp_path: pathlib.Path) -> None:
    grade = graded(never_runs, tmp_path / "missing", {TEST_FILE: ""}, "test_a")
    assert (grade.score, grade.outcome) == (None, O.INFRA_ERROR)


def test_limits_are_of_all_tests_together_and_leave_room_for_their_reports(tmp_path: pathlib.Path) -> None:
    seen: list[programs.Limits] = []

    def run(program: suites.Suite, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        seen.append(limits)
        return programs.Run(output=b"", exit_code=0)

    graded(run, tmp_path, {TEST_FILE: ""}, *(f"test_{number}" for number in range(500)), cpu_limit_s=5.0)
    (limits,) = seen
    assert (limits.cpu_s, limits.wall_s, limits.may_fork) == (5.0, 15.0, False)
    # A report: a nonce of 32, an index of 3, a word of 6, and the words around them.
    assert limits.output_bytes >= 500 * 120


def test_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(errors.SandboxError, match=r"no_such_package is not installed: install rljob\[verifier\]"):
        suites.harness(("pytest", "no_such_package"))


WAITS = "import signal\nsignal.pause()"


@contextlib.asynccontextmanager
async def waiting(scratch: pathlib.Path) -> AsyncIterator[launcher.ProcessWorker]:
    """Yield a worker in the midst of a run that waits for ever."""
    reward = process_config.GraderConfig(name="r", type="repository-tests", cpu_limit_s=60.0, wall_limit_s=WALL_S)
    columns = {"repository": dict(attack_repositories.REPOSITORY)}
    request = {
        "reward": 0, "prompt": "", "completion": attack_repositories.completion({attack_repositories.SUMS: WAITS}),
        "columns": columns, "prompt_ids": [], "completion_ids": [], "cpu_limit_s": 60.0, "cpu_factor": 1.0,
    }  # fmt: skip
    hello = grading_worker.Hello(rewards=(reward,), memory_bytes=512 << 20)
    worker = await launcher.start(module=service.WORKER_MODULE, arguments=[], hello=hello.payload(), scratch=scratch)
    asked = asyncio.ensure_future(worker.exchange(frames.encode(request, max_bytes=frames.MAX_REQUEST_BYTES)))
    try:
        async with asyncio.timeout(60):
            while not list(scratch.glob("worker-*/run-*/tree/pkg/sums.py")):
                await asyncio.sleep(0.01)
        yield worker
    finally:
        await worker.teardown()
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError, launcher.WorkerLostError):
            await asked


@pytest.mark.covers("security")
@pytest.mark.parametrize("crashes", [False, True], ids=["is killed", "crashes"])
async def test_repository_of_a_worker_goes_with_it_when_it(
    crashes: bool, confined: profile.Confinement, tmp_path: pathlib.Path
) -> None:
    async with waiting(tmp_path) as worker:
        if crashes:
            os.kill(worker.pid, signal.SIGKILL)
        assert await worker.teardown()
        assert list(tmp_path.iterdir()) == []
        assert await worker.teardown(), "once more, and nothing is left to do"


async def test_worker_that_does_not_become_ready_leaves_no_folder(tmp_path: pathlib.Path) -> None:
    hello = grading_worker.Hello(
        rewards=(process_config.GraderConfig(name="r", type="no such type"),), memory_bytes=1 << 29
    )
    with pytest.raises(errors.SandboxError, match="no such type"):
        await launcher.start(module=service.WORKER_MODULE, arguments=[], hello=hello.payload(), scratch=tmp_path)
    assert list(tmp_path.iterdir()) == []
