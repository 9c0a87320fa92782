from typing import Any, cast

import pytest

from rljob_api import enums
from rljob_api.manifest.job import RLJob
from rljob_operator.queueing import workload
from rljob_operator.resources.inputs import Inputs
from rljob_testing.queues import inputs_of, queued_job

QUEUE = {"queue": "research"}


def made(inputs: Inputs, **more: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", workload.workload(inputs, **{**QUEUE, **more}))


def pod_sets(inputs: Inputs) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in made(inputs)["spec"]["podSets"]}


def test_a_pod_set_per_role_asks_for_as_many_pods_as_the_role_has() -> None:
    job = queued_job(trainer={"nodes": 4}, rollout={"replicas": 4}, verifier__replicas=2)
    counts = {name: each["count"] for name, each in pod_sets(inputs_of(job)).items()}
    assert counts == {"trainer": 4, "rollout": 4, "verifier": 2, "coordinator": 1}


def test_rollouts_that_are_scaled_may_be_admitted_in_part_and_others_may_not() -> None:
    scaled = queued_job(rollout={"autoscaling": {"minReplicas": 2, "maxReplicas": 8}})
    with_minimum = {name: each for name, each in pod_sets(inputs_of(scaled)).items() if "minCount" in each}
    assert {name: (each["minCount"], each["count"]) for name, each in with_minimum.items()} == {"rollout": (2, 8)}
    assert not [each for each in pod_sets(inputs_of(queued_job())).values() if "minCount" in each]


def test_templates_are_those_of_the_pods_with_what_they_request() -> None:
    job = queued_job(trainer={"pod": {"resources": {"requests": {"cpu": "3"}}, "nodeSelector": {"pool": "gpu"}}})
    spec = pod_sets(inputs_of(job))["trainer"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["requests"]["cpu"] == "3"
    assert spec["nodeSelector"] == {"pool": "gpu"}


def test_it_goes_with_its_job_and_names_its_queue() -> None:
    asked = made(inputs_of(queued_job()))
    (owner,) = asked["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("RLJob", "job-uid", True)
    assert asked["spec"]["queueName"] == "research"
    assert "priorityClassRef" not in asked["spec"]


def test_a_priority_class_is_named_with_its_value() -> None:
    spec = made(inputs_of(queued_job()), priority_class="urgent", priority=1000)["spec"]
    assert spec["priorityClassRef"] == {
        "group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "urgent"
    }  # fmt: skip
    assert spec["priority"] == 1000


def name(job: RLJob, **more: Any) -> str:
    return str(made(inputs_of(job), **more)["metadata"]["name"])


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer": {"nodes": 4}},
        {"verifier__replicas": 5},
        {"rollout": {"pod": {"resources": {"requests": {"cpu": "7"}}}}},
        {"rollout": {"pod": {"nodeSelector": {"pool": "spot"}}}},
    ],
)
def test_another_need_has_another_name(changes: dict[str, Any]) -> None:
    assert name(queued_job(**changes)) != name(queued_job())


def test_what_a_queue_does_not_look_at_keeps_the_place_in_line() -> None:
    inputs = inputs_of(queued_job())
    newer = Inputs(
        job=inputs.job, configs=inputs.configs, images=dict.fromkeys(enums.STANDARD_ROLES, "example/rljob:2")
    )
    assert made(newer)["metadata"]["name"] == made(inputs)["metadata"]["name"]
    assert name(queued_job(maxSteps=99)) == name(queued_job())


def test_another_queue_or_priority_has_another_name() -> None:
    names = {name(queued_job()), name(queued_job(), queue="other"), name(queued_job(), priority_class="a", priority=1)}
    assert len(names) == 3
