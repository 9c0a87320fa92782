"""A fake API server with an operator on it, shared by the tests of a module; each test has a namespace of its own."""

import zlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from kubernetes.aio.client import Configuration

from rljob_operator.kube import client as cluster
from rljob_operator.kube import kinds
from rljob_testing import fake_api, operator_stage
from rljob_testing.operator_scene import Scene
from rljob_testing.operator_stage import Request, Stage


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    api, requests = fake_api.FakeApi(), list[Request]()
    async with fake_api.serving(api) as (address, side), operator_stage.said_status() as (said, coordinator):
        connection = cluster.ApiConnection(Configuration(host=address), in_cluster=False)
        client = cluster.Client(
            cluster.ApiConnection(Configuration(host=side), in_cluster=False), qps=1000.0, burst=1000
        )
        async with operator_stage.running_operator(connection, coordinator=coordinator, requests=requests):
            yield Scene(api, connection, client, said, coordinator, requests)
        await client.close()


@pytest_asyncio.fixture(loop_scope="module")
async def stage(scene: Scene, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    made = Stage(scene.client, f"story-{zlib.crc32(request.node.name.encode())}", scene.said, scene.requests)
    scene.said.run = None
    yield made
    scene.api.fault = lambda _: None
    await made.delete(kinds.RLJOB.kind, "run")
