"""Limits of CPU time are in seconds of the reference machine: measured, clipped, multiplied, and measured again."""

import asyncio
import dataclasses
import json
import logging
import pathlib
import re
from collections.abc import Callable, Sequence

import pytest

from rljob_api import enums, process_config, types
from rljob_api import grading as grading_limits
from rljob_testing import patient_code
from rljob_testing.clock import FakeClock
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics
from rljob_workers.verifier import calibration, frames, grading, pool, replies, service
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.code import code_grader
from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import cpu_program, cpu_timing, spawn, warm

GAUGE = "rljob_verifier_calibration_ratio"
MakeConfig = Callable[..., process_config.VerifierConfig]


@pytest.mark.covers("sandbox 9")
@pytest.mark.parametrize(
    ("measured_s", "expected"),
    [
        ([0.25] * 5, 1.0),
        ([0.375] * 5, 1.5),
        # Clipped: from half as long to four times as long.
        ([0.125] * 5, 0.5),
        ([0.001] * 5, 0.5),
        ([1.0] * 5, 4.0),
        ([60.0] * 5, 4.0),
        # The median: two that were disturbed change nothing.
        ([9.0, 0.5, 0.25, 9.0, 0.5], 2.0),
    ],
)
def test_factor_is_the_median_over_the_reference_within_its_bounds(
    measured_s: Sequence[float], expected: float
) -> None:
    assert calibration.factor(measured_s, reference_s=0.25) == expected


def test_factor_of_no_measurement_is_refused() -> None:
    with pytest.raises(ValueError, match="measured_s is empty"):
        calibration.factor([])


@pytest.mark.parametrize(("now_s", "due_in_s"), [(100.0, 600.0), (699.5, 0.5), (700.0, 0.0), (5000.0, 0.0)])
def test_measurement_is_due_ten_minutes_after_the_last_one_began(now_s: float, due_in_s: float) -> None:
    assert calibration.due_in_s(now_s=now_s, last_s=100.0) == due_in_s


@dataclasses.dataclass
class Machine:
    """Measures as it is given: a ratio to the reference machine, or a failure."""

    says: list[float | Exception]
    num_measured: int = 0

    async def __call__(self) -> Sequence[float]:
        said = self.says[self.num_measured]
        self.num_measured += 1
        if isinstance(said, Exception):
            raise said
        return [said * calibration.REFERENCE_S] * 5


