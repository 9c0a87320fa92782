"""Programs of known outcome: right where limits and isolation hold, and the one that is wrong is named where not."""

import contextlib
import dataclasses
import functools

import pytest

from rljob_api import errors
from rljob_workers.verifier import canaries, runner
from rljob_workers.verifier.sandbox import confinement, programs, warm

RIGHT = programs.Run(output=b"3\n", exit_code=0)
WRONG = programs.Run(output=b"4\n", exit_code=0)
# What a run of each canary says where nothing stops it, or where its runner is spoiled.
ESCAPES = {"pass": WRONG, "fail": RIGHT, "timeout": RIGHT, "flood": WRONG, "memory": RIGHT, "network": RIGHT}
ENDS = {
    "pass": RIGHT,
    "fail": WRONG,
    "timeout": programs.Run(output=b"", exit_code=-9, stopped="cpu"),
    "flood": programs.Run(output=b"", exit_code=-9, stopped="output"),
    "memory": programs.Run(output=b"", exit_code=1),
    "network": WRONG,
}
LIMITS = programs.Limits(cpu_s=1.0, wall_s=3.0, memory_bytes=1 << 28, output_bytes=1 << 16)


@dataclasses.dataclass
class Scripted:
    """Ends each canary as it should, but for those that `otherwise` names."""

    otherwise: dict[str, programs.Run] = dataclasses.field(default_factory=dict)
    seen: list[str] = dataclasses.field(default_factory=list)

    def __call__(self, program: programs.Program, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        name = next((one.name for one in canaries.CANARIES if one.program == program.source), "program")
        self.seen.append(name)
        return {"program": RIGHT, **ENDS, **self.otherwise}[name]


def test_all_canaries_are_right_on_a_warm_interpreter(
    confined: confinement.Confinement, interpreter: warm.Interpreter
) -> None:
    run = functools.partial(programs.run, confined=confined, start=interpreter.start)
    assert canaries.wrong(run) == ""


@pytest.mark.parametrize("name", [canary.name for canary in canaries.CANARIES])
def test_canary_that_comes_out_otherwise_is_named(name: str) -> None:
    assert canaries.wrong(Scripted()) == ""
    assert canaries.wrong(Scripted(otherwise={name: ESCAPES[name]})) == name


def test_canary_of_the_network_is_wrong_where_nothing_confines_it(interpreter: warm.Interpreter) -> None:
    network = [canary for canary in canaries.CANARIES if canary.name == "network"]
    assert canaries.wrong(programs.run, network) == "network"


@pytest.mark.parametrize("stopped", ["starved", "wall"])
@pytest.mark.parametrize("name", [canary.name for canary in canaries.CANARIES])
def test_machine_too_busy_for_a_canary_has_shown_nothing(name: str, stopped: str) -> None:
    busy = programs.Run(output=b"", exit_code=-9, stopped=stopped)
    assert canaries.wrong(Scripted(otherwise={name: busy})) == ""


def test_canaries_are_due_after_so_many_executions_and_do_not_count_themselves() -> None:
    run = Scripted()
    watch = canaries.Watch(run, every=2)
    seen = []
    for _ in range(6):
        watch(programs.Program(source="x", compat=False), stdin=b"", limits=LIMITS)
        run.seen.clear()
        assert watch.wrong_if_due() == ""
        seen.append(len(run.seen))
    assert seen == [0, len(canaries.CANARIES)] * 3


def test_runner_with_a_wrong_canary_is_not_ready(confined: confinement.Confinement) -> None:
    spoiled = dataclasses.replace(canaries.CANARIES[0], program="print(4)")
    with contextlib.closing(runner.Runner(confined, known=(spoiled,))) as made:
        with pytest.raises(errors.SandboxError, match="canary pass came out otherwise"):
            made.verify()
        assert made.survivors() == frozenset()
