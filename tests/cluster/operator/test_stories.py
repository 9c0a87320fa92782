"""Lives of a job on a real API server with the real operator, garbage collection and workload controllers.

There is no node: the status of pods is patched as a kubelet would report it, and the coordinator is a fake over gRPC.
"""

import json
import zlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from rljob_operator import cluster, kinds
from rljob_testing import operator_stage, operator_stories
from rljob_testing.cluster.light import LightCluster
from rljob_testing.cluster.manifests import Api
from rljob_testing.operator_stage import Request, SaidStatus, Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Scene(NamedTuple):
    """What all tests share."""

    way: cluster.Access
    client: cluster.Client
    said: SaidStatus
    requests: list[Request]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(light_cluster: LightCluster, api: Api) -> AsyncIterator[Scene]:
    requests = list[Request]()
    way = await cluster.access(str(light_cluster.kubeconfig))
    client = cluster.Client(way, qps=1000.0, burst=1000)
    async with operator_stage.said_status() as (said, coordinator):
        async with operator_stage.running_operator(way, coordinator=coordinator, requests=requests):
            yield Scene(way, client, said, requests)
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
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": stage.namespace}}
    _made(light_cluster, {**quota, "spec": {"hard": {"pods": "0"}}})

    async def is_in_force() -> bool:
        return "hard" in _found(light_cluster, stage, "resourcequota", "none").get("status", {})

    await stage.sees(is_in_force)
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
        await stage.edit("run", {"storage": {"size": size}})
        await stage.edit("run", {"suspend": False})
        await stage.runs(step=step)
        found = await stage.get("StatefulSet", "run-coordinator")
        assert found is not None
        (template,) = found["spec"]["volumeClaimTemplates"]
        assert template["spec"]["resources"]["requests"]["storage"] == size
        claims.append(_found(light_cluster, stage, "pvc", "state-run-coordinator-0")["metadata"]["uid"])
    assert claims[0] == claims[1], "what the run wrote stays"
    assert await stage.condition("run", "Accepted") == ("True", "Accepted")
