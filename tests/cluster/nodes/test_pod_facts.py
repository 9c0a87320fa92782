from typing import Any

import pytest

from rljob_testing.cluster.whole_job import PodFacts, condition, holds, is_over

POD: dict[str, Any] = {
    "metadata": {"name": "job-trainer-1-0-x", "uid": "u"},
    "spec": {"nodeName": "node-b"},
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "containerStatuses": [{"containerID": "containerd://0123", "restartCount": 2}],
    },
}


def test_pod_that_runs_is_read_whole() -> None:
    assert PodFacts.of(POD) == PodFacts("job-trainer-1-0-x", "u", "node-b", True, False, "0123", 2)


def test_pod_that_has_no_node_yet_has_no_container_either() -> None:
    found = PodFacts.of({"metadata": POD["metadata"], "spec": {}, "status": {"phase": "Pending"}})
    assert (found.node, found.container, found.ready, found.restarts) == ("", "", False, 0)


@pytest.mark.parametrize(
    ("metadata", "phase", "going"),
    [
        ({}, "Running", False),
        ({}, "Pending", False),
        ({}, "Succeeded", True),
        ({}, "Failed", True),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, "Running", True),
    ],
)
def test_pod_that_is_deleted_or_has_ended_does_not_stay(metadata: dict[str, str], phase: str, going: bool) -> None:
    pod = {**POD, "metadata": {**POD["metadata"], **metadata}, "status": {**POD["status"], "phase": phase}}
    assert PodFacts.of(pod).going is going


def test_condition_that_is_not_there_yet_does_not_hold() -> None:
    assert condition({}, "Running")["status"] == ""
    assert not holds("Running")({"conditions": []})


@pytest.mark.parametrize(("kind", "over"), [("Complete", True), ("Failed", True), ("Suspended", False)])
def test_job_is_over_when_it_ended_well_or_not(kind: str, over: bool) -> None:
    assert is_over({"conditions": [{"type": kind, "status": "True"}]}) is over
    assert not is_over({"conditions": [{"type": kind, "status": "False"}]})
