"""How a grading worker runs programs of the policy: confined, as forks of a warm interpreter, watched by canaries.

The tests of a repository get a fresh interpreter. Where the job asks for no isolation, none of that: each in a fresh
interpreter, within its limits.
"""

import os
from collections.abc import Collection, Sequence

from rljob_api import errors
from rljob_workers.verifier import canaries
from rljob_workers.verifier.graders import code
from rljob_workers.verifier.sandbox import confinement, probe, procfs, programs, repository, warm


class Runner:
    """Runs programs and tests of repositories, one at a time. A `RunFn`."""

    def __init__(
        self,
        confined: confinement.Confinement | None,
        *,
        known: Sequence[canaries.Canary] = canaries.CANARIES,
        packages: Collection[tuple[str, ...]] = (),
    ) -> None:
        """Start nothing yet. `confined`: None for isolation none. `known`: the canaries.

        packages: those of each reward with programs, which have an interpreter of their own for each set.
        """
        self._confined = confined
        self._interpreters = {names: warm.Interpreter(names) for names in sorted(set(packages)) or [()]}
        run: code.RunFn = programs.run if confined is None else self._run_warm
        self._canaries = canaries.Watch(run, canaries=known, packages=tuple(self._interpreters))

    def __call__(
        self, program: programs.Program | repository.Suite, *, stdin: bytes, limits: programs.Limits
    ) -> programs.Run:
        """Run a program, or tests in an interpreter that nothing was imported into. Raises CannotRunError."""
        if isinstance(program, repository.Suite):
            self._canaries.count()
            return programs.run(program, stdin=stdin, limits=limits, confined=self._confined)
        return self._canaries(program, stdin=stdin, limits=limits)

    def _run_warm(self, program: programs.Program, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        start = self._interpreters[program.packages].start
        return programs.run(program, stdin=stdin, limits=limits, confined=self._confined, start=start)

    def verify(self) -> None:
        """Try what must not succeed, and programs of known outcome. Raises SandboxError for what came out otherwise."""
        if self._confined is None:
            return
        for names, interpreter in self._interpreters.items():
            probe.verify(self._confined, start=interpreter.start, packages=names)
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
        own = (interpreter.pids for interpreter in self._interpreters.values())
        return procfs.children(os.getpid()).difference(*own)

    def close(self) -> None:
        """End the interpreters."""
        for interpreter in self._interpreters.values():
            interpreter.close()
