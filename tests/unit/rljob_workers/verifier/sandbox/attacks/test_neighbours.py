"""A-68: programs that burn the processors of their neighbours, which are then no one's fault and are graded again."""

import contextlib
import dataclasses
import functools
import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from rljob_api import enums, process_config
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.code import code_grader
from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import spawn, warm

# On one processor with so many others a neighbour gets an eighth of the time: at its wall cap, three times its limit of
# CPU, not even half of that limit.
NUM_BURNERS = 7
CPU_S, NEEDED_S = 1.0, 0.7
BURNS = "print('on', flush=True)\nwhile True:\n    pass"
HONEST = f"""
import time
while time.process_time() < {NEEDED_S}:
    pass
print(sum(map(int, input().split())))
"""
ANSWER = base.Answer(
    prompt="",
    completion=f"```python\n{HONEST}\n```",
    columns={"input_output": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})},
)
PATIENT_S = 200.0


@pytest.fixture
def one_processor() -> Iterator[None]:
    """Have this thread and what it starts share one processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def burning() -> Iterator[None]:
    """Have others burn that processor."""
    with contextlib.ExitStack() as stack:
        for _ in range(NUM_BURNERS):
            burner = subprocess.Popen([*spawn.INTERPRETER, "-c", BURNS], stdout=subprocess.PIPE, start_new_session=True)
            stack.enter_context(burner)
            stack.callback(burner.kill)
            assert burner.stdout is not None
            assert burner.stdout.readline() == b"on\n"
        yield


@pytest.mark.covers("sandbox A-68")
def test_a_68_program_that_got_no_time_is_nobodys_fault_and_right_when_graded_again(
    one_processor: None, confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    run = functools.partial(programs.run, confined=confined, start=interpreter.start)

    def patient(program: programs.Program, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        # Others than ours may be busy, too.
        return run(program, stdin=stdin, limits=dataclasses.replace(limits, wall_s=PATIENT_S))

    reward = process_config.GraderConfig(name="r", type="code", cpu_limit_s=CPU_S, wall_limit_s=PATIENT_S)
    with burning():
        starved = code_grader.CodeGrader(reward, run=run).grade(ANSWER)
    assert (starved.score, starved.outcome) == (None, enums.VerifyOutcome.INFRA_ERROR)
    again = code_grader.CodeGrader(reward, run=patient).grade(ANSWER)
    assert (again.score, again.outcome) == (1.0, enums.VerifyOutcome.PASS)
