import dataclasses
from typing import Any

import pytest

from rljob_api import enums
from rljob_operator.kube import projection
from rljob_operator.model import Pod
from rljob_operator.policies.scheduling import pods_obstacle as obstacle

UNPLACED = frozenset({("PodScheduled", "False")})
POD = Pod(name="job-rollout-1", uid="u", role=enums.Role.ROLLOUT, created_at=1000.0)


@pytest.mark.parametrize(
    ("fields", "reason", "message"),
    [
        ({"waiting_reason": "ErrImagePull", "message": "no such tag"}, "ImagePullFailed", "job-rollout-1: no such tag"),
        ({"waiting_reason": "InvalidImageName"}, "ImagePullFailed", "job-rollout-1: InvalidImageName"),
        ({"waiting_reason": "CreateContainerConfigError"}, "CreateFailed", "job-rollout-1: CreateContainerConfigError"),
        (
            {"conditions": UNPLACED, "unscheduled": "Unschedulable", "message": 'claim "data" not found'},
            "Unschedulable",
            'job-rollout-1: claim "data" not found',
        ),
        ({"conditions": UNPLACED, "unscheduled": "SchedulingGated"}, "SchedulingGated", "job-rollout-1: has no node"),
    ],
)
def test_pod_that_cannot_begin_is_named_with_what_the_cluster_says(
    fields: dict[str, Any], reason: str, message: str
) -> None:
    found = obstacle([dataclasses.replace(POD, **fields)], drain_s=0.0, now=2000.0)
    assert found is not None
    assert (found.reason, found.message) == (reason, message)


def test_pods_that_run_or_are_being_made_meet_none() -> None:
    making = dataclasses.replace(POD, waiting_reason="ContainerCreating")
    assert obstacle([POD, making], drain_s=0.0, now=2000.0) is None


@pytest.mark.parametrize(("age_s", "is_one"), [(179.0, False), (180.0, True)])
def test_pod_that_waits_for_the_place_of_a_draining_one_has_the_drain_and_a_minute(age_s: float, is_one: bool) -> None:
    waiting = dataclasses.replace(POD, conditions=UNPLACED)
    drains = dataclasses.replace(POD, name="job-rollout-0", deleting=True)
    assert (obstacle([waiting, drains], drain_s=120.0, now=1000.0 + age_s) is not None) is is_one
    assert obstacle([waiting], drain_s=120.0, now=1000.0) is not None, "nobody drains"


def test_schedulers_own_words_are_kept_and_bounded() -> None:
    labels = {"rljob.dev/uid": "u", "rljob.dev/role": "coordinator", "rljob.dev/job": "job"}
    metadata = {"name": "p", "uid": "p", "labels": labels, "ownerReferences": [{"uid": "o", "controller": True}]}
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes " * 100}
    kept = projection.project_pod({"metadata": metadata, "status": {"phase": "Pending", "conditions": [said]}})
    assert kept is not None
    assert kept.pod.unscheduled == "Unschedulable"
    assert kept.pod.message == ("0/2 nodes " * 100)[:400]
