"""`repository-tests`: whether the tests of a record's repository pass once the answer's files are in it.

Unlike a program, which is compared with what its process never saw, tests share a process with the code that they test:
no isolation makes their word proof, and each grade of a run says so (`repository_verdict.py`). Record and answer:
`repository_record.py`, `repository_answer.py`. The run itself: `sandbox/repository.py`.
"""

import pathlib
import tempfile
from collections.abc import Mapping
from typing import Protocol

from rljob_api import grading_limits, names, roles
from rljob_api.manifest import reward_options
from rljob_workers.verifier.graders import (
    code_verdict,
    protocol,
    repository_answer,
    repository_record,
    repository_verdict,
)
from rljob_workers.verifier.sandbox import packages, processes, programs, repository

# A report is under a hundred bytes: a nonce, an index, a word.
_BYTES_OF_REPORT = 256


class RunFn(Protocol):
    """Runs the tests of a repository once."""

    def __call__(self, program: repository.Suite, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        """Return how they ended. Raises CannotRunError."""


class RepositoryGrader(protocol.OneClock):
    """Runs all tests once, in a fresh interpreter and a folder of their own."""

    def __init__(
        self, config: roles.GraderConfig, *, run: RunFn = programs.run, scratch: pathlib.Path | None = None
    ) -> None:
        """`scratch`: where folders of runs are made, the temporary folder by default. Raises ManifestError."""
        protocol.options(reward_options.RepositoryOptions, config)
        self._packages = packages.of(config)
        self._run, self._scratch = run, scratch
        self._cpu_s, self._wall_s = config.cpu_limit_s, config.wall_limit_s
        self._memory_bytes, self._output_bytes = config.memory_bytes, config.output_bytes

    @property
    def needs_worker(self) -> bool:
        """Tests are started by a process that may be killed."""
        return True

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError for a record whose tests cannot be run."""
        repository_record.repository_of(columns)

    def warm(self) -> None:
        """Find pytest, which is imported elsewhere. Raises SandboxError without it."""
        repository.harness()

    def quick(self, answer: protocol.Answer) -> protocol.Grade | None:
        """Decide only that there is no file, or more than may be."""
        try:
            files = repository_answer.files_of(answer.completion)
        except repository_answer.UnusableError as error:
            return protocol.failed(names.VerdictReason.PARSE_ERROR, detail=str(error))
        return None if files else protocol.failed(names.VerdictReason.NO_ANSWER)

    def grade(self, answer: protocol.Answer) -> protocol.Grade:
        """Lay the repository out, run its tests, and take it away."""
        decided = self.quick(answer)
        if decided is not None:
            return decided
        given = repository_record.repository_of(answer.columns)
        written = repository_answer.files_of(answer.completion)
        try:
            files = repository_answer.merged(given.files, written, given.test_files)
        except repository_answer.UnusableError as error:
            return protocol.failed(names.VerdictReason.PARSE_ERROR, detail=str(error))
        cpu_s = self._cpu_s * answer.cpu_factor
        limits = programs.Limits(
            cpu_s=cpu_s,
            wall_s=min(self._wall_s, grading_limits.WALL_FACTOR * cpu_s),
            memory_bytes=self._memory_bytes,
            output_bytes=max(self._output_bytes, _BYTES_OF_REPORT * (len(given.tests) + 1)),
        )
        try:
            with repository.laid_out(files, below=self._scratch or pathlib.Path(tempfile.gettempdir())) as folder:
                suite = repository.Suite(folder, given.tests, self._packages)
                run = self._run(suite, stdin=b"", limits=limits)
        except processes.CannotRunError:
            return code_verdict.unjudged()
        return repository_verdict.grade_of(run, num_tests=len(given.tests))
