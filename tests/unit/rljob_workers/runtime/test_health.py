import contextlib
import pathlib
import select
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from rljob_api import enums, process_config
from rljob_workers.runtime import health, metrics

JOB = process_config.JobIdentity(name="j", namespace="n", uid="u")


class Server:
    def __init__(self, token_file: pathlib.Path | None) -> None:
        self.ready = (False, "loading weights")
        self.stops = 0
        self.metrics = metrics.Metrics(role=enums.Role.ROLLOUT, job=JOB)
        self.server = health.HealthServer(
            host="127.0.0.1",
            port=0,
            metrics=self.metrics,
            ready=lambda: self.ready,
            on_stop=self.stop,
            token_file=token_file,
        )

    def stop(self) -> None:
        self.stops += 1

    def call(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.server.port}{path}"
        request = urllib.request.Request(url, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def token_file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "scratch" / "stop-1.token"


@pytest.fixture
def server(token_file: pathlib.Path) -> Iterator[Server]:
    running = Server(token_file)
    running.server.start()
    yield running
    running.server.close()


def test_not_ready_says_why(server: Server) -> None:
    assert server.call("/readyz") == (503, "loading weights\n")
    server.ready = (True, "serving version 3")
    assert server.call("/readyz") == (200, "serving version 3\n")


def test_liveness_does_not_depend_on_readiness(server: Server) -> None:
    assert server.call("/healthz")[0] == 200


def test_stop_is_asked_for_by_post_with_the_token_of_the_process(server: Server, token_file: pathlib.Path) -> None:
    token = health.stop_token(token_file)
    assert server.call("/stop", **{health.STOP_HEADER: token})[0] == 404
    assert server.stops == 0
    assert server.call("/stop", "POST", **{health.STOP_HEADER: token})[0] == 202
    assert server.stops == 1


@pytest.mark.parametrize("shown", [None, "", "0" * 64, "\xe9"])
def test_call_from_loopback_without_the_token_stops_nothing(server: Server, shown: str | None) -> None:
    headers = {} if shown is None else {health.STOP_HEADER: shown}
    assert server.call("/stop", "POST", **headers)[0] == 404, "a mesh's proxy calls from loopback for anybody"
    assert server.stops == 0


def test_token_is_for_its_own_user_and_its_own_process(token_file: pathlib.Path) -> None:
    token_file.parent.mkdir()
    token_file.write_text("left by the process before")
    token_file.chmod(0o644)
    running = Server(token_file)
    running.server.start()
    assert token_file.stat().st_mode & 0o777 == 0o600
    assert len(health.stop_token(token_file)) == 64
    running.server.close()
    assert health.stop_token(token_file) == ""


def test_process_without_a_token_cannot_be_asked_to_stop() -> None:
    running = Server(None)
    running.server.start()
    assert running.call("/stop", "POST", **{health.STOP_HEADER: ""})[0] == 404
    running.server.close()


def test_callers_that_say_nothing_make_room_for_a_probe(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.server._server.RequestHandlerClass, "timeout", None)
    before = threading.enumerate()
    with contextlib.ExitStack() as closing:
        silent = [
            closing.enter_context(socket.create_connection(("127.0.0.1", server.server.port), timeout=60))
            for _ in range(5 * health.MOST_CONNECTIONS)
        ]
        for connection in silent:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert server.call("/healthz")[0] == 200
        served = [thread for thread in threading.enumerate() if thread not in before]
        hung_up, kept = silent[: 1 - health.MOST_CONNECTIONS], silent[1 - health.MOST_CONNECTIONS :]
        assert all(connection.recv(1) == b"" for connection in hung_up)
        for thread in served[: -health.MOST_CONNECTIONS]:
            thread.join(60)
        assert len([thread for thread in served if thread.is_alive()]) <= health.MOST_CONNECTIONS
        assert select.select(kept, [], [], 0)[0] == [], "the youngest are still served"


def test_caller_that_says_nothing_for_long_is_hung_up_on(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.server._server.RequestHandlerClass, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", server.server.port)) as silent:
        silent.settimeout(60)
        assert silent.recv(1) == b""


def test_metrics_carry_the_jobs_labels_and_gauges_are_absent_before_their_first_value(server: Server) -> None:
    server.metrics.counter("rljob_tokens_total").inc(5, kind="generated")
    text = server.call("/metrics")[1]
    assert 'rljob_tokens_total{kind="generated",rljob="j",rljob_namespace="n"} 5.0' in text
    assert "rljob_rollout_serving_version{" not in text
    server.metrics.gauge("rljob_rollout_serving_version").set(3)
    assert 'rljob_rollout_serving_version{rljob="j",rljob_namespace="n"} 3.0' in server.call("/metrics")[1]


def test_unknown_path_names_the_known_ones(server: Server) -> None:
    assert server.call("/")[0] == 404
