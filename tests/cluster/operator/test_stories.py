"""Lives of a job on a real API server with the real operator, garbage collection and workload controllers.

There is no node: the status of pods is patched as a kubelet would report it, and the coordinator is a fake over gRPC.
"""

import json
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
import yaml

from rljob_api import enums, types
from rljob_operator import clock
from rljob_operator.kube import client as cluster
from rljob_operator.kube import kinds
from rljob_testing import examples, operator_stage, operator_stories
from rljob_testing.cluster import admission
from rljob_testing.cluster.light import LightCluster
from rljob_testing.cluster.manifests import Api
from rljob_testing.operator_stage import Request, SaidStatus, Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Scene(NamedTuple):
    """What all tests share."""

    connection: cluster.ApiConnection
    client: cluster.Client
    said: SaidStatus
    requests: list[Request]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(light_cluster: LightCluster, api: Api) -> AsyncIterator[Scene]:
    requests = list[Request]()
    connection = await cluster.connect(str(light_cluster.kubeconfig))
    client = cluster.Client(connection, qps=1000.0, burst=1000)
    async with operator_stage.said_status() as (said, coordinator):
        async with operator_stage.running_operator(connection, coordinator=coordinator, requests=requests):
            yield Scene(connection, client, said, requests)
    await client.close()
    await operator_stage.connections_gone()


