"""The order of a step's events, at the end, on a stop, and after a restart."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import pytest

from rljob_api import enums, errors, types
from rljob_testing.clock import FakeClock
from rljob_testing.trainer_makers import make_header
from rljob_workers.trainer import learner
from rljob_workers.trainer import loop as train
from rljob_workers.trainer.state import keeping

Stat = enums.StepStat
Answer = tuple[types.BatchHeader, list[types.MicroBatch]]


class Script:
    """Every collaborator of the loop at once; each call is an event, and takes time where a real one would."""

    def __init__(self, *, last: int, stop_at: int | None = None, full_at: Collection[int] = ()) -> None:
        self.events: list[str] = []
        self.clock = FakeClock()
        self.stats: dict[int, Mapping[str, float]] = {}
        self.waits: dict[str, float] = {}
        self.lags: list[int] = []
        self.storage_problem = ""
        self.heard: list[str] = []
        self._offered: keeping.DurableCheckpoint | None = None
        self._is_new = False
        self._in_flight = False
        self._last, self._stop_at, self._full_at = last, stop_at, full_at

    def fetch(self, step: int) -> Answer:
        self.clock.tick(2.0)
        if step == self._stop_at:
            return types.BatchHeader(kind=enums.BatchKind.STOP, step=step), []
        if step > self._last:
            return types.BatchHeader(kind=enums.BatchKind.FINISHED, step=step), []
        self.events.append(f"fetch {step}")
        return make_header(step=step, minibatches=[types.Minibatch(num_tokens=1, num_rows=1)]), []

    def commit_step(
        self, *, step: int, stats: Mapping[str, float], started_at: float, finished_at: float, storage_problem: str = ""
    ) -> None:
        self.events.append(f"commit {step}")
        self.stats[step] = stats
        self.heard.append(storage_problem)
        assert finished_at - started_at == 5.0

    def commit_checkpoint(self, *, step: int, uri: str, seconds: float, final: bool) -> None:
        self.events.append(f"committed {uri}{' final' if final else ''} after {seconds:.0f}")

    def learn(self, header: types.BatchHeader, micro_batches: Sequence[types.MicroBatch]) -> learner.Learned:
        self.events.append(f"learn {header.step}")
        self.clock.tick(5.0)
        return learner.Learned(stats={Stat.LOSS: 0.5}, nonfinite={}, masked={})

    def publish(self, step: int) -> None:
        self.events.append(f"publish {step}")
        self.clock.tick(1.0)
        self._in_flight = True

    def flush(self) -> None:
        self.events.append("flush")
        self.clock.tick(3.0 if self._in_flight else 0.0)
        self._in_flight = False

    def save(self, step: int) -> None:
        self.events.append(f"save {step}")
        self.clock.tick(7.0)
        if step in self._full_at:
            raise errors.CheckpointError("no space left on device")

    def uri(self, step: int) -> str:
        return f"c{step}"

    def export(self) -> None:
        self.events.append("export")

    def offer(self, step: int, *, seconds: float) -> None:
        self._offered = keeping.DurableCheckpoint(step=step, uri=self.uri(step), seconds=seconds)
        self._is_new = True

    def advance(self) -> keeping.DurableCheckpoint | None:
        kept, self._is_new = self._offered if self._is_new else None, False
        return kept

    def settle(self, *, timeout_s: float) -> keeping.DurableCheckpoint | None:
        return self._offered

    def problem(self) -> str:
        return self.storage_problem

    def checkpoint_lag(self, steps: int) -> None:
        self.lags.append(steps)

    def prune(self) -> None:
        self.events.append("prune")

    def step(self, step: int, learned: learner.Learned, stats: Mapping[Stat, float]) -> None:
        self.events.append(f"meter {step}")

    @contextlib.contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        began = self.clock.monotonic()
        try:
            yield
        finally:
            self.waits[reason] = self.waits.get(reason, 0.0) + self.clock.monotonic() - began

    def checkpointed(self, seconds: float, now: float) -> None:
        self.events.append("metered checkpoint")

    def checkpoint_failed(self) -> None:
        self.events.append("metered failure")


def run(
    script: Script, *, publish_every: int = 1, checkpoint_every: int = 0, completed: int = 0, reports: bool = True
) -> enums.ExitCode:
    loop = train.StepLoop(
        config=train.LoopConfig(
            publish_every=publish_every, checkpoint_every=checkpoint_every, export=True, finish_settle_s=7200.0
        ),
        source=script,
        learner=script,
        publisher=script,
        checkpoints=script,
        meter=script if reports else None,
        clock=script.clock,
        completed=completed,
    )
    return loop.run()


def test_a_step_is_committed_before_its_version_exists_and_saved_after_it() -> None:
    script = Script(last=1)
    assert run(script, checkpoint_every=1) is enums.ExitCode.OK
    assert script.events[:9] == [
        "fetch 1",
        "learn 1",
        "commit 1",
        "meter 1",
        "flush",
        "publish 1",
        "save 1",
        "committed c1 after 7",
        "metered checkpoint",
    ]


def test_the_end_is_published_exported_and_committed_last() -> None:
    script = Script(last=1)
    assert run(script) is enums.ExitCode.OK
    assert script.events[5:] == [
        "publish 1",
        "flush",
        "export",
        "save 1",
        "committed c1 final after 7",
        "metered checkpoint",
        "prune",
    ]


def test_each_step_says_what_a_lost_node_would_cost_and_why_checkpoints_do_not_last() -> None:
    script = Script(last=3)
    script.storage_problem = "the store is away"
    run(script, checkpoint_every=2)
    # Steps since the newest checkpoint: as each is finished, and again when one is there.
    assert script.lags == [1, 2, 0, 1, 0]
    assert script.heard == ["the store is away"] * 3


def test_a_checkpoint_of_the_last_step_is_not_written_twice() -> None:
    script = Script(last=2)
    run(script, checkpoint_every=2)
    assert script.events.count("save 2") == 1
    assert [event for event in script.events if event.startswith("committed")] == [
        "committed c2 after 7",
        "committed c2 final after 7",
    ]


def test_a_last_step_between_publishes_is_published_at_the_end() -> None:
    script = Script(last=3)
    run(script, publish_every=2)
    assert [event for event in script.events if event.startswith("publish")] == ["publish 2", "publish 3"]


def test_a_stop_saves_the_completed_step_before_it_waits_for_anything_and_says_that_the_run_can_go_on() -> None:
    script = Script(last=9, stop_at=3)
    assert run(script) is enums.ExitCode.STOPPED_ON_REQUEST
    assert script.events[-5:] == ["save 2", "committed c2 after 7", "metered checkpoint", "prune", "flush"]
    assert "export" not in script.events


def test_a_stop_right_after_a_checkpoint_or_before_the_first_step_writes_nothing() -> None:
    for script, completed in ((Script(last=9, stop_at=1), 0), (Script(last=9, stop_at=5), 4)):
        assert run(script, completed=completed) is enums.ExitCode.STOPPED_ON_REQUEST
        assert script.events == ["flush"]


def test_a_restart_goes_on_after_the_loaded_step() -> None:
    script = Script(last=6)
    run(script, completed=4)
    assert [event for event in script.events if event.startswith("fetch")] == ["fetch 5", "fetch 6"]


def test_waiting_and_what_happens_behind_a_step_are_reported_with_the_next_one() -> None:
    script = Script(last=3)
    run(script, checkpoint_every=1)
    behind = {"policy/loss": 0.5, "wait_s": 2.0, "checkpoint_s": 7.0}
    assert script.stats[1] == {"policy/loss": 0.5, "wait_s": 2.0, "total_s": 2.0 + 5.0}
    assert script.stats[2] == {**behind, "publish_s": 1.0, "total_s": 2.0 + 5.0 + 7.0 + 1.0}, "nothing was in flight"
    assert script.stats[3] == {**behind, "publish_s": 4.0, "total_s": 2.0 + 5.0 + 7.0 + 4.0}


def test_waits_for_batches_and_for_the_publish_before_are_counted_while_they_last() -> None:
    script = Script(last=3)
    run(script)
    # Three batches and the answer that there is no other; two publishes had one before them in flight; the last state.
    assert script.waits == {"batch": 8.0, "publish": 6.0, "checkpoint": 7.0}


def test_the_writing_of_a_checkpoint_is_counted_as_a_wait_even_where_it_fails() -> None:
    script = Script(last=3, full_at=[2])
    run(script, checkpoint_every=1)
    assert script.waits["checkpoint"] == 3 * 7.0


def test_other_ranks_do_the_same_work_and_tell_the_coordinator_nothing() -> None:
    script = Script(last=1)
    run(script, checkpoint_every=1, reports=False)
    assert script.events == ["fetch 1", "learn 1", "flush", "publish 1", "save 1", "prune", "flush", "export", "prune"]


def test_the_first_failure_ends_the_loop() -> None:
    class Broken(Script):
        def publish(self, step: int) -> None:
            raise OSError("store is gone")

    script = Broken(last=3)
    with pytest.raises(OSError, match="store is gone"):
        run(script)
    assert script.events == ["fetch 1", "learn 1", "commit 1", "meter 1", "flush"]


def test_training_goes_on_after_a_checkpoint_that_could_not_be_written_and_the_next_one_is_tried() -> None:
    script = Script(last=4, full_at=[2])
    assert run(script, checkpoint_every=2) is enums.ExitCode.OK
    saves = [event for event in script.events if event.startswith(("save", "metered", "committed"))]
    assert saves[:4] == ["save 2", "metered failure", "save 4", "committed c4 after 7"]
    assert "prune" not in script.events[: script.events.index("save 4")], "the checkpoint before is the only one"


def test_a_third_checkpoint_in_a_row_that_cannot_be_written_ends_the_process() -> None:
    script = Script(last=9, full_at=range(10))
    with pytest.raises(errors.CheckpointError, match="no space left"):
        run(script, checkpoint_every=1)
    assert [event for event in script.events if event.startswith("save")] == ["save 1", "save 2", "save 3"]
    assert script.events.count("metered failure") == 3


def test_a_checkpoint_that_succeeds_forgives_the_failures_before_it() -> None:
    script = Script(last=7, full_at=[1, 2, 4, 5])
    assert run(script, checkpoint_every=1) is enums.ExitCode.OK
    assert script.events.count("metered failure") == 4


@pytest.mark.parametrize("script", [Script(last=2, full_at=[2]), Script(last=9, stop_at=3, full_at=[2])])
def test_a_last_checkpoint_that_cannot_be_written_is_an_error(script: Script) -> None:
    with pytest.raises(errors.CheckpointError):
        run(script)
    assert "metered failure" in script.events
