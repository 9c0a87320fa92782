import json
import pathlib
import socket
from collections.abc import Iterator

import pytest

from rljob_api import enums, process_config
from rljob_workers.runtime import health, metrics, stop


class Process:
    """A role's health server that closes after it has been asked how it is `polls` times."""

    def __init__(self, *, polls: int, token_file: pathlib.Path) -> None:
        self.asked, self.token_file = False, token_file
        self._left = polls
        self.server = health.HealthServer(
            host="127.0.0.1",
            port=0,
            metrics=metrics.Metrics(
                role=enums.Role.TRAINER, job=process_config.JobIdentity(name="j", namespace="n", uid="u")
            ),
            ready=lambda: (True, "ok"),
            on_stop=self._on_stop,
            token_file=token_file,
        )
        self.server.start()
        self.port, self.token = self.server.port, health.stop_token(token_file)
        self.open = True

    def _on_stop(self) -> None:
        self.asked = True

    def sleep(self, _seconds: float) -> None:
        self._left -= 1
        if self._left == 0:
            self.close()

    def close(self) -> None:
        if self.open:
            self.open = False
            self.server.close()


@pytest.fixture
def process(tmp_path: pathlib.Path) -> Iterator[Process]:
    running = Process(polls=3, token_file=tmp_path / "stop.token")
    yield running
    running.close()


def test_the_hook_asks_and_waits_until_the_process_has_ended(process: Process) -> None:
    assert stop.stop(process.port, process.token, seconds=10, monotonic=lambda: 0.0, sleep=process.sleep)
    assert process.asked
    assert not process.open


def test_the_hook_gives_up_after_its_time(process: Process) -> None:
    times = iter([0.0, 4.0, 11.0])
    assert not stop.stop(process.port, process.token, seconds=10, monotonic=lambda: next(times), sleep=lambda _: None)
    assert process.asked


def test_a_process_that_does_not_know_the_token_is_not_waited_for(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not stop.stop(process.port, "another", seconds=10, monotonic=lambda: 0.0, sleep=process.sleep)
    assert not process.asked
    assert "did not accept the stop request: 404" in capsys.readouterr().err


def test_a_process_that_is_gone_already_ends_the_hook_at_once(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = {
        "job": {"name": "j", "namespace": "n", "uid": "u"},
        "role": "trainer",
        "pod": "p",
        "health_port": port,
        "scratch_dir": "/tmp",
        "attempt": 3,
    }
    path = tmp_path / "trainer.json"
    path.write_text(json.dumps(config))
    assert stop.main(["--config", str(path), "--seconds", "10"]) == 0
