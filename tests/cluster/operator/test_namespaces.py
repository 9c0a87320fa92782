"""An operator of the namespaces with a label, with the chart's rights for that: they come, lose it, and go."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from rljob_api import enums
from rljob_operator.kube import client as cluster
from rljob_operator.kube import kinds
from rljob_operator.settings import JobSettings, Settings
from rljob_testing import operator_installation, operator_stage
from rljob_testing.charts import Helm, program_or_skip
from rljob_testing.cluster.light import LightCluster
from rljob_testing.operator_installation import Installed
from rljob_testing.operator_stage import Request, Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")
SYSTEM, LABEL, SELECTOR = "selecting", "rl-team=research", "rl-team=research"
# Longer than a pass takes, and than a watch that delivers.
LEFT_ALONE_S = 3.0


class Scene(NamedTuple):
    """Two stages, in namespaces with the label and without it."""

    plane: LightCluster
    labelled: Stage
    plain: Stage
    requests: list[Request]

    def kubectl(self, *arguments: str) -> None:
        answer = self.plane.kubectl(*arguments)
        assert answer.returncode == 0, answer.stderr


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    plane, folder = installed.cluster, tmp_path_factory.mktemp("selecting")
    kubeconfig = operator_installation.install(
        plane, Helm(program_or_skip("helm"), folder), system=SYSTEM, selector=SELECTOR
    )
    requests = list[Request]()
    client = cluster.Client(await cluster.connect(str(plane.kubeconfig)), qps=1000.0, burst=1000)
    settings = Settings(jobs=JobSettings(images=operator_stage.IMAGES), watch_namespace_selector=SELECTOR)
    async with operator_stage.said_status() as (said, coordinator):
        stages = (
            Stage(client, "selecting-labelled", said, requests),
            Stage(client, "selecting-plain", said, requests),
        )
        made = Scene(plane, *stages, requests)
        for stage in stages:
            made.kubectl("create", "namespace", stage.namespace)
        made.kubectl("label", "namespace", made.labelled.namespace, LABEL)
        async with operator_stage.running_operator(
            await cluster.connect(str(kubeconfig)), coordinator=coordinator, settings=settings, requests=requests
        ):
            yield made
    for stage in stages:
        plane.kubectl("delete", "rljobs", "-n", stage.namespace, "--all", "--timeout=50s")
        plane.kubectl("delete", "namespace", stage.namespace, "--wait=false")
    await client.close()
    await operator_stage.connections_gone()


async def _rollouts(stage: Stage) -> int:
    return len(await stage.pods(enums.Role.ROLLOUT))


async def _scales(stage: Stage, replicas: int) -> None:
    await stage.edit("run", {"rollout": {"replicas": replicas}})

    async def followed() -> bool:
        return await _rollouts(stage) == replicas

    await stage.sees(followed)


@pytest.mark.timeout(600)
async def test_namespaces_are_followed_while_they_get_the_label_lose_it_go_and_come_back(scene: Scene) -> None:
    labelled, plain = scene.labelled, scene.plain
    for stage in (labelled, plain):
        await stage.create()
    await labelled.runs()
    assert await plain.children("Job") == []
    assert not ((await plain.job("run") or {}).get("status") or {}).get("observedGeneration")

    # A job that was there before its namespace got the label.
    scene.kubectl("label", "namespace", plain.namespace, LABEL)
    await plain.runs()

    # Without the label its run stays as it is, and no edit is followed.
    scene.kubectl("label", "namespace", plain.namespace, f"{LABEL.partition('=')[0]}-")
    before = {pod["metadata"]["uid"] for pod in await plain.pods()}
    # What another namespace sees afterwards was delivered after the label had gone.
    await _scales(labelled, 2)
    await asyncio.sleep(LEFT_ALONE_S)
    await plain.edit("run", {"rollout": {"replicas": 3}})
    await asyncio.sleep(LEFT_ALONE_S)
    assert {pod["metadata"]["uid"] for pod in await plain.pods()} == before

    # With it again, the edit that was made meanwhile is.
    scene.kubectl("label", "namespace", plain.namespace, LABEL)

    async def followed() -> bool:
        return await _rollouts(plain) == 3

    await plain.sees(followed)
    assert before <= {pod["metadata"]["uid"] for pod in await plain.pods()}

    # No kubelet ends the pods of a namespace that is deleted, so the job goes first.
    await plain.delete(kinds.RLJOB.kind, "run")

    async def has_no_pods() -> bool:
        return not await plain.pods()

    await plain.sees(has_no_pods)
    scene.kubectl("delete", "namespace", plain.namespace, "--timeout=50s")
    await _scales(labelled, 1)
    scene.kubectl("create", "namespace", plain.namespace)
    scene.kubectl("label", "namespace", plain.namespace, LABEL)
    await plain.create()
    await plain.runs()
