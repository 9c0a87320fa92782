"""Which pods' starts are reported, and in which phases."""

import dataclasses

from rljob_api import enums
from rljob_operator.kube import projection
from rljob_operator.model import Pod
from rljob_operator.telemetry.durations import Starts

POD = Pod(
    name="run-rollout-0", uid="a", role=enums.Role.ROLLOUT, created_at=10.0, scheduled_at=12.0, started_at=20.0,
    ready_at=50.0,
)  # fmt: skip
READY = dataclasses.replace(POD, ready=True)
PHASES = [("schedule", 2.0), ("pull", 8.0), ("load", 30.0)]


def test_a_pod_is_told_of_once_when_it_becomes_ready() -> None:
    starts = Starts()
    assert starts.observe([]) == []
    assert starts.observe([POD]) == []
    assert starts.observe([READY]) == PHASES
    assert starts.observe([POD]) == [], "it lost its readiness"
    assert starts.observe([READY]) == [], "and has it again"


def test_pods_that_were_ready_before_the_operator_began_are_not_told_of() -> None:
    starts = Starts()
    assert starts.observe([READY]) == []
    assert starts.observe([READY]) == []
    assert starts.observe([READY, dataclasses.replace(READY, uid="b")]) == PHASES


def test_a_pod_that_was_started_again_or_whose_times_are_not_known_is_not_told_of() -> None:
    starts = Starts()
    starts.observe([])
    assert starts.observe([dataclasses.replace(READY, uid="b", restarts=1)]) == []
    assert starts.observe([dataclasses.replace(READY, uid="c", scheduled_at=0.0)]) == []


def test_times_of_a_start_are_read_from_the_pods_status() -> None:
    metadata = {
        "name": "run-rollout-0", "namespace": "default", "uid": "a", "resourceVersion": "1",
        "creationTimestamp": "1970-01-01T00:00:10Z",
        "labels": {projection.ROLE_LABEL: "rollout", projection.UID_LABEL: "u"},
        "ownerReferences": [{"uid": "owner", "controller": True}],
    }  # fmt: skip
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:12Z"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:50Z"},
    ]
    containers = [{"state": {"running": {"startedAt": f"1970-01-01T00:00:{second}Z"}}} for second in (18, 20)]
    status = {"phase": "Running", "conditions": conditions, "containerStatuses": containers}
    kept = projection.project_pod({"metadata": metadata, "status": status})
    assert kept is not None
    assert (kept.pod.scheduled_at, kept.pod.started_at, kept.pod.ready_at) == (12.0, 20.0, 50.0)
    containers[1]["state"] = {"waiting": {"reason": "ContainerCreating"}}
    conditions[1]["status"] = "False"
    kept = projection.project_pod({"metadata": metadata, "status": status})
    assert kept is not None
    assert (kept.pod.started_at, kept.pod.ready_at) == (0.0, 0.0), "it does not run, and is not ready"
