"""Objects of three gang schedulers; the fields are those of the API types that the docstring of gangs.py names."""

import dataclasses
from typing import Any, Protocol

import pytest

from rljob_operator.policies import admission
from rljob_operator.resources import children, gangs, workloads
from rljob_operator.resources.inputs import Inputs
from rljob_operator.settings import GangScheduler, JobSettings


class Example(Protocol):
    def make(self, **sections: object) -> Inputs: ...


def of(example: Example, scheduler: GangScheduler, *, nodes: int = 2, name: str = "") -> Inputs:
    inputs = example.make(trainer={"nodes": nodes})
    settings = JobSettings(gang_scheduler=scheduler, gang_scheduler_name=name)
    return dataclasses.replace(inputs, settings=settings)


def trainer_pod(inputs: Inputs) -> Any:
    spec: Any = workloads.trainer_job(inputs, attempt=3)["spec"]
    return spec["template"]


@pytest.mark.parametrize(
    ("scheduler", "api_version", "spec"),
    [
        ("native", "scheduling.k8s.io/v1alpha2", {"schedulingPolicy": {"gang": {"minCount": 2}}}),
        ("volcano", "scheduling.volcano.sh/v1beta1", {"minMember": 2}),
        ("coscheduling", "scheduling.x-k8s.io/v1alpha1", {"minMember": 2}),
    ],
)
def test_a_group_counts_all_pods_of_an_attempt(
    scheduler: GangScheduler, api_version: str, spec: dict[str, object], example: Example
) -> None:
    group: Any = gangs.pod_group(of(example, scheduler), attempt=3)
    assert (group["apiVersion"], group["kind"], group["spec"]) == (api_version, "PodGroup", spec)
    assert group["metadata"]["name"] == "sums-trainer-3", "the next attempt counts its own pods"
    (owner,) = group["metadata"]["ownerReferences"]
    assert owner["uid"] == "u-1"


def test_pods_join_their_group_as_each_scheduler_says(example: Example) -> None:
    native, volcano = (trainer_pod(of(example, scheduler)) for scheduler in ("native", "volcano"))
    coscheduling = trainer_pod(of(example, "coscheduling"))
    assert native["spec"]["schedulingGroup"] == {"podGroupName": "sums-trainer-3"}
    assert "schedulerName" not in native["spec"], "the cluster's own"
    assert volcano["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "sums-trainer-3"
    assert volcano["spec"]["schedulerName"] == "volcano"
    assert coscheduling["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "sums-trainer-3"
    assert coscheduling["spec"]["schedulerName"] == "scheduler-plugins-scheduler"
    assert trainer_pod(of(example, "volcano", name="mine"))["spec"]["schedulerName"] == "mine"


def test_the_group_is_made_before_the_pods(example: Example) -> None:
    made = children.workloads(of(example, "native"), attempt=1, rollouts=1)
    kinds = [each["kind"] for each in made]
    assert kinds.index("PodGroup") < kinds.index("Job")


def test_a_single_pod_needs_no_group(example: Example) -> None:
    inputs = of(example, "native", nodes=1)
    assert gangs.pod_group(inputs, attempt=1) is None
    assert "schedulingGroup" not in trainer_pod(inputs)["spec"]


def test_pods_of_an_installation_without_gangs_are_what_they_were(example: Example) -> None:
    inputs = example.make(trainer={"nodes": 2})
    assert gangs.pod_group(inputs, attempt=1) is None
    assert not {"schedulingGroup", "schedulerName"} & {*trainer_pod(inputs)["spec"]}


def test_a_gang_that_no_api_of_the_cluster_knows_is_refused_by_name(example: Example) -> None:
    inputs = of(example, "native")
    told = list(admission.problems(inputs.job.spec, inputs.settings, frozenset()))
    assert [each for each in told if "scheduling.k8s.io/v1alpha2 is not served here" in each]
    served = frozenset({"scheduling.k8s.io/v1alpha2"})
    assert not [each for each in admission.problems(inputs.job.spec, inputs.settings, served) if "scheduling" in each]
