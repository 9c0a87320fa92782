"""The runner's decisions, with hand-written fakes of the processes, the coordinator and time."""

import dataclasses
import pathlib
from collections.abc import Callable

from rljob_api import enums, types
from rljob_testing.clock import FakeClock
from rljob_workers.local.run import deadlines, display, restart_policy, runner, shutdown, supervise
from rljob_workers.local.rundir import journal, layout

TICK_S = 0.5
ROLES = {str(role): role for role in reversed(shutdown.ORDER)}
LIMITS = deadlines.Limits(startup_s=100.0, stall_s=50.0)


class FakeProcess:
    """Ends when it is asked to."""

    # No process has them, and so none is measured.
    guard_pid, pid = 1 << 30, (1 << 30) + 1

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.events.append(f"term {self.name}")
        self.code = 0

    def kill(self) -> None:
        if self.code is None:
            self.events.append(f"kill {self.name}")
            self.code = -9

    def last_lines(self, count: int = 1) -> list[str]:
        return [f"{self.name} said this last"]


class FakeDisplay:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def show(self, frame: display.Frame) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        pass


class World:
    """A run whose coordinator says what the test's script says at each second."""

    def __init__(
        self, folder: pathlib.Path, script: Callable[["World", float], None], limits: deadlines.Limits
    ) -> None:
        self.clock, self.events, self.shown = FakeClock(), list[str](), FakeDisplay()
        self.processes: dict[str, FakeProcess] = {}
        self.status: types.RunStatus | None = None
        self._script = script
        directory = layout.RunDir(folder / "run")
        directory.claim(directory.admit(name="small", spec={}, manifest_dir=folder), "")
        self.log = journal.Journal(directory.journal)
        supervisor = supervise.Supervisor(
            spawn=self._spawn, policy=restart_policy.Policy(), clock=self.clock, sweep=lambda _guards: None
        )
        self.interrupts = runner.Interrupts()
        self._runner = runner.Runner(
            processes=ROLES,
            supervisor=supervisor,
            source=self,
            shown=self.shown,
            directory=directory,
            log=self.log,
            interrupts=self.interrupts,
            ask_trainer=self._ask,
            bounds=shutdown.Bounds(checkpoint_s=20.0, drain_s=5.0, short_s=5.0),
            limits=limits,
            clock=self.clock,
            pause=self._pause,
        )

    def latest(self) -> types.RunStatus | None:
        return self.status

    def run(self) -> runner.Outcome:
        outcome = self._runner.run()
        self.log.close()
        return outcome

    def reach(self, step: int, phase: enums.Phase = enums.Phase.RUNNING, **facts: object) -> None:
        moved = self.status is None or step != self.status.step
        at = self.clock.now() if moved or self.status is None else self.status.last_progress_at
        self.status = dataclasses.replace(
            types.RunStatus(job="small", phase=phase, step=step, max_steps=10, last_progress_at=at),
            **facts,  # type: ignore[arg-type]  # a test's shorthand
        )

    def _spawn(self, name: str, role: enums.Role) -> FakeProcess:
        self.events.append(f"start {name}")
        self.processes[name] = FakeProcess(name, self.events)
        return self.processes[name]

    def _ask(self) -> bool:
        self.processes["trainer"].code = 80
        return True

    def _pause(self) -> None:
        self.clock.tick(TICK_S)
        assert self.clock.monotonic() < 1000, "the run did not end"
        self._script(self, self.clock.monotonic())


def play(
    folder: pathlib.Path, script: Callable[[World, float], None], limits: deadlines.Limits = LIMITS
) -> tuple[World, runner.Outcome]:
    world = World(folder, script, limits)
    return world, world.run()


