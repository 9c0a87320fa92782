"""`kubectl rljob` against a real API server: selectors, field selectors and statuses are what it serves."""

import json
import os
import subprocess
import sys

import pytest

from rljob_testing.cluster import binaries
from rljob_testing.cluster.manifests import Api, Object, job

NAME = "command-line"
STALLED: Object = {
    "summary": "Stalled",
    "step": 3,
    "roles": [{"name": "rollout", "desired": 2, "ready": 1}],
    "reward": {"mean": "0.5", "step": 3},
    "conditions": [
        {
            "type": "Stalled",
            "status": "True",
            "reason": "VerifierSaturated",
            "message": "rollout-0 waits for verifier for 700 s",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
    "stalled": {"role": "verifier", "pod": "v-0", "since": "2026-01-01T00:00:00Z", "reason": "VerifierSaturated"},
}
POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": f"{NAME}-rollout-0",
        "labels": {"rljob.dev/job": NAME, "rljob.dev/role": "rollout"},
    },
    "spec": {"containers": [{"name": "rljob", "image": "none"}]},
}
EVENT: Object = {
    "apiVersion": "v1",
    "kind": "Event",
    "metadata": {"name": f"{NAME}.1", "namespace": "default"},
    "involvedObject": {"kind": "RLJob", "name": NAME, "namespace": "default", "apiVersion": "rljob.dev/v1alpha1"},
    "type": "Warning",
    "reason": "VerifierSaturated",
    "message": "Stalled: nothing moves",
    "lastTimestamp": "2026-01-01T00:00:01Z",
}


@pytest.fixture(scope="module")
def stalled(api: Api) -> Api:
    """A stalled job with one pod that has no node, and an event."""
    # A pod needs an account, which the controller manager makes for each namespace.
    waited = api.cluster.kubectl("wait", "--for=create", "--timeout=60s", "serviceaccount/default")
    assert waited.returncode == 0, waited.stderr
    for document in (job(NAME, {}), POD, EVENT):
        api.ensure(document)
    api.set_status(NAME, STALLED)
    return api


def rljob(api: Api, *words: str) -> "subprocess.CompletedProcess[str]":
    kubectl = binaries.find("kubectl").parent
    return subprocess.run(
        [sys.executable, "-m", "rljob_workers.cli", *words], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "KUBECONFIG": str(api.cluster.kubeconfig), "PATH": f"{kubectl}:{os.environ['PATH']}"},
    )  # fmt: skip


def test_status_shows_what_the_operator_wrote(stalled: Api) -> None:
    shown = rljob(stalled, "status", NAME, "--cluster")
    assert shown.stdout.splitlines() == [
        "rollout        1/2 ready",
        "Stalled",
        "step 3/4  reward 0.50",
        "stalled (VerifierSaturated): rollout-0 waits for verifier for 700 s",
    ], shown.stderr


def test_why_has_the_diagnosis_the_pod_in_trouble_and_the_event(stalled: Api) -> None:
    shown = rljob(stalled, "why", NAME, "--namespace", "default", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert told["diagnosis"]["reason"] == "VerifierSaturated"
    assert [down["name"] for down in told["down"]] == [POD["metadata"]["name"]]  # type: ignore[index,call-overload]
    assert [event["msg"] for event in told["events"]] == ["VerifierSaturated: Stalled: nothing moves"]


def test_logs_of_a_pod_without_a_node_are_empty_and_no_failure(stalled: Api) -> None:
    shown = rljob(stalled, "logs", NAME, "--cluster", "--tail", "5")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", "")


def test_job_that_is_not_there_is_the_servers_own_sentence(stalled: Api) -> None:
    shown = rljob(stalled, "status", "nobody", "--cluster")
    assert shown.returncode == 1
    assert shown.stderr.startswith("error: kubectl get rljobs.rljob.dev: Error from server (NotFound)")
