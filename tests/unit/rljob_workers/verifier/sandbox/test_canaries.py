"""Programs of known outcome: right where limits and isolation hold, and the one that is wrong is named where not."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable

import pytest

from rljob_api import errors, process_config, types
from rljob_workers.verifier import canaries, frames, grading, replies, service
from rljob_workers.verifier import worker as grading_worker
from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import launcher, warm

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


@pytest.mark.covers("sandbox 9")
def test_all_canaries_are_right_on_a_warm_interpreter(
    confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    run = functools.partial(programs.run, confined=confined, start=interpreter.start)
    assert canaries.wrong(run) == ""


@pytest.mark.covers("sandbox 9")
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


@pytest.mark.covers("sandbox 9")
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


def test_canaries_are_due_soon_after_three_quarters_of_the_executions_until_they_were_run() -> None:
    watch = canaries.Watch(Scripted(), every=4)
    soon = []
    for _ in range(3):
        watch.count()
        soon.append(watch.are_due_soon)
    assert soon == [False, False, True]
    assert watch.wrong() == ""
    assert not watch.are_due_soon


def test_runner_with_a_wrong_canary_is_not_ready(confined: profile.Confinement) -> None:
    spoiled = dataclasses.replace(canaries.CANARIES[0], program="print(4)")
    with contextlib.closing(grading_worker.Runner(confined, canary_programs=(spoiled,))) as made:
        with pytest.raises(errors.SandboxError, match="canary pass had an unexpected outcome"):
            made.verify()
        assert made.survivors() == frozenset()


async def test_worker_says_when_its_canaries_are_due_and_runs_them_when_it_is_asked(
    confined: profile.Confinement, make_config: Callable[..., process_config.VerifierConfig]
) -> None:
    reward = process_config.GraderConfig(name="sums", type="areal-code", cpu_limit_s=5.0, wall_limit_s=60.0)
    config = make_config(reward)
    (grader,) = service.make_graders(config)
    columns = {"query_id": "q", "input_output": '{"inputs": [""], "outputs": ["3"]}'}
    item = types.VerifyItem(sample_id="s", attempt=0, prompt="", completion="```python\nprint(3)\n```", columns=columns)
    sum_request = grading.request_of(item, 0, reward, grader).frame
    canary_request = frames.encode(replies.CANARIES, max_bytes=1 << 10)
    hello = grading_worker.Hello(rewards=(reward,), memory_bytes=512 << 20)
    worker = await launcher.start(module=service.WORKER_MODULE, arguments=[], hello=hello.payload())
    try:
        due = [(await worker.exchange(sum_request))["then"] == "canaries" for _ in range(canaries.EVERY * 3 // 4)]
        assert due == [False] * (len(due) - 1) + [True]
        assert await worker.exchange(canary_request) == {"canary": ""}
        assert (await worker.exchange(sum_request))["then"] == "serve"
    finally:
        await worker.teardown()
