"""Trackers as processes: ended and started again as it happens, with the coordinator none the worse for it."""

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from rljob_api import process_config
from rljob_testing import packages
from rljob_testing.ports import free_ports
from rljob_workers.coordinator.trackers import base, follower, processes
from rljob_workers.runtime import clock

_LIMIT_S = 100.0
KEY = "a-key-that-no-line-may-hold"
# `Killed` dies once, after it has stored points and before that is known.
MODULE = f"""
    import os, signal, threading
    from rljob_workers.coordinator.trackers import base

    class Recorder(base.Tracker):
        def __init__(self, run, config):
            self._run, self._file = run, (run.folder / "log").open("a")
        def log(self, point):
            print(point.step, file=self._file)
        def rewind(self, step):
            print("rewind", step, file=self._file)
        def flush(self):
            self._file.flush()
        def close(self):
            self._file.close()

    class Killed(Recorder):
        def flush(self):
            super().flush()
            if not (self._run.folder / "killed").exists():
                (self._run.folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)

    class Raising(Recorder):
        def log(self, point):
            raise ConnectionError("{KEY}")

    class Hanging(Recorder):
        def log(self, point):
            (self._run.folder / "hangs").touch()
            threading.Event().wait()

    class Dying(Recorder):
        def __init__(self, run, config):
            os.kill(os.getpid(), signal.SIGKILL)
"""
KINDS = ("recorder", "killed", "raising", "hanging", "dying")
MakeConfig = Callable[..., process_config.CoordinatorConfig]


class ImpatientClock(clock.SystemClock):
    """Sleeps for no time, and remembers for how long it should have; `sleeps` many end the sleeper."""

    def __init__(self, sleeps: int = 1000) -> None:
        self.delays: list[float] = []
        self._sleeps = sleeps

    async def sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        if len(self.delays) == self._sleeps:
            raise asyncio.CancelledError
        await asyncio.sleep(0)


class Stage:
    """A config with a tracker of each kind, and a history of three steps."""

    def __init__(self, config: process_config.CoordinatorConfig, folder: pathlib.Path) -> None:
        self.config, self.path = config, folder / "coordinator.json"
        self.path.write_text(config.model_dump_json(), encoding="utf-8")
        self.history = pathlib.Path(config.state_dir) / "history.jsonl"
        self.history.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"seq": number, "kind": "step", "at": 1.0, "step": number, "x": 1} for number in (1, 2, 3)]
        self.history.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def process(self, name: str, **changes: object) -> processes.TrackerProcess:
        (spec,) = (each for each in self.config.spec.observability.trackers if each.name == name)
        made: dict[str, object] = {"config_path": self.path, "clock": ImpatientClock(), "grace_s": _LIMIT_S, **changes}
        return processes.TrackerProcess(spec, **made)  # type: ignore[arg-type]  # arguments by name

    def folder(self, name: str) -> pathlib.Path:
        return base.folder(self.config, name)

    def logged(self, name: str) -> list[str]:
        log = self.folder(name) / "log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def stage(make_config: MakeConfig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    entries = "[rljob.trackers]\n" + "".join(f"{kind} = boards:{kind.capitalize()}\n" for kind in KINDS)
    packages.install(tmp_path, "boards", entry_points=entries, module=MODULE)
    packages.put_on_path(tmp_path, monkeypatch)
    trackers = [{"name": kind, "type": f"plugin:{kind}"} for kind in KINDS]
    control, store, health = free_ports(3)
    ports = {"control_port": control, "store_port": store, "health_port": health, "health_host": "127.0.0.1"}
    config = make_config(trackers=trackers).model_copy(update={**ports, "store_address": f"127.0.0.1:{store}"})
    return Stage(config, tmp_path)


@contextlib.asynccontextmanager
async def running(process: processes.TrackerProcess) -> AsyncIterator[None]:
    task = asyncio.create_task(process.run())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await process.close()


async def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + _LIMIT_S
    while not holds():
        assert time.monotonic() < end, "it did not come about in time"
        await asyncio.sleep(0.02)


