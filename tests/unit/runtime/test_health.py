import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from rljob_api import names, roles
from rljob_workers.runtime import health, metrics

JOB = roles.JobIdentity(name="j", namespace="n", uid="u")


class Server:
    def __init__(self) -> None:
        self.ready = (False, "loading weights")
        self.stops = 0
        self.metrics = metrics.Metrics(role=names.Role.ROLLOUT, job=JOB)
        self.server = health.HealthServer(
            host="127.0.0.1", port=0, metrics=self.metrics, ready=lambda: self.ready, on_stop=self.stop
        )

    def stop(self) -> None:
        self.stops += 1

    def call(self, path: str, method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.server.port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    running.server.start()
    yield running
    running.server.close()


def test_not_ready_says_why(server: Server) -> None:
    assert server.call("/readyz") == (503, "loading weights\n")
    server.ready = (True, "serving version 3")
    assert server.call("/readyz") == (200, "serving version 3\n")


def test_liveness_does_not_depend_on_readiness(server: Server) -> None:
    assert server.call("/healthz")[0] == 200


def test_stop_is_asked_for_by_post_only(server: Server) -> None:
    assert server.call("/stop")[0] == 404
    assert server.stops == 0
    assert server.call("/stop", "POST")[0] == 202
    assert server.stops == 1


def test_metrics_carry_the_jobs_labels_and_gauges_are_absent_before_their_first_value(server: Server) -> None:
    server.metrics.counter("rljob_tokens_total").inc(5, kind="generated")
    text = server.call("/metrics")[1]
    assert 'rljob_tokens_total{kind="generated",rljob="j",rljob_namespace="n"} 5.0' in text
    assert "rljob_rollout_serving_version{" not in text
    server.metrics.gauge("rljob_rollout_serving_version").set(3)
    assert 'rljob_rollout_serving_version{rljob="j",rljob_namespace="n"} 3.0' in server.call("/metrics")[1]


def test_unknown_path_names_the_known_ones(server: Server) -> None:
    assert server.call("/")[0] == 404
