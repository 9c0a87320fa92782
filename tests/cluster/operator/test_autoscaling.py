"""The cluster's own HPA on a real metrics API: rollouts grow while the trainer waits, and go when they wait."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rljob_api import enums
from rljob_operator.kube import client as cluster
from rljob_operator.kube import kinds
from rljob_operator.resources import autoscaling
from rljob_testing import operator_stage
from rljob_testing.operator_installation import Installed
from rljob_testing.operator_stage import Request, Stage, writes

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMESPACE = "autoscaling"
MOST = 3
# The window over which the HPA takes the least of what it would do, with room for a busy machine.
WITHIN_S = 400.0


@pytest_asyncio.fixture(loop_scope="module")
async def stage(installed: Installed) -> AsyncIterator[Stage]:
    """An operator with its own account; pods are played, so that there are as many as the HPA wants."""
    made = installed.cluster.kubectl("create", "namespace", NAMESPACE)
    assert made.returncode == 0, made.stderr
    requests = list[Request]()
    client = cluster.Client(await cluster.connect(str(installed.cluster.kubeconfig)), qps=1000.0, burst=1000)
    own = await cluster.connect(str(installed.kubeconfig))
    async with operator_stage.said_status() as (said, coordinator):
        async with operator_stage.running_operator(own, coordinator=coordinator, requests=requests):
            found = Stage(client, NAMESPACE, said, requests)
            yield found
            await found.delete(kinds.RLJOB.kind, "run")
    await client.close()
    await operator_stage.connections_gone()


async def _scales_to(stage: Stage, wanted: int) -> None:
    async def has_as_many() -> bool:
        return len(await stage.pods(enums.Role.ROLLOUT)) == wanted

    await stage.sees(has_as_many, within_s=WITHIN_S)
    await stage.until("run", "Running")


@pytest.mark.timeout(1200)  # the HPA looks back over a minute before it adds a pod
async def test_rollouts_grow_while_the_trainer_waits_and_go_when_they_wait_themselves(
    installed: Installed, stage: Stage
) -> None:
    bounds = {"minReplicas": 1, "maxReplicas": MOST, "scaleDownStabilizationSeconds": 0}
    await stage.create(rollout__autoscaling=bounds)
    await stage.runs()
    await stage.until("run", "AutoscalingActive")
    assert len(await stage.pods(enums.Role.ROLLOUT)) == 1

    # The trainer waits for two thirds of its time: three times as many rollouts would keep it busy.
    installed.metrics.waiting = 0.7
    await _scales_to(stage, 3)
    # Rollouts make no progress for three quarters of their time, since the trainer is not waiting for anything.
    installed.metrics.waiting, installed.metrics.blocked = 0.0, 0.75
    await _scales_to(stage, 1)

    assert (NAMESPACE, autoscaling.METRIC, "rljob=run") in installed.metrics.asked
    job = await stage.job("run")
    assert job is not None
    history = [(one["from"], one["to"]) for one in job["status"]["scaling"]["history"]]
    assert history[0] == (1, 3), "out in one step"
    assert history[-1][1] == 1
    assert all(to < before for before, to in history[1:]), "and then only in, however long each look took"
    assert {resource for verb, resource, _ in writes(stage.requests) if resource.startswith("rljobs")} == {
        "rljobs/status"
    }, "the operator writes no replicas: that is the HPA's"