@pytest_asyncio.fixture(loop_scope="module")
async def stage(scene: Scene, light_cluster: LightCluster, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    namespace = f"story-{zlib.crc32(request.node.name.encode())}"
    made = light_cluster.kubectl("create", "namespace", namespace)
    assert made.returncode == 0, made.stderr
    scene.said.run = None
    found = Stage(scene.client, namespace, scene.said, scene.requests)
    yield found
    await found.delete("RLJob", "run")


@pytest.mark.parametrize("story", operator_stories.STORIES, ids=lambda story: story.__name__)
async def test_story(stage: Stage, story: operator_stories.Story) -> None:
    await story(stage)


async def test_the_job_of_twelve_lines_runs_with_the_platforms_runtime(
    stage: Stage, light_cluster: LightCluster
) -> None:
    folder = examples.EXAMPLES / "runtime"
    runtime = yaml.safe_load((folder / "runtime.yaml").read_text())
    # The cluster has no PriorityClass, the coordinator's fake no certificate, and the installation no image for GPUs.
    runtime["spec"]["fixed"] = {"security": {"tls": "Disabled", "networkPolicy": True}}
    for command, text in (
        (("apply",), yaml.safe_dump(runtime)),
        (("apply", "-n", stage.namespace), (folder / "job.yaml").read_text()),
    ):
        applied = light_cluster.kubectl(*command, "-f", "-", stdin=text)
        assert applied.returncode == 0, applied.stderr
    await stage.runs("maths")
    job = await stage.job("maths")
    assert job is not None
    assert job["status"]["runtime"] == {
        "kind": "ClusterRLJobRuntime", "name": "gpu-h100", "generation": 1, "currentGeneration": 1
    }  # fmt: skip
    assert "type" not in job["spec"].get("storage", {}), "the operator writes no spec"
    (trainer,) = await stage.children("Job")
    pod = trainer["spec"]["template"]["spec"]
    assert (pod["schedulerName"], pod["hostNetwork"]) == ("gpu-scheduler", True)
    assert pod["containers"][0]["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]

    async def is_accepted() -> bool:
        answer = await stage.client.get(kinds.CLUSTER_RUNTIME, "", "gpu-h100")
        conditions = ((answer or {}).get("status") or {}).get("conditions") or [{}]
        return bool(conditions[0].get("status") == "True")

    await stage.sees(is_accepted)
    refused = light_cluster.kubectl(
        "patch", "rljob", "maths", "-n", stage.namespace, "--type=merge", "-p",
        json.dumps({"spec": {"runtimeRef": {"name": "other"}}}),
    )  # fmt: skip
    assert "runtimeRef is frozen while the job has pods" in refused.stderr
    await stage.delete("RLJob", "maths")


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
async def test_child_whose_label_is_taken_away_gets_it_back(
    stage: Stage, light_cluster: LightCluster, kind: str
) -> None:
    await stage.create()
    await stage.runs()
    name = {"Deployment": "run-rollout", "Job": "run-trainer-1"}[kind]
    before = await stage.get(kind, name)
    assert before is not None
    removed = light_cluster.kubectl("label", kind, name, "-n", stage.namespace, "app.kubernetes.io/managed-by-")
    assert removed.returncode == 0, removed.stderr

    async def has_it() -> bool:
        return name in [found["metadata"]["name"] for found in await stage.children(kind)]

    await stage.sees(has_it)
    after = await stage.get(kind, name)
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [found["metadata"]["name"] for found in await stage.children("Job")] == ["run-trainer-1"]
    await stage.until("run", "Running")


async def test_pod_whose_label_is_taken_away_is_still_a_pod_of_its_job(
    stage: Stage, light_cluster: LightCluster
) -> None:
    await stage.create()
    await stage.runs()
    for role in (enums.Role.COORDINATOR, enums.Role.TRAINER):
        (pod,) = await stage.pods(role)
        label = ("label", "pod", pod["metadata"]["name"], "-n", stage.namespace, "app.kubernetes.io/managed-by-")
        removed = light_cluster.kubectl(*label)
        assert removed.returncode == 0, removed.stderr
    await stage.edit("run", {"rollout": {"replicas": 2}})

    async def ready() -> dict[str, int]:
        roles = ((await stage.job("run")) or {}).get("status", {}).get("roles", [])
        return {one["name"]: one["ready"] for one in roles}

    async def is_larger() -> bool:
        # Reported by the same watch, later.
        return (await ready()).get("rollout") == 2

    await stage.sees(is_larger)
    assert await ready() == {"coordinator": 1, "rollout": 2, "verifier": 1, "trainer": 1}
    assert await stage.condition("run", "Running") == ("True", "Running")


def _made(light_cluster: LightCluster, document: dict[str, Any]) -> None:
    made = light_cluster.kubectl("create", "-f", "-", stdin=json.dumps(document))
    assert made.returncode == 0, made.stderr


def _found(light_cluster: LightCluster, stage: Stage, kind: str, name: str) -> dict[str, Any]:
    found = light_cluster.kubectl("-n", stage.namespace, "get", kind, name, "-o", "json")
    assert found.returncode == 0, found.stderr
    document: dict[str, Any] = json.loads(found.stdout)
    return document


async def _said(stage: Stage, kind: str) -> str:
    conditions = ((await stage.job("run")) or {}).get("status", {}).get("conditions", [])
    return next((str(one["message"]) for one in conditions if one["type"] == kind), "")


async def test_quota_that_denies_pods_is_told_in_its_own_words_and_lifting_it_is_enough(
    stage: Stage, light_cluster: LightCluster
) -> None:
    admission.apply_quota(light_cluster, stage.namespace, "none", {"pods": "0"}, "exceeded quota: none")
    await stage.create()

    async def is_told() -> bool:
        told = await stage.condition("run", "PodsScheduled") == ("False", "CreateFailed")
        return told and "exceeded quota: none" in await _said(stage, "PodsScheduled")

    await stage.sees(is_told)
    for kind, name in (("StatefulSet", "run-coordinator"), ("Job", "run-trainer-1")):

        async def has_said(kind: str = kind, name: str = name) -> bool:
            made = await stage.get(kind, name)
            assert made is not None
            uid = made["metadata"]["uid"]
            said = await stage.client.failures(kinds.BY_NAME[kind], stage.namespace, name, uid, reason="FailedCreate")
            return "exceeded quota: none" in said

        await stage.sees(has_said)
    assert await stage.pods() == []
    assert light_cluster.kubectl("-n", stage.namespace, "delete", "resourcequota", "none").returncode == 0
    await stage.runs()
    assert await stage.condition("run", "PodsScheduled") == ("True", "Scheduled")


async def test_storage_that_is_changed_while_a_job_is_suspended_holds_from_its_resume_on(
    stage: Stage, light_cluster: LightCluster
) -> None:
    await stage.create()
    await stage.runs()
    claims = list[str]()
    for step, size in enumerate(("1Gi", "2Gi"), start=2):
        await stage.edit("run", {"suspend": True})
        await stage.until("run", "Suspended")
        storage = {"type": "Persistent", "state": {"size": size}, "checkpoints": {"size": "1Gi"}}
        await stage.edit("run", {"storage": storage})
        await stage.edit("run", {"suspend": False})
        await stage.runs(step=step)
        found = await stage.get("StatefulSet", "run-coordinator")
        assert found is not None
        volumes = found["spec"]["template"]["spec"]["volumes"]
        (mounted,) = (each["persistentVolumeClaim"]["claimName"] for each in volumes if each["name"] == "state")
        claim = _found(light_cluster, stage, "pvc", mounted)
        assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi", "a claim stays as it was made"
        claims.append(claim["metadata"]["uid"])
    assert claims[0] == claims[1], "what the run wrote stays"
    assert await stage.condition("run", "Accepted") == ("True", "Accepted")


async def _on_a_silent_node(stage: Stage, light_cluster: LightCluster, role: enums.Role) -> str:
    """Give a pod a node that no kubelet serves, evict it as a taint does, and return its uid."""
    node = f"silent-{stage.namespace}"
    _made(light_cluster, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    (pod, *_) = await stage.pods(role)
    name, uid = str(pod["metadata"]["name"]), str(pod["metadata"]["uid"])
    bound = {
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": stage.namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }  # fmt: skip
    _made(light_cluster, bound)
    await stage.client.delete(kinds.POD, stage.namespace, name, uid=uid, grace_s=600)
    # Of a pod that is not going the cluster takes the mark of a disruption back after two minutes.
    since = clock.to_timestamp(time.time() - 70.0)
    marks = (
        ("Ready", "False", ""), ("ContainersReady", "True", ""), ("DisruptionTarget", "True", "DeletionByTaintManager"),
    )  # fmt: skip
    conditions = [
        {"type": kind, "status": status, "reason": reason, "lastTransitionTime": since}
        for kind, status, reason in marks
    ]
    status = {"status": {"conditions": conditions}}
    await stage.client.merge(kinds.POD, stage.namespace, name, status, subresource="status")
    return uid


@pytest.mark.parametrize("role", [enums.Role.TRAINER, enums.Role.COORDINATOR])
async def test_pod_on_a_node_that_does_not_answer_is_replaced_long_before_its_grace_is_over(
    stage: Stage, light_cluster: LightCluster, role: enums.Role
) -> None:
    await stage.create()
    await stage.runs()
    lost = await _on_a_silent_node(stage, light_cluster, role)

    async def is_replaced() -> bool:
        there = [pod["metadata"]["uid"] for pod in await stage.pods(role)]
        return bool(there) and lost not in there

    await stage.sees(is_replaced)
    await stage.until("run", "Running")
    found = await stage.job("run")
    assert found is not None
    if role is enums.Role.TRAINER:
        (first, _) = found["status"]["trainer"]["attempts"]
        assert (first["reason"], first["class"]) == ("NodeLost", "infrastructure")
    assert light_cluster.kubectl("delete", "node", f"silent-{stage.namespace}").returncode == 0


async def test_operator_that_gets_no_answer_past_the_start_up_deadline_ends_nothing(
    light_cluster: LightCluster, scene: Scene, stage: Stage
) -> None:
    """The deadline is a few seconds: the run's pods are there, no one hears of it, and it makes its steps meanwhile."""
    await stage.create(startupDeadlineSeconds=5)

    async def has_pods() -> bool:
        found = await stage.job("run")
        return found is not None and "scheduledTime" in found.get("status", {})

    await stage.sees(has_pods)

    async def is_named() -> bool:
        return await stage.condition("run", "Stalled") == ("True", "CoordinatorUnreachable")

    # To this operator the coordinator does not answer: it is cut off, as one that is away is.
    await stage.sees(is_named, within_s=120.0)
    assert await stage.condition("run", "Failed") == ("False", "NotFailed")
    stepped_at = time.time() - 2.0
    attempt = types.TrainerAttempt(attempt=1, first_step_at=stepped_at)
    scene.said.says(enums.Phase.RUNNING, step=300, attempts=(attempt,))
    await stage.until("run", "Running")
    found = await stage.job("run")
    assert found is not None
    assert found["status"]["firstStepTime"] == clock.to_timestamp(stepped_at)
    assert len(await stage.pods()) == 4
