"""Programs of known outcome, which a grading worker runs before it is ready and again every 200 executions.

A wrong outcome means that limits or isolation do not hold any more, or that a program spoiled its runner: no verdict of
this worker since the last time that all were right can be believed. A machine too busy to give them time has not shown
that.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence

from rljob_api import enums, process_config
from rljob_workers.verifier import sandbox
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.code import code_grader

EVERY = 200
# From this share of them on they are better run at once, where nothing waits for this worker.
_SOON = 0.75
_O = enums.VerifyOutcome
_COLUMNS: Mapping[str, object] = {"input_output": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})}
_MEMORY_BYTES, _OUTPUT_BYTES = 128 << 20, 64 << 10
_WALL_S = 30.0
# Of a machine too busy, with its processors or its disks.
_SHOW_NOTHING = frozenset((_O.INFRA_ERROR, _O.TIMEOUT_WALL))


@dataclasses.dataclass(frozen=True, slots=True)
class Canary:
    """A program between stdin "1 2" and stdout, where "3" is right, and the outcomes that are.

    cpu_s: long enough for the slowest machine, but for the one that is to meet its limit in between.
    """

    name: str
    program: str
    outcomes: frozenset[enums.VerifyOutcome]
    cpu_s: float = 5.0


CANARIES = (
    Canary("pass", "print(sum(map(int, input().split())))", frozenset((_O.PASS,))),
    Canary("fail", "print(4)", frozenset((_O.FAIL,))),
    Canary("timeout", "while True:\n    pass", frozenset((_O.TIMEOUT_CPU,)), cpu_s=0.1),
    Canary("flood", "while True:\n    print('x' * (1 << 16))", frozenset((_O.OUTPUT_FLOOD,))),
    Canary("memory", "kept = bytearray(1 << 30)\nprint(3)", frozenset((_O.FAIL, _O.OOM))),
    Canary(
        "network",
        "import socket\ntry:\n    socket.socket()\nexcept OSError:\n    print(4)\nelse:\n    print(3)",
        frozenset((_O.FAIL,)),
    ),
)


def wrong(run: code_grader.RunFn, canaries: Sequence[Canary] = CANARIES, *, packages: tuple[str, ...] = ()) -> str:
    """Return the name of the first canary whose outcome is wrong, empty if there is none.

    packages: that they may import.
    """
    for canary in canaries:
        reward = process_config.GraderConfig(
            name=canary.name,
            type="code",
            cpu_limit_s=canary.cpu_s,
            wall_limit_s=_WALL_S,
            memory_bytes=_MEMORY_BYTES,
            output_bytes=_OUTPUT_BYTES,
            packages=packages,
        )
        answer = base.Answer(prompt="", completion=f"```python\n{canary.program}\n```", columns=_COLUMNS)
        outcome = code_grader.CodeGrader(reward, run=run).grade(answer).outcome
        if outcome not in {*canary.outcomes, *_SHOW_NOTHING}:
            return canary.name
    return ""


class Watch:
    """Runs programs, counts them, and says when the canaries are due again. A `RunFn`."""

    def __init__(
        self,
        run: code_grader.RunFn,
        *,
        every: int = EVERY,
        canaries: Sequence[Canary] = CANARIES,
        packages: Sequence[tuple[str, ...]] = ((),),
    ) -> None:
        """`every`: after how many executions they are due. `packages`: sets, with each of which all run."""
        self._run, self._every, self._canaries, self._packages = run, every, canaries, packages
        self._count = 0

    def __call__(self, program: sandbox.Program, *, stdin: bytes, limits: sandbox.Limits) -> sandbox.Run:
        self.count()
        return self._run(program, stdin=stdin, limits=limits)

    def count(self) -> None:
        """Count an execution that another one ran."""
        self._count += 1

    @property
    def are_due_soon(self) -> bool:
        """Return whether another time for them would be hard to find."""
        return self._count >= _SOON * self._every

    def wrong(self) -> str:
        """Run the canaries now; return the name of the first that is wrong, empty if there is none."""
        self._count = 0
        return next(
            filter(None, (wrong(self._run, self._canaries, packages=packages) for packages in self._packages)), ""
        )

    def wrong_if_due(self) -> str:
        """Run them if as many executions were counted; they are not counted themselves."""
        return self.wrong() if self._count >= self._every else ""
