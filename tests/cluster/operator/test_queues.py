"""Jobs with a queue on a real API server that serves Kueue's own definitions; its controller is a stand-in.

What it cannot show: how Kueue chooses. What it shows: that the API server takes the Workloads, that the operator does
what an admission and an eviction mean, and that quota is free only after the last pod. Pods are played, and the
coordinator is a fake, so steps are what the test says they are.
"""

import time
import zlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from rljob_api import enums
from rljob_operator.kube import client as cluster
from rljob_operator.kube import kinds
from rljob_operator.settings import Integrations, JobSettings, Settings
from rljob_testing import operator_queue, operator_stage, stand_in_queue
from rljob_testing.cluster import kueue
from rljob_testing.cluster.binaries import MissingProgramError
from rljob_testing.cluster.light import LightCluster
from rljob_testing.cluster.manifests import Api
from rljob_testing.operator_queue import LABELS, admit, asked
from rljob_testing.operator_stage import Request, SaidStatus, Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Scene(NamedTuple):
    """What all tests share."""

    client: cluster.Client
    said: SaidStatus
    requests: list[Request]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(light_cluster: LightCluster, api: Api) -> AsyncIterator[Scene]:
    try:
        kueue.install(light_cluster)
    except MissingProgramError as error:
        pytest.skip(str(error))
    requests = list[Request]()
    connection = await cluster.connect(str(light_cluster.kubeconfig))
    client = cluster.Client(connection, qps=1000.0, burst=1000)
    settings = Settings(jobs=JobSettings(images=operator_stage.IMAGES), integrations=Integrations(kueue="true"))
    async with operator_stage.said_status() as (said, coordinator):
        running = operator_stage.running_operator(
            connection, coordinator=coordinator, settings=settings, requests=requests
        )
        async with running:
            yield Scene(client, said, requests)
    await client.close()
    await operator_stage.connections_gone()


@pytest_asyncio.fixture(loop_scope="module")
async def stage(scene: Scene, light_cluster: LightCluster, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    namespace = f"queue-{zlib.crc32(request.node.name.encode())}"
    made = light_cluster.kubectl("create", "namespace", namespace)
    assert made.returncode == 0, made.stderr
    scene.said.run = None
    held = Stage(scene.client, namespace, scene.said, scene.requests)
    yield held
    await held.delete("RLJob", "run")


async def message(stage: Stage, kind: str) -> str:
    job = await stage.job("run") or {}
    conditions = job.get("status", {}).get("conditions", [])
    return next((str(each["message"]) for each in conditions if each["type"] == kind), "")


async def test_a_job_waits_for_its_queue_runs_where_its_flavor_is_and_returns_its_quota_at_its_end(
    stage: Stage, light_cluster: LightCluster
) -> None:
    tolerations = [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}]
    spec = {"nodeLabels": {"pool": "spot"}, "tolerations": tolerations}
    flavor: dict[str, Any] = {"apiVersion": kinds.QUEUED.api_version, "kind": "ResourceFlavor", "spec": spec}
    await stage.client.apply(kinds.RESOURCE_FLAVOR, "", {**flavor, "metadata": {"name": "spot"}})
    await stage.create(labels=LABELS)
    child = await asked(stage)
    assert [each["name"] for each in child["spec"]["podSets"]] == [str(role) for role in enums.STANDARD_ROLES]
    await operator_queue.write(
        stage, child, stand_in_queue.pending(child, "insufficient unused quota for cpu in flavor spot, 2 more needed")
    )

    async def is_told() -> bool:
        return (await message(stage, "QuotaReserved")).startswith("waits for quota in queue research: insufficient")

    await stage.sees(is_told)
    assert await stage.condition("run", "Suspended") == ("True", "WaitingForQuota")
    assert await stage.pods() == []
    await admit(stage, flavor="spot")
    await stage.runs()
    assert await stage.condition("run", "QuotaReserved") == ("True", "Admitted")
    for pod in await stage.pods():
        assert pod["spec"]["nodeSelector"]["pool"] == "spot"
        assert tolerations[0] in pod["spec"]["tolerations"]

    async def says_ready() -> bool:
        return _holds(await operator_queue.workload(stage), "PodsReady")

    await stage.sees(says_ready)
    stage.said.says(enums.Phase.FINISHED, step=4)
    await stage.end_trainer(0)
    await stage.until("run", "Complete")

    async def is_finished() -> bool:
        return _holds(await operator_queue.workload(stage), "Finished")

    await stage.sees(is_finished)
    assert not [pod for pod in await stage.pods() if pod["status"].get("phase") not in ("Succeeded", "Failed")]


async def test_a_workload_that_is_deleted_by_hand_stops_the_run_which_asks_again(stage: Stage) -> None:
    await stage.create(labels=LABELS)
    await admit(stage)
    await stage.runs()
    before = await asked(stage)
    await stage.delete("Workload", before["metadata"]["name"])
    await stage.until("run", "Suspended")
    after = await asked(stage)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


async def test_a_job_that_its_user_suspends_leaves_the_queue(stage: Stage) -> None:
    await stage.create(labels=LABELS)
    await admit(stage)
    await stage.runs()
    await stage.edit("run", {"suspend": True})
    await stage.until("run", "Suspended")

    async def has_left() -> bool:
        return await operator_queue.workload(stage) is None

    await stage.sees(has_left)
    assert await stage.condition("run", "QuotaReserved") == ("False", "Suspended")


async def test_a_job_at_rest_in_its_queue_causes_no_write(stage: Stage) -> None:
    await stage.create(labels=LABELS)
    await asked(stage)
    await stage.until("run", "Suspended")
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        await stage.turn()
    before = len(operator_stage.writes(stage.requests))
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
        await stage.turn()
    assert operator_stage.writes(stage.requests)[before:] == []


async def test_a_priority_class_that_does_not_exist_is_named(stage: Stage) -> None:
    await stage.create(labels={**LABELS, "kueue.x-k8s.io/priority-class": "urgent"})
    await stage.until("run", "Accepted", is_="False")
    assert "'urgent': no WorkloadPriorityClass has that name" in await message(stage, "Accepted")
    assert await operator_queue.workload(stage) is None


def _holds(child: dict[str, Any] | None, kind: str) -> bool:
    conditions = ((child or {}).get("status") or {}).get("conditions") or ()
    return any((each["type"], each["status"]) == (kind, "True") for each in conditions)
