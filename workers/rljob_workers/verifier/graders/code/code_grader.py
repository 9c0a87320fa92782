"""`areal-code`: the verdicts of AReaL's local code verifier (mode compat), or those with corrections C1 to C10; and
`code`, which is the same in mode strict. The tests are the record's `input_output`, from the file that option
`solutionPath` names, else from the record itself.

The program runs elsewhere, once per case; here, where it never runs, its data is compared. Isolation of the runs: see
`sandbox/programs.py`.
"""

import functools
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from rljob_api import errors, grading, process_config
from rljob_api.manifest import reward_options
from rljob_workers.verifier import sandbox
from rljob_workers.verifier.graders import base, metadata
from rljob_workers.verifier.graders.code import blocks, cases, comparison, verdict

Case = verdict.Case
_STATUSES = {"not_compiled": Case.NOT_COMPILED, "no_function": Case.NO_FUNCTION, "raised": Case.RAISED}


class RunFn(Protocol):
    """Runs a program once."""

    def __call__(self, program: sandbox.Program, *, stdin: bytes, limits: sandbox.Limits) -> sandbox.Run:
        """Raises CannotRunError."""


class CodeGrader(base.SingleTimeLimit):
    """Runs the answer's program on every case until one fails."""

    def __init__(self, config: process_config.GraderConfig, *, run: RunFn = sandbox.run) -> None:
        """Raises ManifestError for an unknown option or an unusable file of tests."""
        options = base.options(reward_options.SolutionOptions, config)
        self._compat, self._run = config.mode == "Compat", run
        self._cpu_s, self._wall_s = config.cpu_limit_s, config.wall_limit_s
        self._memory_bytes, self._output_bytes = config.memory_bytes, config.output_bytes
        self._packages = sandbox.packages_of(config)
        # docs/design/graders.md#s-3-3: the programs that it reproduces may have processes.
        self._may_fork = config.type == "areal-code"
        self._tests: Mapping[str, cases.Tests] | None = None
        if options.solution_path:
            self._tests = metadata.tests(pathlib.Path(options.solution_path))

    @property
    def needs_worker(self) -> bool:
        """Programs are started by a process that may be killed."""
        return True

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError for an unknown query_id or tests that cannot be run."""
        self._tests_of(columns)

    def warm(self) -> None:
        """Nothing to import: programs run elsewhere."""

    def quick(self, answer: base.Answer) -> base.Grade | None:
        """Decide only that there is no program."""
        if blocks.programs_of(answer.completion, compat=self._compat):
            return None
        unsupported = not self._compat and blocks.has_unsupported(answer.completion)
        num_cases = len(self._tests_of(answer.columns).inputs)
        return verdict.no_program(num_cases=num_cases, detail="unsupported language" if unsupported else "")

    def grade(self, answer: base.Answer) -> base.Grade:
        """Run case after case until one fails."""
        decided = self.quick(answer)
        if decided is not None:
            return decided
        texts = blocks.programs_of(answer.completion, compat=self._compat)
        tests = self._tests_of(answer.columns)
        wrapped = tests.wraps_results()
        ends_s, cpu_s = time.monotonic() + self._wall_s, self._cpu_s * answer.cpu_factor
        cases: list[verdict.Case] = []
        for index in range(len(tests.inputs)):
            left_s = ends_s - time.monotonic()
            cases.append(self._case(texts, tests, index, wrapped=wrapped, cpu_s=cpu_s, left_s=left_s))
            if cases[-1] is not Case.PASSED:
                break
        return verdict.grade_of(cases, num_cases=len(tests.inputs), num_visible=tests.num_visible)

    def _case(
        self, texts: Sequence[str], tests: cases.Tests, index: int, *, wrapped: bool, cpu_s: float, left_s: float
    ) -> verdict.Case:
        if left_s <= 0:
            return Case.WALL_LIMIT
        limits = sandbox.Limits(
            cpu_s=cpu_s,
            wall_s=min(left_s, grading.WALL_FACTOR * cpu_s),
            memory_bytes=self._memory_bytes,
            output_bytes=max(self._output_bytes, 2 * len(tests.outputs[index].encode())),
            may_fork=self._may_fork,
        )
        make = functools.partial(
            sandbox.Program, source=texts[0], otherwise=texts[1:], compat=self._compat, packages=self._packages
        )
        try:
            if not tests.fn_name:
                done = self._run(make(), stdin=tests.inputs[index].encode(), limits=limits)
                return self._program_case(done, tests.outputs[index])
            arguments = [_argument(value) for value in tests.arguments(index)]
            done = self._run(make(fn_name=tests.fn_name, arguments=arguments), stdin=b"", limits=limits)
            return self._call_case(done, tests.expected(index), wrapped=wrapped)
        except sandbox.CannotRunError:
            return Case.UNJUDGED

    def _program_case(self, run: sandbox.Run, expected: str) -> verdict.Case:
        failure = _failure(run)
        if failure is not None:
            return failure
        if run.exit_code:
            return Case.LEFT if run.exit_code < 0 else Case.RAISED
        printed = run.output.decode("utf-8", errors="replace")
        same = comparison.same_output(printed, expected, compat=self._compat)
        return Case.PASSED if same else Case.WRONG

    def _call_case(self, run: sandbox.Run, expected: object, *, wrapped: bool) -> verdict.Case:
        failure = _failure(run)
        if failure is not None:
            return failure
        # Whatever the exit code says: a call that ends without its one record has failed.
        if run.malformed or len(run.records) > 1:
            return Case.MALFORMED
        if not run.records or run.records[0][0] != "returned":
            return Case.LEFT
        try:
            returned = decoded(run.records[0][1])
            same = comparison.same_result(returned, expected, wrapped=wrapped, compat=self._compat)
        except (ValueError, TypeError, RecursionError):
            return Case.RAISED
        return Case.PASSED if same else Case.WRONG

    def _tests_of(self, columns: Mapping[str, object]) -> cases.Tests:
        if self._tests is None:
            return cases.tests_of(columns)
        query_id = metadata.query_id(columns)
        if query_id not in self._tests:
            raise errors.DataError(f"{metadata.QUERY_ID!r} {query_id!r} is not in the file of tests")
        return self._tests[query_id]


def _failure(run: sandbox.Run) -> verdict.Case | None:
    if run.stopped:
        return verdict.STOPPED[run.stopped]
    # The program's own word can explain a failure, never make one a success.
    for status, _ in run.records:
        if status in _STATUSES:
            return _STATUSES[status]
    return None


def _argument(value: object) -> object:
    """Return an argument as the candidate's script reads it: the keys of an object may be integers."""
    return {"dict": [[key, member] for key, member in value.items()]} if isinstance(value, dict) else value


def decoded(value: object) -> object:
    """Return what a call returned. Raises ValueError or TypeError for what the script cannot have written."""
    if isinstance(value, list):
        return [decoded(member) for member in value]
    if not isinstance(value, dict):
        return value
    ((kind, members),) = value.items()
    if kind == "tuple":
        return tuple(decoded(member) for member in members)
    if kind != "dict":
        raise ValueError(f"unknown kind {kind!r}")
    return {decoded(key): decoded(member) for key, member in members}
