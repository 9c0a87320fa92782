"""Experiment trackers with the packages that they are for: each holds every point of a history, whatever becomes of the
process that sends them. What is stored is read with the package's own reader, and all traffic is on loopback.
"""

import asyncio
import collections
import contextlib
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

import pytest

from rljob_api import enums, process_config
from rljob_testing import sections, wandb_service
from rljob_testing.ports import free_ports
from rljob_workers.coordinator.trackers import base, follower

LIMIT_S = 280.0
pytestmark = pytest.mark.timeout(900)
Line = Mapping[str, object]
# Values by kind, step and metric.
Points = dict[tuple[str, int, str], list[str]]


def step(number: int, value: float) -> Line:
    # The same step, trained again, is of another time.
    at = 1.7e9 + number + (value / 1000 if math.isfinite(value) else 0.0)
    return {"kind": "step", "at": at, "step": number, "attempt": 1, "value": value}


def evaluation(number: int, value: float) -> Line:
    metrics = {"eval/held_out/accuracy": value}
    return {"kind": "evaluation_metrics", "at": 1.7e9 + number, "step": number, "version": number, "metrics": metrics}


# Steps are trained again after the trainer fell back, and two values are not finite.
HISTORY: Sequence[Line] = [
    evaluation(0, 0.125),
    step(1, 0.5), step(2, math.nan), step(3, math.inf),
    {"kind": "restart", "role": "trainer", "at": 1.7e9 + 4, "step": 3, "resume_step": 1},
    step(2, 2.5), step(3, 3.5),
    evaluation(3, 0.75),
]  # fmt: skip


def expected(history: Sequence[Line]) -> Points:
    found: Points = collections.defaultdict(list)
    for line in history:
        if line["kind"] == "step":
            found["step", int(str(line["step"])), "train/value"].append(written(line["value"]))
        elif line["kind"] == "evaluation_metrics":
            assert isinstance(line["metrics"], dict)
            for name, value in line["metrics"].items():
                found["evaluation", int(str(line["step"])), name].append(written(value))
    return found


def written(value: object) -> str:
    return repr(float(str(value)))


def of_users(home: pathlib.Path) -> dict[str, str]:
    """Return an environment without what tells these packages that a test runs, for which they report nothing."""
    return {**{name: value for name, value in os.environ.items() if name not in TESTED}, "HOME": str(home)}


TESTED = ("PYTEST_CURRENT_TEST", "PYTEST_VERSION", "CI", "WANDB_MODE")


