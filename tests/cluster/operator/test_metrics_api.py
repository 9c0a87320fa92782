"""The metrics API server of the autoscaling test, asked as the API server's proxy asks it."""

import http.client
import json
import pathlib
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from rljob_testing import operator_metrics_api
from rljob_testing.cluster.certs import Authority
from rljob_testing.cluster.light import LOOPBACK
from rljob_testing.operator_metrics_api import MetricsApi

PATH = "/apis/external.metrics.k8s.io/v1beta1"
METRIC = f"{PATH}/namespaces/team/rljob_rollout_pressure_ratio?labelSelector=rljob%3Drun"


@pytest.fixture
def pki(tmp_path: pathlib.Path) -> pathlib.Path:
    operator_metrics_api.certify(Authority(tmp_path))
    return tmp_path


@pytest.fixture
def api(pki: pathlib.Path) -> Iterator[MetricsApi]:
    with operator_metrics_api.serving(pki) as served:
        yield served


def _ask(api: MetricsApi, pki: pathlib.Path, path: str, *, certified: bool = True) -> tuple[int, Any]:
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    if certified:
        context.load_cert_chain(pki / "front-proxy.crt", pki / "front-proxy.key")
    connection = http.client.HTTPSConnection(LOOPBACK, api.port, context=context, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_the_metric_is_listed_and_its_value_is_that_of_the_coordinators_formula(
    api: MetricsApi, pki: pathlib.Path
) -> None:
    _, listed = _ask(api, pki, PATH)
    assert [one["name"] for one in listed["resources"]] == ["rljob_rollout_pressure_ratio"]
    # (1 - 0.25) * (1 - 0.1) / (1 - 0.55) = 1.5
    api.blocked, api.waiting = 0.25, 0.55
    status, found = _ask(api, pki, METRIC)
    (item,) = found["items"]
    assert (status, item["value"], item["metricLabels"]) == (200, "1500m", {"rljob": "run"})
    assert api.asked == {("team", "rljob_rollout_pressure_ratio", "rljob=run")}


def test_another_metric_is_not_there(api: MetricsApi, pki: pathlib.Path) -> None:
    assert _ask(api, pki, f"{PATH}/namespaces/team/other")[0] == 404


def test_who_shows_no_certificate_gets_no_answer(api: MetricsApi, pki: pathlib.Path) -> None:
    with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
        _ask(api, pki, PATH, certified=False)
