"""Checkpoints against a real S3 server (MinIO): round trip, kills, outages, wrong bytes, wrong keys, retention."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from rljob_api import enums, errors, process_config
from rljob_testing import charts, minio
from rljob_testing import stored_checkpoints as made
from rljob_testing.sections import make_config
from rljob_workers.runtime import clock as clocks
from rljob_workers.trainer.state import remote

pytestmark = pytest.mark.timeout(240)
_WAIT_S = 180.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[minio.Minio]:
    charts.program_or_skip("minio")
    running = minio.Minio(tmp_path_factory.mktemp("minio"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def uri(server: minio.Minio, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A bucket of its own, which the keys of this process open."""
    for name, value in server.keys.items():
        monkeypatch.setenv(name, value)
    return server.make_bucket(f"bucket-{abs(hash(request.node.name)) % 10**9}")


def test_a_checkpoint_comes_back_as_it_was_sent(server: minio.Minio, uri: str, tmp_path: pathlib.Path) -> None:
    store = made.open_store(uri, server.endpoint)
    node = made.node_of(tmp_path / "node")
    made.upload(store, node, 3)
    resumed = made.restore(store, tmp_path / "fresh")
    assert resumed.checkpoint is not None
    assert resumed.uri == f"{uri}/{made.RUN}/checkpoints/step-000000003-000001"
    assert made.contents(resumed.checkpoint.path) == made.contents(node.path(3))


def test_only_what_the_manifest_keeps_stays(server: minio.Minio, uri: str, tmp_path: pathlib.Path) -> None:
    store = made.open_store(uri, server.endpoint)
    made.upload(store, made.node_of(tmp_path), 1, 2, 3, keep_last=2)
    folders = {entry.key.partition("/")[0] for entry in made.open_folder(uri, server.endpoint).entries()}
    assert folders == {"step-000000002-000001", "step-000000003-000001"}


def test_wrong_bytes_in_one_object_cost_that_checkpoint_and_name_the_object(
    server: minio.Minio, uri: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = made.open_store(uri, server.endpoint)
    made.upload(store, made.node_of(tmp_path / "node"), 3, 4)
    broken = f"{remote.name_of(made.progress_of(4))}/{made.own_file(0)}"
    made.open_folder(uri, server.endpoint).write(broken, b"x" * 1000)
    resumed = made.restore(store, tmp_path / "fresh")
    assert resumed.checkpoint is not None
    assert resumed.checkpoint.progress.step == 3
    assert f"{uri}/{made.RUN}/checkpoints/{broken} holds other bytes than were written" in caplog.text


_SENDER = """
import pathlib, sys
from rljob_testing import stored_checkpoints as made
uri, endpoint, node = sys.argv[1:]
local = made.node_of(pathlib.Path(node)).at(5)
made.open_store(uri, endpoint).send_part(local, 0, print)
"""


def test_an_upload_that_is_killed_goes_on_without_what_is_there(
    server: minio.Minio, uri: str, tmp_path: pathlib.Path
) -> None:
    node, num_files, num_bytes = made.node_of(tmp_path / "node"), 8, 8 << 20
    made.write(node, 5, num_bytes=10)
    for index in range(num_files):
        (node.path(5) / f"state/large-{index}").write_bytes(os.urandom(num_bytes))
    node.adopt(node.path(5).rename(tmp_path / "node" / "work"), made.progress_of(5))
    folder = made.open_folder(uri, server.endpoint).below(remote.name_of(made.progress_of(5)))
    sender = subprocess.Popen(
        [sys.executable, "-c", _SENDER, uri, server.endpoint, str(tmp_path / "node")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
    )
    record: dict[str, dict[str, str]] = {}
    deadline = time.monotonic() + _WAIT_S
    while len(record) < 2:
        assert time.monotonic() < deadline
        assert sender.poll() is None, "it was through before it could be killed"
        record = json.loads(folder.read(".rank-00000.json") or b"{}").get("files", {})
        time.sleep(0.01)
    sender.send_signal(signal.SIGKILL)
    sender.wait()
    store, local, sent = made.open_store(uri, server.endpoint), node.at(5), list[int]()
    assert store.whole() == []
    assert local is not None
    record = json.loads(folder.read(".rank-00000.json") or b"{}")["files"]
    store.send_part(local, 0, sent.append)
    assert 0 < len(sent) < num_files + 2
    assert len(sent) + len(record) == num_files + 2
    store.seal(local.progress, store.parts(local.progress, 1))
    resumed = made.restore(store, tmp_path / "fresh")
    assert resumed.checkpoint is not None
    assert made.contents(resumed.checkpoint.path) == made.contents(node.path(5))


def test_training_goes_on_while_the_server_is_away_and_the_checkpoint_follows(
    server: minio.Minio, uri: str, tmp_path: pathlib.Path
) -> None:
    store, node, meter = made.open_store(uri, server.endpoint), made.node_of(tmp_path / "node"), made.Meter()

    def body(rank: made.Rank) -> None:
        keeper = made.uploader(store, node, rank, clock=clocks.SystemClock(), meter=meter)
        server.stop()
        made.write(node, 4)
        keeper.offer(step=4, seconds=0.0)
        deadline = time.monotonic() + _WAIT_S
        while not keeper.problem():
            assert time.monotonic() < deadline
            assert keeper.advance() is None
            time.sleep(0.05)
        assert "the service cannot be reached" in keeper.problem()
        server.start()
        kept = keeper.settle(timeout_s=_WAIT_S)
        assert kept is not None
        assert kept.step == 4
        assert keeper.problem() == ""
        keeper.close()

    try:
        made.on_ranks(1, body)
    finally:
        server.stop()
        server.start()
    assert meter.failures >= 1
    assert [each.progress.step for each in store.whole()] == [4]


@pytest.mark.parametrize(
    ("bucket", "keys", "problem"),
    [
        ("", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "the keys of the environment do not open it (SignatureDoesNotMatch)"),
        ("", {"AWS_ACCESS_KEY_ID": "nobody"}, "the keys of the environment do not open it (InvalidAccessKeyId)"),
        ("s3://no-such-bucket", {}, "there is no such bucket"),
    ],
    ids=["wrong secret", "unknown key", "no bucket"],
)
def test_a_store_that_cannot_be_used_ends_the_trainer_before_anything_is_loaded(
    server: minio.Minio, uri: str, tmp_path: pathlib.Path, bucket: str, keys: dict[str, str], problem: str
) -> None:
    place = bucket or uri
    config = make_config(
        process_config.TrainerConfig,
        tmp_path,
        {
            "storage.type": "Persistent",
            "storage.checkpoints": {"uri": f"{place}/here"},
            "storage.s3": {"endpoint": server.endpoint},
        },
    )
    (tmp_path / "role.json").write_text(config.model_dump_json())
    ended = subprocess.run(
        [sys.executable, "-m", "rljob_workers.trainer", "--config", str(tmp_path / "role.json")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **keys},
        capture_output=True,
        text=True,
        timeout=_WAIT_S,
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == enums.ExitCode.CONFIGURATION, said
    assert f"spec.storage.checkpoints.uri is '{place}/here', but the trainer cannot write to" in said
    assert problem in said
    assert server.keys["AWS_SECRET_ACCESS_KEY"] not in said


def test_a_refused_key_is_no_error_that_is_asked_again(
    server: minio.Minio, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    folder = made.open_folder(uri, server.endpoint)
    for ask in (folder.entries, lambda: folder.read("a"), lambda: folder.find("a"), lambda: folder.write("a", b"")):
        with pytest.raises(errors.StorageAccessError):
            ask()
