"""Who goes first where something more urgent needs a job's nodes, on the real kube-scheduler: rollouts, then trainers.

Pods are those of the builders, made by the cluster's own Deployment and Job controllers; its disruption controller
counts for the budgets. Kubelets are played.
"""

import contextlib
import time
from typing import Any

import pytest

from rljob_api import cluster_placement, enums, resolve
from rljob_operator.kube import kinds
from rljob_operator.kube.kinds import Kind
from rljob_operator.resources import workloads
from rljob_operator.resources.inputs import Inputs
from rljob_testing import operator_nodes
from rljob_testing.cluster.light import LightCluster
from rljob_testing.cluster.scheduled import NAMESPACE, NUM_NODES
from rljob_testing.operator_api import ClusterApi, RefusedError
from rljob_testing.operator_runs import operator_job

PRIORITY = Kind("PriorityClass", "scheduling.k8s.io", "v1", "priorityclasses")
NUM_OF_ROLE = NUM_NODES // 2
URGENT, FIRST_TO_GO = "urgent", "rollouts-first"
WITHIN_S = 240.0
R, T = enums.Role.ROLLOUT, enums.Role.TRAINER
pytestmark = pytest.mark.timeout(1200)


def test_what_is_more_urgent_takes_all_rollouts_of_a_job_before_it_takes_a_trainer(scheduled: LightCluster) -> None:
    api = ClusterApi(scheduled)
    for name, value in ((URGENT, 1000), (FIRST_TO_GO, -1000)):
        api.create(PRIORITY, None, {"metadata": {"name": name}, "value": value})
    for body in objects():
        kind = kinds.BY_NAME[body["kind"]]
        api.create(kind, NAMESPACE, {**body, "metadata": {**body["metadata"], "ownerReferences": []}})
    end = time.monotonic() + WITHIN_S
    while not (on_nodes(api) == {R: NUM_OF_ROLE, T: NUM_OF_ROLE} and disruptions_allowed(api) == {R: 1, T: 0}):
        assert time.monotonic() < end, (on_nodes(api), disruptions_allowed(api))
        play(api)
    expected = [{R: left, T: NUM_OF_ROLE} for left in range(NUM_OF_ROLE - 1, -1, -1)]
    seen = [after_one_more_urgent(api, number) for number in range(NUM_OF_ROLE)]
    assert seen == expected
    assert after_one_more_urgent(api, NUM_OF_ROLE) == {R: 0, T: NUM_OF_ROLE - 1}, "there is nothing else to take"
    clear(api)
    api.close()


def objects() -> list[Any]:
    """Return the workloads and budgets of a job that fills the nodes."""
    pod = {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    rollout = {"replicas": NUM_OF_ROLE, "pod": {**pod, "priorityClassName": FIRST_TO_GO}}
    job = operator_job({"trainer": {"nodes": NUM_OF_ROLE, "pod": pod}, "rollout": rollout})
    configs = resolve.resolve(job, cluster_placement.cluster_placement(job, verifier_cores=1))
    inputs = Inputs(job=job, configs=configs, images=dict.fromkeys(enums.Role, "example/rljob:1"))
    makers: list[Any] = [
        workloads.trainer_job(inputs, attempt=1),
        workloads.rollout_deployment(inputs, replicas=NUM_OF_ROLE),
    ]
    for maker in makers:
        # The job's own account is not there.
        maker["spec"]["template"]["spec"]["serviceAccountName"] = "default"
    return [*workloads.disruption_budgets(inputs, running=True), *makers]


def after_one_more_urgent(api: ClusterApi, number: int) -> dict[enums.Role, int]:
    """Let an urgent pod come, wait until it has a node, and return what is left of the job on nodes."""
    name = f"urgent-{number}"
    container = {"name": "c", "image": "example", "resources": {"requests": {"cpu": "1"}}}
    spec = {"priorityClassName": URGENT, "containers": [container], "terminationGracePeriodSeconds": 0}
    api.create(kinds.POD, NAMESPACE, {"metadata": {"name": name}, "spec": spec})
    end = time.monotonic() + WITHIN_S
    while not api.get(kinds.POD, NAMESPACE, name)["spec"].get("nodeName"):
        assert time.monotonic() < end, f"{name} has no node: {on_nodes(api)}"
        play(api)
    return on_nodes(api)


def pods(api: ClusterApi) -> list[dict[str, Any]]:
    return api.list(kinds.POD, NAMESPACE, selector="rljob.dev/uid=job-uid")


def on_nodes(api: ClusterApi) -> dict[enums.Role, int]:
    """Return how many pods of each role have a node and are not going."""
    counts = {R: 0, T: 0}
    for pod in pods(api):
        stays = bool(pod["spec"].get("nodeName")) and "deletionTimestamp" not in pod["metadata"]
        counts[enums.Role(pod["metadata"]["labels"]["rljob.dev/role"])] += stays
    return counts


def disruptions_allowed(api: ClusterApi) -> dict[enums.Role, int]:
    budgets = api.list(kinds.BY_NAME["PodDisruptionBudget"], NAMESPACE)
    return {
        enums.Role(budget["metadata"]["labels"]["rljob.dev/role"]): budget.get("status", {}).get(
            "disruptionsAllowed", 0
        )
        for budget in budgets
    }


def play(api: ClusterApi) -> None:
    """Be the kubelets once: what has a node runs, what is deleted is gone."""
    for pod in pods(api):
        name = pod["metadata"]["name"]
        # It may have gone meanwhile.
        with contextlib.suppress(RefusedError):
            if "deletionTimestamp" in pod["metadata"]:
                # Its Job lets a pod go that has ended.
                api.merge(kinds.POD, NAMESPACE, name, {"status": {"phase": "Failed"}}, subresource="status")
                api.send("DELETE", f"{kinds.POD.path(NAMESPACE, name)}?gracePeriodSeconds=0")
            elif pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
                api.merge(kinds.POD, NAMESPACE, name, {"status": operator_nodes.running(pod)}, subresource="status")


def clear(api: ClusterApi) -> None:
    for kind in ("Deployment", "Job", "PodDisruptionBudget"):
        # The API server would leave the pods of a Job behind.
        api.send("DELETE", f"{kinds.BY_NAME[kind].path(NAMESPACE)}?propagationPolicy=Background")
    end = time.monotonic() + WITHIN_S
    while api.list(kinds.POD, NAMESPACE):
        assert time.monotonic() < end, "pods are not gone"
        api.send("DELETE", f"{kinds.POD.path(NAMESPACE)}?gracePeriodSeconds=0")