async def test_a_process_that_is_left_alone_delivers_each_step_once(stage: Stage) -> None:
    async with running(stage.process("recorder")):
        await until(lambda: follower.delivered(stage.folder("recorder")) == 3)
        with stage.history.open("a") as file:
            file.write('{"seq": 4, "kind": "step", "at": 1.0, "step": 4, "x": 1}\n')
    assert stage.logged("recorder") == ["1", "2", "3", "4"]
    assert follower.delivered(stage.folder("recorder")) == 4


async def test_a_process_killed_between_storing_and_its_mark_delivers_again_and_loses_nothing(stage: Stage) -> None:
    async with running(stage.process("killed")):
        await until(lambda: follower.delivered(stage.folder("killed")) == 3)
    assert stage.logged("killed") == ["1", "2", "3", "1", "2", "3"]


async def test_delays_between_starts_grow_to_a_minute_and_one_that_cannot_work_is_not_started_again(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    patient = ImpatientClock(sleeps=10)
    with pytest.raises(asyncio.CancelledError):
        await stage.process("recorder", clock=patient, command=("false",)).run()
    assert 0.5 <= patient.delays[0] <= 1.0
    assert all(30.0 <= delay <= 60.0 for delay in patient.delays[7:])
    assert "tracker 'recorder' (plugin:recorder) exited with code 1 and is started again in" in caplog.text
    once = ImpatientClock()
    await stage.process("recorder", clock=once, command=("sh", "-c", "exit 78")).run()
    assert len(once.delays) == 1
    assert "exited with code 78 and is not started again; training is not affected" in caplog.text


async def test_one_that_cannot_be_started_at_all_is_a_line_of_the_log(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    patient = ImpatientClock(sleeps=2)
    with pytest.raises(asyncio.CancelledError):
        await stage.process("recorder", clock=patient, command=("/no/program",)).run()
    assert "code none, for it could not be started: No such file or directory" in caplog.text


async def test_the_end_delivers_what_is_left_also_where_no_process_runs(stage: Stage) -> None:
    await stage.process("recorder").close()
    assert stage.logged("recorder") == ["1", "2", "3"]


async def test_a_process_that_hangs_is_killed_at_the_end(stage: Stage) -> None:
    process = stage.process("hanging", grace_s=0.01)
    async with running(process):
        await until((stage.folder("hanging") / "hangs").exists)
        pid = process.pid
        assert pid is not None
    assert process.pid is None
    assert not pathlib.Path(f"/proc/{pid}").exists()


@pytest.fixture
def coordinator(stage: Stage) -> Iterator["subprocess.Popen[bytes]"]:
    with (stage.path.parent / "log").open("wb") as log:
        command = [sys.executable, "-m", "rljob_workers.coordinator", "--config", str(stage.path)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        yield process
        process.kill()
        process.wait()


async def test_trackers_that_hang_raise_and_die_leave_a_coordinator_that_serves_and_ends_in_order(
    stage: Stage, coordinator: "subprocess.Popen[bytes]"
) -> None:
    log = stage.path.parent / "log"
    await until(lambda: "served on port" in log.read_text())
    await until((stage.folder("hanging") / "hangs").exists)
    await until(
        lambda: all(f"tracker '{name}' (plugin:{name}) exited" in log.read_text() for name in ("raising", "dying"))
    )
    await until(lambda: follower.delivered(stage.folder("recorder")) == 3)
    assert coordinator.poll() is None
    os.kill(coordinator.pid, signal.SIGTERM)
    assert await asyncio.to_thread(coordinator.wait, _LIMIT_S) == 0
    text = log.read_text()
    for name in ("raising", "hanging", "dying"):
        assert f"tracker '{name}' (plugin:{name}) has not stored lines 1 to" in text
    assert "tracker 'recorder' (plugin:recorder) has not" not in text
    assert "tracker 'raising' (plugin:raising): log raised ConnectionError at boards.py:" in text
    assert KEY not in text
    assert stage.logged("recorder") == ["1", "2", "3"]