class Silent:
    """A server that takes connections and answers none."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.taken: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.taken.append(self._socket.accept()[0])

    def close(self) -> None:
        # Only a shutdown wakes the thread.
        self._socket.shutdown(socket.SHUT_RDWR)
        for each in (self._socket, *self.taken):
            each.close()


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever asks for anything off loopback ends here and fails the test: no package reports to its makers."""
    proxy = Silent()
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv(name.upper(), proxy.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    yield
    reached = len(proxy.taken)
    proxy.close()
    assert not reached


class Tracked:
    """A history in the state directory of a coordinator that has one tracker, and the tracker's process."""

    def __init__(self, folder: pathlib.Path, type_: str, environment: Mapping[str, str], **config: object) -> None:
        spec = {"name": "mine", "type": type_, "config": config}
        self.config = sections.make_config(process_config.CoordinatorConfig, folder, trackers=[spec])
        self.folder = base.folder(self.config, "mine")
        self.path = folder / "coordinator.json"
        self.path.write_text(self.config.model_dump_json(), encoding="utf-8")
        self._history = pathlib.Path(self.config.state_dir) / "history.jsonl"
        self._history.parent.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log"
        self._environment = {**of_users(folder), **environment, follower.TRACKER_VARIABLE: "mine"}
        self.num_lines = 0

    def append(self, lines: Sequence[Line]) -> None:
        with self._history.open("a") as file:
            for line in lines:
                self.num_lines += 1
                file.write(json.dumps({"seq": self.num_lines, **line}) + "\n")

    def start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "rljob_workers.coordinator.trackers.follower", "--config", str(self.path)]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self._environment, cwd=self.path.parent
            )

    def deliver(self) -> None:
        process = self.start()
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, self.log
        assert follower.delivered(self.folder) == self.num_lines

    @property
    def log(self) -> str:
        return self._log.read_text()

    def read(self, program: str, *arguments: str) -> str:
        command = [sys.executable, "-c", "if 1:\n" + program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self._environment, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout


async def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, "it did not come about in time"
        await asyncio.sleep(0.02)


def of_wandb(tracked: Tracked) -> Points:
    """`wandb leet inspect` prints the records of a run's file; by itself it reports to its makers."""
    program = """
        import os, sys
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        from wandb.cli import cli
        cli.cli(["leet", "inspect", "--json", sys.argv[1]])
    """
    found: Points = collections.defaultdict(list)
    for file in sorted(tracked.folder.glob("wandb/*run-*/run-*.wandb")):
        for line in tracked.read(program, str(file)).splitlines():
            record = json.loads(line)
            if record["type"] == "history":
                add(found, record["history"]["item"])
    return found


def add(found: Points, values: Mapping[str, object]) -> None:
    number = int(str(values["trainer_step"]))
    for name, value in values.items():
        if "/" in name:
            kind = "evaluation" if name.startswith("eval/") else "step"
            found[kind, number, name].append(written(value))


def of_mlflow(tracked: Tracked) -> Points:
    program = """
        import json, os, sys
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        import mlflow
        client = mlflow.MlflowClient(tracking_uri=sys.argv[1])
        (run,) = client.search_runs([client.get_experiment_by_name("rljob").experiment_id])
        assert run.data.tags["rljob.uid"] == "uid", run
        assert run.data.params["maxSteps"], run
        assert (run.info.run_name, run.info.status) == ("job", "FINISHED"), run
        for name in run.data.metrics:
            for each in client.get_metric_history(run.info.run_id, name):
                print(json.dumps({"trainer_step": each.step, name: each.value}))
    """
    return of_lines(tracked.read(program, str(tracked.folder / "mlruns")))


def of_trackio(tracked: Tracked, folder: pathlib.Path | None = None) -> Points:
    program = """
        import json, os, sys
        os.environ["TRACKIO_DIR"] = sys.argv[1]
        import trackio
        from trackio.sqlite_storage import SQLiteStorage
        (run,) = trackio.Api().runs("rljob")
        assert (run.name, run.id) == ("job", "uid"), run
        assert run.config["maxSteps"], run.config
        for row in SQLiteStorage.get_logs("rljob", run.name, run_id=run.id):
            print(json.dumps({"trainer_step": row["step"], **row}))
    """
    return of_lines(tracked.read(program, str(folder or tracked.folder)))


def of_lines(text: str) -> Points:
    found: Points = collections.defaultdict(list)
    for line in text.splitlines():
        add(found, json.loads(line))
    return found


READERS = {"wandb": of_wandb, "mlflow": of_mlflow, "trackio": of_trackio}
OFFLINE: Mapping[str, Mapping[str, object]] = {"wandb": {"mode": "Offline"}, "mlflow": {}, "trackio": {}}


@pytest.fixture(params=READERS)
def tracked(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Tracked:
    return Tracked(tmp_path, request.param, {}, **OFFLINE[request.param])


def points_of(tracked: Tracked) -> Points:
    (spec,) = tracked.config.spec.observability.trackers
    return READERS[spec.type](tracked)


def assert_complete(found: Points, history: Sequence[Line], *, repeated: bool = False) -> None:
    """Each value of the history is there as often as in the history; where points may come again, at least once."""

    def counted(points: Points) -> Mapping[object, object]:
        return {key: set(values) if repeated else sorted(values) for key, values in points.items()}

    assert counted(found) == counted(expected(history))


def test_each_holds_every_point_of_a_history_and_continues_its_run_in_a_later_process(tracked: Tracked) -> None:
    tracked.append(HISTORY)
    tracked.deliver()
    tracked.append([step(4, 4.5)])
    tracked.deliver()
    assert_complete(points_of(tracked), [*HISTORY, step(4, 4.5)])


async def killed_amid(tracked: Tracked) -> Sequence[Line]:
    """Kill the process once it has stored a first batch of lines, and return all of them."""
    lines = [step(number, number + 0.5) for number in range(1, 201)]
    tracked.append(lines)
    process = tracked.start()
    await until(lambda: process.poll() is not None or follower.delivered(tracked.folder) > 0)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, tracked.log
    assert follower.delivered(tracked.folder) < tracked.num_lines, "it was killed too late to show anything"
    return lines


async def test_a_process_killed_amid_a_history_leaves_nothing_out(tracked: Tracked) -> None:
    lines = await killed_amid(tracked)
    await asyncio.to_thread(tracked.deliver)
    assert_complete(points_of(tracked), lines, repeated=True)


async def test_trackio_has_each_point_once_also_after_a_kill(tmp_path: pathlib.Path) -> None:
    tracked = Tracked(tmp_path, "trackio", {})
    lines = await killed_amid(tracked)
    # As if it had been killed before it noted what it had stored.
    (tracked.folder / "delivered").unlink()
    await asyncio.to_thread(tracked.deliver)
    assert_complete(of_trackio(tracked), lines)


@pytest.fixture
async def trackio_server(tmp_path: pathlib.Path) -> AsyncIterator[tuple[str, pathlib.Path]]:
    """A server of Trackio's own, and its folder."""
    (port,) = free_ports(1)
    folder = tmp_path / "server"
    program = """
        import sys, trackio.server, uvicorn
        app, _ = trackio.server.build_starlette_app_only()
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]))
    """
    environment = {**of_users(tmp_path), "TRACKIO_DIR": str(folder), "TRACKIO_WRITE_TOKEN": TOKEN}
    with (tmp_path / "server.log").open("wb") as log:
        command = [sys.executable, "-c", "if 1:\n" + program, str(port)]
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        await until(lambda: server.poll() is not None or listens(port))
        yield f"http://127.0.0.1:{port}", folder
    finally:
        server.kill()
        server.wait()


TOKEN = "a-token-that-no-line-may-hold"


def listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


async def test_trackios_own_server_gets_each_point_once(
    trackio_server: tuple[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    url, folder = trackio_server
    tracked = Tracked(tmp_path, "trackio", {"TRACKIO_WRITE_TOKEN": TOKEN}, serverUrl=url)
    tracked.append(HISTORY)
    await asyncio.to_thread(tracked.deliver)
    (tracked.folder / "delivered").unlink()
    await asyncio.to_thread(tracked.deliver)
    assert_complete(of_trackio(tracked, folder), HISTORY)
    assert TOKEN not in tracked.log


@pytest.fixture
def service() -> Iterator[wandb_service.Service]:
    with wandb_service.served() as service:
        yield service


def online(service: wandb_service.Service, folder: pathlib.Path) -> Tracked:
    environment = {"WANDB_BASE_URL": service.url, "WANDB_API_KEY": wandb_service.KEY}
    return Tracked(folder, "wandb", environment, project="arithmetic", entity="team", tags=["small"])


def arrived(service: wandb_service.Service) -> Points:
    found: Points = collections.defaultdict(list)
    for _, line in sorted(service.history.items()):
        add(found, line)
    return found


def test_an_online_run_of_wandb_arrives_whole_and_is_continued_under_the_uid_of_the_job(
    service: wandb_service.Service, tmp_path: pathlib.Path
) -> None:
    tracked = online(service, tmp_path)
    tracked.append(HISTORY)
    tracked.deliver()
    assert_complete(arrived(service), HISTORY)
    tracked.append([step(4, 4.5)])
    tracked.deliver()
    assert_complete(arrived(service), [*HISTORY, step(4, 4.5)])
    (name,) = service.runs
    said = service.runs[name]
    assert (name, said["entity"], said["project"], said["displayName"]) == ("uid", "team", "arithmetic", "job")
    assert "maxSteps" in str(said["config"])
    assert wandb_service.KEY not in tracked.log


async def test_what_a_killed_process_of_wandb_did_not_upload_is_uploaded_by_the_next(
    service: wandb_service.Service, tmp_path: pathlib.Path
) -> None:
    tracked = online(service, tmp_path)
    lines = await killed_amid(tracked)
    assert len(service.history) < follower.delivered(tracked.folder), "it left nothing to upload"
    await asyncio.to_thread(tracked.deliver)
    assert_complete(arrived(service), lines, repeated=True)
    assert len(list(tracked.folder.glob("wandb/run-*/run-uid.wandb.synced"))) == 2


def test_files_of_an_offline_run_of_wandb_are_uploaded_by_the_job_once_it_is_online(
    service: wandb_service.Service, tmp_path: pathlib.Path
) -> None:
    offline = Tracked(tmp_path, "wandb", {}, mode="Offline")
    for lines in (HISTORY, [step(4, 4.5)]):
        offline.append(lines)
        offline.deliver()
    assert service.history == {}
    later = online(service, tmp_path)
    later.num_lines = offline.num_lines
    later.append([step(5, 5.5)])
    later.deliver()
    assert_complete(arrived(service), [*HISTORY, step(4, 4.5), step(5, 5.5)])


def test_an_online_run_of_wandb_without_a_key_ends_with_what_to_set(tmp_path: pathlib.Path) -> None:
    tracked = Tracked(tmp_path, "wandb", {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": ""})
    process = tracked.start()
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == enums.ExitCode.CONFIGURATION, tracked.log
    assert "has no key: set WANDB_API_KEY in spec.coordinator.pod.env, from a Secret" in tracked.log


@pytest.fixture
def silent() -> Iterator[Mapping[str, Silent]]:
    servers = {type_: Silent() for type_ in READERS}
    yield servers
    for server in servers.values():
        server.close()


async def test_services_that_do_not_answer_leave_a_coordinator_that_serves_and_ends_in_order(
    silent: Mapping[str, Silent], tmp_path: pathlib.Path
) -> None:
    specs = [
        {"name": "board", "type": "wandb"},
        {"name": "server", "type": "mlflow", "config": {"trackingUri": silent["mlflow"].url}},
        {"name": "space", "type": "trackio", "config": {"serverUrl": silent["trackio"].url}},
    ]
    records = [{"id": str(number), "prompt": f"{number}=", "answer": "1"} for number in range(20)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    control, store, health = free_ports(3)
    ports = {"control_port": control, "store_port": store, "health_port": health, "health_host": "127.0.0.1"}
    config = sections.make_config(
        process_config.CoordinatorConfig,
        tmp_path,
        {"data.train": [{"name": "train", "path": "train.jsonl", "maxPromptTokens": 56}]},
        trackers=specs,
    ).model_copy(update={**ports, "store_address": f"127.0.0.1:{store}"})
    path, log = tmp_path / "coordinator.json", tmp_path / "log"
    path.write_text(config.model_dump_json(), encoding="utf-8")
    history = pathlib.Path(config.state_dir) / "history.jsonl"
    history.parent.mkdir(parents=True, exist_ok=True)
    history.write_text(json.dumps({"seq": 1, **step(1, 0.5)}) + "\n")
    secrets = {"WANDB_BASE_URL": silent["wandb"].url, "WANDB_API_KEY": wandb_service.KEY}
    with log.open("wb") as file:
        command = [sys.executable, "-m", "rljob_workers.coordinator", "--config", str(path)]
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**of_users(tmp_path), **secrets})
    try:
        await until(lambda: process.poll() is not None or "served on port" in log.read_text())
        await until(lambda: process.poll() is not None or all(server.taken for server in silent.values()))
        assert process.poll() is None, log.read_text()
        process.terminate()
        assert await asyncio.to_thread(process.wait, LIMIT_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    for spec in specs:
        assert f"tracker '{spec['name']}' ({spec['type']}) has not stored lines 1 to 1 of" in log.read_text()
    assert wandb_service.KEY not in log.read_text()