def test_run_without_a_first_step_fails_at_the_startup_deadline(tmp_path: pathlib.Path) -> None:
    world, outcome = play(tmp_path, lambda world, at: None)
    assert (outcome.ending, outcome.reason) == (runner.Ending.FAILED, "StartupDeadlineExceeded")
    assert 100.0 <= outcome.wall_s < 110.0
    assert world.events[-3:] == ["term judge", "term verifier", "term coordinator"]


def test_step_of_an_earlier_segment_does_not_count_as_a_first_step(tmp_path: pathlib.Path) -> None:
    _, outcome = play(tmp_path, lambda world, at: world.reach(5))
    assert outcome.reason == "StartupDeadlineExceeded"


def test_stalled_run_fails_where_the_policy_says_so(tmp_path: pathlib.Path) -> None:
    limits = dataclasses.replace(LIMITS, on_stall="Fail")
    _, outcome = play(tmp_path, lambda world, at: world.reach(min(2, int(at))), limits)
    assert outcome.reason == "StallTimeout"
    assert 50.0 <= outcome.wall_s < 60.0


def test_culprit_of_a_stall_is_replaced_once_per_timeout_and_nobody_else(tmp_path: pathlib.Path) -> None:
    waiting = (
        types.Waiting(role="trainer", pod="trainer", what="batch 3", on_role="rollout"),
        types.Waiting(role="rollout", pod="rollout", what="4 verdicts", on_role="verifier"),
    )

    def script(world: World, at: float) -> None:
        world.reach(min(2, int(at)), waiting=waiting)
        if at == 80:
            world.interrupts.request()

    world, _ = play(tmp_path, script, dataclasses.replace(LIMITS, on_stall="Restart"))
    assert world.events.count("kill verifier") == 1
    assert world.events.count("start verifier") == 2
    assert [event for event in world.events if event.startswith("kill")] == ["kill verifier"]
    assert any("trainer waits for batch 3" in text for text in world.shown.said)


def test_run_that_the_coordinator_declares_failed_ends_with_its_reason(tmp_path: pathlib.Path) -> None:
    why = "record 7 of source 'sums' cannot be used: it has no 'answer'"
    _, outcome = play(tmp_path, lambda world, at: world.reach(1, enums.Phase.FAILED, failure=why))
    assert (outcome.ending, outcome.reason) == (runner.Ending.FAILED, "ConfigurationError")
    assert outcome.because == why


def test_trainer_that_finished_waits_for_the_last_evaluation(tmp_path: pathlib.Path) -> None:
    def script(world: World, at: float) -> None:
        world.reach(10, enums.Phase.FINISHED if at >= 30 else enums.Phase.EVALUATING)
        if at == 10:
            world.processes["trainer"].code = 0

    world, outcome = play(tmp_path, script)
    assert outcome.ending is runner.Ending.FINISHED
    assert 30.0 <= outcome.wall_s < 35.0
    assert world.events[-3:] == ["term judge", "term verifier", "term coordinator"]


def test_rollout_that_dies_during_the_orderly_end_is_not_started_again(tmp_path: pathlib.Path) -> None:
    def script(world: World, at: float) -> None:
        world.reach(2)
        if at == 5:
            world.interrupts.request()
            world.processes["rollout"].code = -9

    world, outcome = play(tmp_path, script)
    assert outcome.ending is runner.Ending.STOPPED
    assert world.events.count("start rollout") == 1


def test_ending_is_told_with_its_last_line_and_journaled(tmp_path: pathlib.Path) -> None:
    def script(world: World, at: float) -> None:
        world.reach(2)
        if at == 5:
            world.processes["rollout"].code = 75
        if at == 10:
            world.interrupts.request()

    world, _ = play(tmp_path, script)
    assert world.shown.said[0] == (
        "rollout ended with exit code 75 after 5 s; restart in 1 s (infrastructure failure); "
        "last line: rollout said this last"
    )
    (entry,) = journal.restarts(journal.read(tmp_path / "run" / "runner.jsonl"))
    assert (entry.name, entry.code) == ("rollout", 75)
