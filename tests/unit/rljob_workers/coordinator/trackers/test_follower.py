"""A tracker gets each point of the history at least once, whatever happens to it, and once if nothing does."""

import contextlib
import json
import math
import pathlib
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest
from tensorboardX.proto import event_pb2

from rljob_api import errors, process_config
from rljob_api.manifest import trackers
from rljob_testing import packages
from rljob_workers.coordinator import __main__ as program
from rljob_workers.coordinator.trackers import base, follower, tensorboard
from rljob_workers.local.checks import missing

STEPS = 150
RESTART = {"kind": "restart", "role": "trainer", "at": 9.0, "step": 3, "resume_step": 1}


def step(number: int, **values: object) -> dict[str, object]:
    return {"kind": "step", "at": float(number), "step": number, "attempt": 1, "reward_mean": 0.5, **values}


def write(path: pathlib.Path, lines: list[dict[str, object]], *, first_seq: int = 1) -> None:
    with path.open("a", encoding="utf-8") as file:
        for seq, line in enumerate(lines, start=first_seq):
            file.write(json.dumps({"seq": seq, **line}) + "\n")


class Log:
    """What trackers of one run logged, and what of it they stored. `calls`: how many more succeed."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.num_stored = 0
        self.calls = math.inf

    @property
    def stored(self) -> list[str]:
        return self.events[: self.num_stored]


class Remembering(base.Tracker):
    def __init__(self, log: Log) -> None:
        self._log = log

    def _call(self) -> None:
        self._log.calls -= 1
        if self._log.calls < 0:
            raise ConnectionError("https://user:a-key@service")

    def log(self, point: base.Point) -> None:
        self._call()
        self._log.events.append(str(point.step))

    def rewind(self, step: int) -> None:
        self._call()
        self._log.events.append(f"rewind {step}")

    def flush(self) -> None:
        self._call()
        self._log.num_stored = len(self._log.events)

    def close(self) -> None:
        self._call()


@pytest.fixture
def history(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "history.jsonl"


def started(history: pathlib.Path, log: Log) -> follower.Follower:
    return follower.Follower(history, history.parent, Remembering(log), follower.Bound("tracker 'mine'"))


def test_points_come_once_and_in_order_and_a_later_process_continues_after_them(history: pathlib.Path) -> None:
    log = Log()
    write(history, [step(number) for number in range(1, STEPS + 1)])
    one = started(history, log)
    one.deliver()
    one.deliver()
    write(history, [step(STEPS + 1)], first_seq=STEPS + 1)
    one.deliver()
    write(history, [step(STEPS + 2)], first_seq=STEPS + 2)
    started(history, log).deliver()
    assert log.stored == [str(number) for number in range(1, STEPS + 3)]


# Flushes are the calls 64, 129 and the last.
@pytest.mark.parametrize("calls", [0, 1, 63, 64, 65, 128, 129, 130, STEPS + 1, STEPS + 2, STEPS + 3])
def test_a_tracker_that_fails_at_any_call_gets_everything_since_its_last_flush_again(
    history: pathlib.Path, calls: int
) -> None:
    log = Log()
    log.calls = calls
    write(history, [step(number) for number in range(1, STEPS + 1)])
    with contextlib.suppress(errors.UnavailableError):
        started(history, log).deliver()
    marked, kept = follower.delivered(history.parent), log.stored
    assert kept[-1:] == ([str(marked)] if marked else [])
    # What was not stored by then may have been lost with the process.
    log.events, log.calls = kept, math.inf
    started(history, log).deliver()
    assert log.stored == [str(number) for number in range(1, STEPS + 1)]


def test_a_tracker_that_dies_between_storing_and_the_mark_gets_the_points_a_second_time(history: pathlib.Path) -> None:
    log = Log()
    write(history, [step(1), step(2)])
    started(history, log).deliver()
    (history.parent / "delivered").write_text("1\n")
    started(history, log).deliver()
    assert log.stored == ["1", "2", "2"]


def test_a_line_that_is_being_written_comes_when_it_is_whole(history: pathlib.Path) -> None:
    log = Log()
    write(history, [step(1), step(2)])
    whole = history.read_bytes()
    history.write_bytes(whole[:-9])
    one = started(history, log)
    one.deliver()
    assert log.stored == ["1"]
    # A writer that starts again cuts it off first.
    history.write_bytes(whole[: whole.index(b"\n") + 1])
    one.deliver()
    history.write_bytes(whole)
    one.deliver()
    assert log.stored == ["1", "2"]


def test_a_history_that_lost_its_end_in_a_crash_is_not_logged_again_when_it_is_written_again(
    history: pathlib.Path,
) -> None:
    log = Log()
    write(history, [step(1), step(2)])
    whole = history.read_bytes()
    one = started(history, log)
    one.deliver()
    history.write_bytes(b"")
    one.deliver()
    history.write_bytes(whole)
    write(history, [step(3)], first_seq=3)
    one.deliver()
    assert log.stored == ["1", "2", "3"]


def test_a_trainer_that_fell_back_is_a_rewind_before_the_steps_that_come_again(history: pathlib.Path) -> None:
    log = Log()
    restart = {"kind": "restart", "role": "rollout", "at": 1.0, "pod": "rollout-0"}
    write(history, [step(1), step(2), step(3), restart, RESTART, step(2)])
    started(history, log).deliver()
    assert log.stored == ["1", "2", "3", "rewind 1", "2"]


def test_a_line_that_is_no_json_is_skipped_with_a_warning(
    history: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    write(history, [step(1)])
    with history.open("a") as file:
        file.write('{"seq":2,"kind\n')
    write(history, [step(3)], first_seq=3)
    started(history, log).deliver()
    assert log.stored == ["1", "3"]
    assert "skipped a line of the history that is not JSON (15 bytes)" in caplog.text


def test_text_of_an_exception_is_not_in_the_error_for_it_may_hold_a_key(history: pathlib.Path) -> None:
    log = Log()
    log.calls = 0
    write(history, [step(1)])
    with pytest.raises(errors.UnavailableError) as caught:
        started(history, log).deliver()
    assert str(caught.value).startswith("tracker 'mine': log raised ConnectionError at test_follower.py:")
    assert "key" not in str(caught.value)


def test_a_call_that_does_not_return_ends_the_process_and_says_where_it_was() -> None:
    program = """
        import logging, threading
        from rljob_workers.coordinator.trackers import follower
        logging.basicConfig()
        def upload():
            threading.Event().wait()
        with follower.Bound("tracker 'mine'", call_s=0.01)("flush"):
            upload()
    """
    ended = subprocess.run(
        [sys.executable, "-c", "if 1:\n" + program], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 75
    assert "tracker 'mine': flush has not returned within 0 s (threading.py:" in ended.stderr


def test_numbers_of_a_step_are_metrics_with_a_slash_in_their_names() -> None:
    line = step(
        4, seq=9, packed_at=1.0, rewards={"right": 0.25}, staleness={"0": 3}, generate=[[1.0, 2.0]], final=True,
        **{"actor/rewards": 0.5, "stats": {"policy/clip_low": 0.1, "loss": -0.5}},
    )  # fmt: skip
    assert base.point(line) == base.Point(
        kind="step",
        step=4,
        at=4.0,
        metrics={
            "train/reward_mean": 0.5, "train/rewards/right": 0.25, "train/staleness/0": 3.0, "actor/rewards": 0.5,
            "policy/clip_low": 0.1, "train/loss": -0.5,
        },
    )  # fmt: skip
    evaluated = {"kind": "evaluation_metrics", "at": 2.0, "step": 0, "version": 0, "metrics": {"eval/s/accuracy": 1}}
    assert base.point(evaluated) == base.Point(kind="evaluation", step=0, at=2.0, metrics={"eval/s/accuracy": 1.0})
    assert base.point({"kind": "version", "step": 1, "at": 1.0, "bytes": 5}) is None


def events(folder: pathlib.Path) -> Iterator[event_pb2.Event]:
    """Yield the events of a folder as TensorBoard reads them, file by file in the order of their names.

    A record: length, its checksum, data, their checksum.
    """
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            length, checksum = struct.unpack("<QI", data[:12])
            assert checksum == masked_crc32c(data[:8])
            body, data = data[12 : 12 + length], data[12 + length :]
            assert struct.unpack("<I", data[:4]) == (masked_crc32c(body),)
            data = data[4:]
            yield event_pb2.Event.FromString(body)


def masked_crc32c(data: bytes) -> int:
    """Castagnoli's CRC (RFC 3720, B.4), bit by bit, masked as TFRecord files have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_tensorboard_reads_points_with_their_steps_and_forgets_the_steps_of_a_rewind(tmp_path: pathlib.Path) -> None:
    assert masked_crc32c(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
    run = base.Run(namespace="n", name="j", uid="u", spec={}, folder=tmp_path)
    tracker = tensorboard.TensorBoardTracker(run, trackers.TensorBoardOptions())
    tracker.log(base.Point(kind="step", step=1, at=10.0, metrics={"train/loss": 0.5, "actor/rewards": math.nan}))
    tracker.log(base.Point(kind="step", step=2, at=11.0, metrics={"train/loss": 0.25}))
    tracker.log(base.Point(kind="evaluation", step=2, at=11.5, metrics={"eval/s/accuracy": 1.0}))
    tracker.rewind(1)
    tracker.log(base.Point(kind="step", step=2, at=12.0, metrics={"train/loss": 0.125}))
    tracker.flush()
    (_, evaluated) = events(tmp_path / "evaluation")
    assert (evaluated.step, evaluated.summary.value[0].tag) == (2, "eval/s/accuracy")
    found = [event for event in events(tmp_path) if event.WhichOneof("what") != "file_version"]
    assert [(event.step, event.WhichOneof("what")) for event in found] == [
        (1, "summary"), (2, "summary"), (2, "session_log"), (2, "summary"),
    ]  # fmt: skip
    assert found[2].session_log.status == found[2].session_log.START
    first = {value.tag: value.simple_value for value in found[0].summary.value}
    assert first["train/loss"] == 0.5
    assert math.isnan(first["actor/rewards"])
    assert [event.wall_time for event in (found[0], found[1], found[3])] == [10.0, 11.0, 12.0]
    again = tensorboard.TensorBoardTracker(run, trackers.TensorBoardOptions())
    again.close()
    assert len(list(events(tmp_path))) == len(found) + 3
    tracker.close()


def spec_of(type_: str, **config: object) -> trackers.TrackerSpec:
    return trackers.TrackerSpec.model_validate({"name": "mine", "type": type_, "config": config})


@pytest.mark.parametrize(
    ("entry", "config", "problem"),
    [
        ("", {}, "no package that is installed here declares it as an entry point of 'rljob.trackers'"),
        ("boards:Absent", {}, "boards:Absent cannot be imported"),
        ("boards:NUMBER", {}, "not a subclass of rljob_workers.coordinator.trackers.base.Tracker"),
        ("boards:Board", {"nmae": 1}, r"\[mine\]\.config\.nmae is 1, but plugin:board has no such option; it has none"),
    ],
)  # fmt: skip
def test_a_plugin_that_cannot_be_used_is_refused_with_its_field(
    entry: str, config: Mapping[str, object], problem: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = """
        from rljob_workers.coordinator.trackers import tensorboard
        NUMBER = 1
        class Board(tensorboard.TensorBoardTracker):
            options = tensorboard.base.Tracker.options
    """
    entries = f"[rljob.trackers]\nboard = {entry}\n" if entry else ""
    packages.install(tmp_path, "boards", entry_points=entries, module=module)
    packages.put_on_path(tmp_path, monkeypatch)
    with pytest.raises(errors.ManifestError, match=problem):
        base.find(spec_of("plugin:board", **config))


@pytest.mark.parametrize("type_", trackers.OPTIONS)
def test_each_type_of_the_manifest_is_registered_with_the_options_that_are_checked(type_: str) -> None:
    assert base.find(spec_of(type_)).options is trackers.OPTIONS[type_]


def test_one_that_is_not_installed_is_refused_by_the_plan_and_by_the_check_of_the_coordinator(
    make_config: Callable[..., process_config.CoordinatorConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(trackers=[{"name": "mine", "type": "plugin:absent"}, {"name": "b", "type": "tensorboard"}])
    (problem,) = missing.entry_points(config.spec)
    assert problem.startswith(
        "spec.observability.trackers[mine].type is 'plugin:absent', but no package that is installed here declares it"
    )
    assert program.check(config) == 2
    assert capsys.readouterr().err == f"error: {problem}\n"
