"""Lives of a job on a real API server with the real operator, garbage collection and workload controllers.

There is no node: the status of pods is patched as a kubelet would report it, and the coordinator is a fake over gRPC.
"""

import zlib
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from rljob_operator import cluster
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