def shown(counted: metrics.Metrics) -> float:
    found = re.search(rf"^{GAUGE}{{.*}} (.*)$", counted.exposition().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.covers("sandbox 9")
async def test_machine_is_measured_again_every_ten_minutes(verifier_metrics: metrics.Metrics) -> None:
    clock, machine = FakeClock(), Machine([2.0, 3.0, 1.5])
    calibrated = calibration.Calibration(measure=machine, metrics=verifier_metrics, clock=clock)
    assert calibrated.factor == 1.0
    await calibrated.measure()
    keeping = asyncio.create_task(calibrated.keep())
    seen = []
    for seconds in (599.0, 1.0, 599.0, 1.0):
        await clock.advance(seconds)
        seen.append((machine.num_measured, round(calibrated.factor, 9), round(shown(verifier_metrics), 9)))
    keeping.cancel()
    assert seen == [(1, 2.0, 2.0), (2, 3.0, 3.0), (2, 3.0, 3.0), (3, 1.5, 1.5)]


@pytest.mark.covers("sandbox 9")
async def test_measurement_that_fails_keeps_the_factor_and_is_made_again_in_its_time(
    verifier_metrics: metrics.Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    failure = spawn.CannotRunError("no process")
    clock, machine = FakeClock(), Machine([failure, 2.0, failure, 3.0])
    calibrated = calibration.Calibration(measure=machine, metrics=verifier_metrics, clock=clock)
    with caplog.at_level(logging.WARNING):
        await calibrated.measure()
    assert (calibrated.factor, shown(verifier_metrics)) == (1.0, 1.0)
    assert "no process" in caplog.text
    keeping = asyncio.create_task(calibrated.keep())
    seen = []
    for _ in range(3):
        await clock.advance(calibration.EVERY_S)
        seen.append(round(calibrated.factor, 9))
    keeping.cancel()
    assert seen == [2.0, 2.0, 3.0]


class Clocks(base.SingleTimeLimit):
    """A grader of records that name a number of clocks."""

    needs_worker = True

    def check(self, columns: object) -> None:
        """Anything is a record."""

    def num_time_limits(self, columns: object) -> int:
        return 3

    def warm(self) -> None:
        """Nothing."""

    def quick(self, answer: base.Answer) -> base.Grade | None:
        return None

    def grade(self, answer: base.Answer) -> base.Grade:
        raise AssertionError("runs in a worker")


ITEM = types.VerifyItem(sample_id="s", attempt=0, prompt="", completion="", columns={})


@pytest.mark.covers("sandbox 9")
@pytest.mark.parametrize(
    ("reward_type", "wall_s"),
    # Of an answer with a program the wall limit is in seconds of any clock, and the pool's comes later by a grace.
    [("math", 3 * 6.0 * 1.5), ("code", 3 * 6.0 + grading.PROGRAM_GRACE_S)],
)
def test_limits_of_a_request_are_reference_seconds_times_the_factor(reward_type: str, wall_s: float) -> None:
    reward = process_config.GraderConfig(name="r", type=reward_type, cpu_limit_s=2.0, wall_limit_s=6.0)
    request = grading.request_of(ITEM, 0, reward, Clocks(), cpu_factor=1.5)
    assert (request.cpu_s, request.wall_s) == (3 * 2.0 * 1.5, wall_s)
    (payload,) = frames.Decoder(max_bytes=1 << 20).feed(request.frame)
    assert (payload["cpu_limit_s"], payload["cpu_factor"]) == (9.0, 1.5)
    # The same on every machine: a verdict names the limit of the manifest.
    assert request.timed_out.detail == "over 6 s of CPU"


@pytest.mark.covers("sandbox 9")
@pytest.mark.parametrize(("cpu_factor", "cpu_s", "wall_s"), [(1.0, 2.0, 6.0), (0.5, 1.0, 3.0), (4.0, 8.0, 24.0)])
def test_limits_of_a_case_are_reference_seconds_times_the_factor(
    cpu_factor: float, cpu_s: float, wall_s: float
) -> None:
    seen: list[programs.Limits] = []

    def run(program: programs.Program, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        seen.append(limits)
        return programs.Run(output=b"3\n", exit_code=0)

    reward = process_config.GraderConfig(name="r", type="code", cpu_limit_s=2.0, wall_limit_s=200.0)
    columns = {"input_output": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})}
    answer = base.Answer(prompt="", completion="```python\nprint(3)\n```", columns=columns, cpu_factor=cpu_factor)
    assert code_grader.CodeGrader(reward, run=run).grade(answer).score == 1.0
    assert [(limits.cpu_s, limits.wall_s) for limits in seen] == [(cpu_s, wall_s)]


# By the outcome that is theirs on any machine.
FIXED = {
    "print(sum(map(int, input().split())))": enums.VerifyOutcome.PASS,
    "print(4)": enums.VerifyOutcome.FAIL,
    "raise ValueError": enums.VerifyOutcome.FAIL,
    "print(": enums.VerifyOutcome.FAIL,
    "import os\nos.abort()": enums.VerifyOutcome.FORCED_EXIT,
    "while True:\n    pass": enums.VerifyOutcome.TIMEOUT_CPU,
    "while True:\n    print('x' * (1 << 16))": enums.VerifyOutcome.OUTPUT_FLOOD,
    "import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)": enums.VerifyOutcome.FORBIDDEN,
}


@pytest.mark.covers("sandbox 9")
@pytest.mark.parametrize("source", FIXED)
def test_verdict_on_a_program_is_the_same_on_the_fastest_and_on_the_slowest_machine(
    source: str, confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    def run(program: programs.Program, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        # Of a busy machine nothing is asked here.
        limits = dataclasses.replace(limits, wall_s=240.0)
        return programs.run(program, stdin=stdin, limits=limits, confined=confined, start=interpreter.start)

    reward = process_config.GraderConfig(name="r", type="code", cpu_limit_s=0.4, wall_limit_s=240.0)
    columns = {"input_output": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})}
    answer = base.Answer(prompt="", completion=f"```python\n{source}\n```", columns=columns)
    fastest, slowest = (
        code_grader.CodeGrader(reward, run=run).grade(dataclasses.replace(answer, cpu_factor=cpu_factor))
        for cpu_factor in (grading_limits.LEAST_FACTOR, grading_limits.MOST_FACTOR)
    )
    assert fastest == slowest
    assert fastest.outcome is FIXED[source]


@dataclasses.dataclass
class Recording:
    """A worker that notes the limits that it is reported."""

    told: list[tuple[object, object]]

    async def exchange(self, request: bytes) -> dict[str, object]:
        (payload,) = frames.Decoder(max_bytes=1 << 20).feed(request)
        self.told.append((payload["cpu_limit_s"], payload["cpu_factor"]))
        return replies.grade_to(base.passed("5"))

    def note_programs(self) -> None:
        pass

    def cpu_s(self) -> float:
        return 0.0

    async def teardown(self) -> bool:
        return True


async def test_answer_has_the_factor_of_the_moment_in_which_it_was_admitted(verifier_metrics: metrics.Metrics) -> None:
    told: list[tuple[object, object]] = []
    factors = iter((2.0, 0.5))

    async def launch() -> Recording:
        return Recording(told)

    size = pool.Size(num_slots=1, num_spares=1, max_waiting=10)
    workers = pool.Pool(size=size, launch=launch, metrics=verifier_metrics, clock=clocks.SystemClock())
    await workers.start()
    reward = process_config.GraderConfig(name="r", type="math", cpu_limit_s=2.0, wall_limit_s=6.0)
    graded = grading.Grading(
        rewards=[reward], graders=[Clocks()], workers=workers, metrics=verifier_metrics, cpu_factor=factors.__next__
    )
    try:
        for name in "ab":
            await graded.verify([dataclasses.replace(ITEM, sample_id=name)])
    finally:
        await workers.close()
    assert told == [(12.0, 2.0), (3.0, 0.5)]


# A program that uses 0.6 s of CPU on any machine, and more only to start.
BURNS = "import time\nwhile time.process_time() < 0.6:\n    pass\nprint(sum(map(int, input().split())))"


@pytest.mark.covers("sandbox 9")
@pytest.mark.parametrize(
    ("ratio", "outcome"), [(4.0, enums.VerifyOutcome.PASS), (1.0, enums.VerifyOutcome.TIMEOUT_CPU)]
)
async def test_program_of_a_slow_machine_has_the_time_that_it_needs_there(
    ratio: float, outcome: enums.VerifyOutcome, make_config: MakeConfig, confined: profile.Confinement
) -> None:
    reward = process_config.GraderConfig(name="r", type="patient-code")
    config = make_config(reward, cpu_limit_s=0.4, wall_limit_s=240.0, num_slots=1)
    verifier = service.Service(config, extra=patient_code.TYPES, measure=Machine([ratio]))
    columns = {"query_id": "q", "input_output": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})}
    item = dataclasses.replace(ITEM, completion=f"```python\n{BURNS}\n```", columns=columns)
    await verifier.start()
    try:
        (verdict,) = await verifier.grading.verify([item])
    finally:
        await verifier.close()
    assert verdict.outcome is outcome
    assert shown(verifier.metrics) == pytest.approx(ratio)


