"""Pods on two nodes find and reach each other as on any cluster: by name, by Service, across nodes."""

import json
from collections.abc import Iterator

import pytest

from rljob_testing.cluster import pods
from rljob_testing.cluster.full import FullCluster

ON_A, ON_B = "web-a", "web-b"


@pytest.fixture(scope="module")
def servers(nodes: FullCluster) -> Iterator[FullCluster]:
    objects = [
        pods.server(ON_A, "node-a"),
        pods.server(ON_B, "node-b"),
        pods.service("one", headless=False),
        pods.service("each", headless=True),
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    applied = nodes.kubectl("apply", "-f", "-", stdin=text)
    assert applied.returncode == 0, applied.stderr
    waited = nodes.kubectl("wait", "--for=condition=Ready", "--timeout=50s", f"pod/{ON_A}", f"pod/{ON_B}")
    assert waited.returncode == 0, waited.stdout + waited.stderr + nodes.kubectl("describe", "pods").stdout
    yield nodes
    nodes.kubectl("delete", "-f", "-", stdin=text)


def _ask(nodes: FullCluster, pod: str, url: str) -> str:
    done = nodes.kubectl("exec", pod, "--", *pods.fetch(url))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("asking", [ON_A, ON_B])
@pytest.mark.parametrize("asked", [ON_A, ON_B])
def test_pod_is_reached_by_its_name_from_both_nodes(servers: FullCluster, asking: str, asked: str) -> None:
    assert _ask(servers, asking, f"http://{asked}.each.default.svc:{pods.PORT}/") == asked


@pytest.mark.parametrize("asking", [ON_A, ON_B])
def test_service_is_reached_from_both_nodes_and_leads_to_both_pods(servers: FullCluster, asking: str) -> None:
    answers = {_ask(servers, asking, f"http://one.default.svc:{pods.PORT}/") for _ in range(24)}
    # A fair choice misses one of two pods 24 times in a row once in 8 million runs.
    assert answers == {ON_A, ON_B}


def test_logs_of_a_pod_are_read_from_its_node(servers: FullCluster) -> None:
    for pod in (ON_A, ON_B):
        done = servers.kubectl("logs", pod)
        assert done.returncode == 0, done.stderr
        assert "GET /" in done.stdout + done.stderr
