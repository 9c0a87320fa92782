"""`repository-tests`: whether the tests of a record's repository pass once the answer's files are in it.

Unlike a program, which is compared with what its process never saw, tests share a process with the code that they test:
no isolation makes their word proof, and each grade of a run says so (`verdict.py`). Record and answer:
`record.py`, `answer_files.py`. The run itself: `sandbox/repository.py`.
"""

import pathlib
import tempfile
from collections.abc import Mapping
from typing import Protocol

from rljob_api import enums, grading, process_config
from rljob_api.manifest import reward_options
from rljob_workers.verifier import sandbox
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.code import verdict
from rljob_workers.verifier.graders.repository import answer_files, record
from rljob_workers.verifier.graders.repository import verdict as repository_verdict

# A report is under a hundred bytes: a nonce, an index, a word.
_BYTES_OF_REPORT = 256


class RunFn(Protocol):
    """Runs the tests of a repository once."""

    def __call__(self, program: sandbox.Suite, *, stdin: bytes, limits: sandbox.Limits) -> sandbox.Run:
        """Raises CannotRunError."""


class RepositoryGrader(base.SingleTimeLimit):
    """Runs all tests once, in a fresh interpreter and a folder of their own."""

    def __init__(
        self, config: process_config.GraderConfig, *, run: RunFn = sandbox.run, scratch: pathlib.Path | None = None
    ) -> None:
        """`scratch`: where folders of runs are made, the temporary folder by default. Raises ManifestError."""
        base.options(reward_options.RepositoryOptions, config)
        self._packages = sandbox.packages_of(config)
        self._run, self._scratch = run, scratch
        self._cpu_s, self._wall_s = config.cpu_limit_s, config.wall_limit_s
        self._memory_bytes, self._output_bytes = config.memory_bytes, config.output_bytes

    @property
    def needs_worker(self) -> bool:
        """Tests are started by a process that may be killed."""
        return True

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError for a record whose tests cannot be run."""
        record.repository_of(columns)

    def warm(self) -> None:
        """Find pytest, which is imported elsewhere. Raises SandboxError without it."""
        sandbox.harness()

    def quick(self, answer: base.Answer) -> base.Grade | None:
        """Decide only that there is no file, or more than may be."""
        try:
            files = answer_files.files_of(answer.completion)
        except answer_files.UnusableError as error:
            return base.failed(enums.VerdictReason.PARSE_ERROR, detail=str(error))
        return None if files else base.failed(enums.VerdictReason.NO_ANSWER)

    def grade(self, answer: base.Answer) -> base.Grade:
        """Lay the repository out, run its tests, and take it away."""
        decided = self.quick(answer)
        if decided is not None:
            return decided
        repository = record.repository_of(answer.columns)
        written = answer_files.files_of(answer.completion)
        try:
            files = answer_files.merged(repository.files, written, repository.test_files)
        except answer_files.UnusableError as error:
            return base.failed(enums.VerdictReason.PARSE_ERROR, detail=str(error))
        cpu_s = self._cpu_s * answer.cpu_factor
        limits = sandbox.Limits(
            cpu_s=cpu_s,
            wall_s=min(self._wall_s, grading.WALL_FACTOR * cpu_s),
            memory_bytes=self._memory_bytes,
            output_bytes=max(self._output_bytes, _BYTES_OF_REPORT * (len(repository.tests) + 1)),
        )
        try:
            with sandbox.laid_out(files, below=self._scratch or pathlib.Path(tempfile.gettempdir())) as folder:
                suite = sandbox.Suite(folder, repository.tests, self._packages)
                run = self._run(suite, stdin=b"", limits=limits)
        except sandbox.CannotRunError:
            return verdict.unjudged()
        return repository_verdict.grade_of(run, num_tests=len(repository.tests))
