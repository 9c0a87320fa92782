"""How a grading worker runs programs of the policy: confined, as forks of one warm interpreter, watched by canaries.

The tests of a repository get a fresh interpreter. Where the job asks for no isolation, none of that: each in a fresh
interpreter, within its limits.
"""

import functools
import os
from collections.abc import Sequence

from rljob_api import errors
from rljob_workers.verifier import canaries
from rljob_workers.verifier.graders import code
from rljob_workers.verifier.sandbox import confinement, probe, procfs, programs, repository, warm


class Runner:
    """Runs programs and tests of repositories, one at a time. A `RunFn`."""

    def __init__(
        self, confined: confinement.Confinement | None, *, known: Sequence[canaries.Canary] = canaries.CANARIES
    ) -> None:
        """Start nothing yet. `confined`: None for isolation none. `known`: the canaries."""
        self._confined, self._interpreter = confined, warm.Interpreter()
        run: code.RunFn = programs.run
        if confined is not None:
            run = functools.partial(programs.run, confined=confined, start=self._interpreter.start)
        self._canaries = canaries.Watch(run, canaries=known)

    def __call__(
        self, program: programs.Program | repository.Suite, *, stdin: bytes, limits: programs.Limits
    ) -> programs.Run:
        """Run a program, or tests in an interpreter that nothing was imported into. Raises CannotRunError."""
        if isinstance(program, repository.Suite):
            self._canaries.count()
            return programs.run(program, stdin=stdin, limits=limits, confined=self._confined)
        return self._canaries(program, stdin=stdin, limits=limits)

    def verify(self) -> None:
        """Try what must not succeed, and programs of known outcome. Raises SandboxError for what came out otherwise."""
        if self._confined is None:
            return
        probe.verify(self._confined, start=self._interpreter.start)
        wrong = self._canaries.wrong()
        if wrong:
            raise errors.SandboxError(f"isolation {confinement.LEVEL} does not hold: canary {wrong} came out otherwise")

    @property
    def canaries_due_soon(self) -> bool:
        """Return whether the canaries are to be asked for while nobody waits."""
        return self._confined is not None and self._canaries.are_due_soon

    def wrong_canary(self, *, now: bool = False) -> str:
        """Run the canaries if they are due again, or now; return the one that is wrong, empty if there is none."""
        if self._confined is None:
            return ""
        return self._canaries.wrong() if now else self._canaries.wrong_if_due()

    def survivors(self) -> frozenset[int]:
        """Return the processes that programs left, which would slow the next one or write into it."""
        return procfs.children(os.getpid()) - self._interpreter.pids

    def close(self) -> None:
        """End the interpreter."""
        self._interpreter.close()