async def test_verifier_measures_before_it_is_ready_and_again_while_it_runs(make_config: MakeConfig) -> None:
    clock, machine = FakeClock(), Machine([2.0, 3.0])
    config = make_config(process_config.GraderConfig(name="r", type="math"), num_slots=1)
    verifier = service.Service(config, measure=machine, time=clock)
    await verifier.start()
    running = asyncio.create_task(verifier.run())
    try:
        seen = [shown(verifier.metrics)]
        for seconds in (calibration.EVERY_S - 1.0, 1.0):
            await clock.advance(seconds)
            seen.append(shown(verifier.metrics))
    finally:
        verifier.stop()
        await running
        await verifier.close()
    assert seen == [pytest.approx(2.0), pytest.approx(2.0), pytest.approx(3.0)]


async def test_verifier_that_keeps_no_workers_measures_nothing(make_config: MakeConfig) -> None:
    machine = Machine([])
    verifier = service.Service(make_config(process_config.GraderConfig(name="r", type="exact")), measure=machine)
    await verifier.start()
    await verifier.close()
    assert machine.num_measured == 0


def test_fixed_program_computes_what_is_known() -> None:
    # The prime-counting function, and the starts of record-long Collatz paths: OEIS A006880 and A006877.
    assert [cpu_program.num_primes(10**n) for n in (1, 2, 3, 4)] == [4, 25, 168, 1229]
    assert [cpu_program.longest_chain(limit) for limit in (10, 100, 1000, 10_000)] == [9, 97, 871, 6171]


def test_fixed_program_is_timed_five_times() -> None:
    found = cpu_timing.repetitions_s()
    assert len(found) == 5
    assert min(found) > 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise SystemExit(3)", "exit status 3"),
        ("print('slow')", "could not convert"),
        ("print(0.1)", "not 5 times above 0"),
        ("print('0.1 ' * 4, '-0.1')", "not 5 times above 0"),
        ("print('nan ' * 5)", "not 5 times above 0"),
        ("import signal\nsignal.pause()", "timed out"),
    ],
)
def test_program_that_does_not_say_five_times_is_no_measurement(
    source: str, message: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "program.py"
    path.write_text(source)
    timeout_s = 0.1 if "pause" in source else cpu_timing.TIMEOUT_S
    with pytest.raises(spawn.CannotRunError, match=message):
        cpu_timing.repetitions_s(path, timeout_s=timeout_s)
