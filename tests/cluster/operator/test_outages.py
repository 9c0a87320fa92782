"""What a cluster does to a job besides failing it: an operator that is away, quotas, webhooks, a namespace that goes.

On a real API server with the real admission chain, quota and workload controllers; there is no node, and pods are
played. Each test has an operator of its own, which looks after the test's namespace alone. The same breaks with real
pods: `tests/cluster/nodes/test_outages.py`.
"""

import contextlib
import json
import pathlib
import re
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from rljob_api import enums
from rljob_operator import clock
from rljob_operator.kube import client as cluster
from rljob_operator.kube import kinds
from rljob_operator.pki.manager import SECRET
from rljob_operator.settings import JobSettings, Settings
from rljob_testing import certificates, operator_installation, operator_stage, operator_stories
from rljob_testing.charts import Helm, program_or_skip
from rljob_testing.cluster import admission, webhook_server, webhooks
from rljob_testing.cluster.light import LightCluster
from rljob_testing.cluster.manifests import Object
from rljob_testing.operator_installation import Installed
from rljob_testing.operator_stage import Request, Stage, writes

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEADLINE_S, STALL_S, LONG_AGO_S = 600, 30, 3600.0
# Within this time a job says that pods are refused; then the controllers try again, ever more seldom.
NAMED_S, AGAIN_S = 120.0, 180.0
# Tries to hear a coordinator that says nothing.
NUM_TRIES = 3
WATCHED_S, MOST_WRITES = 15.0, 3
DUE_WITHIN_S, RENEWED_S = 30.0, 180.0
# The sum of Kopf's default waits between the tries of a request, after which it ends, and something for the tries.
KOPF_TRIES_S = 60.0


class Scene(NamedTuple):
    """A stage, and the operator that is not there before `running`."""

    cluster: LightCluster
    stage: Stage
    connection: cluster.ApiConnection
    coordinator: str

    @contextlib.asynccontextmanager
    async def running(self, *others: str) -> AsyncIterator[None]:
        """Let an operator look after the stage's namespace, and after others."""
        watched = (self.stage.namespace, *others)
        settings = Settings(jobs=JobSettings(images=operator_stage.IMAGES), watch_namespaces=watched)
        async with operator_stage.running_operator(
            self.connection, coordinator=self.coordinator, settings=settings, requests=self.stage.requests
        ):
            yield

    def apply(self, document: Object) -> None:
        """Apply an object in the stage's namespace."""
        done = self.cluster.kubectl("apply", "-n", self.stage.namespace, "-f", "-", stdin=json.dumps(document))
        assert done.returncode == 0, done.stderr


@pytest_asyncio.fixture(loop_scope="module")
async def scene(installed: Installed, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    namespace = f"outage-{zlib.crc32(request.node.name.encode())}"
    _done(installed.cluster, "create", "namespace", namespace)
    connection = await cluster.connect(str(installed.cluster.kubeconfig))
    client = cluster.Client(connection, qps=1000.0, burst=1000)
    async with operator_stage.said_status() as (said, coordinator):
        yield Scene(installed.cluster, Stage(client, namespace, said, list[Request]()), connection, coordinator)
    _removed(installed.cluster, namespace)
    await client.close()
    await operator_stage.connections_gone()


def _removed(plane: LightCluster, namespace: str) -> None:
    """Remove the jobs of a namespace, which a later operator would look after, and begin to remove the namespace.

    It is not waited for: no kubelet ends its pods.
    """
    _done(plane, "delete", "rljobs", "-n", namespace, "--all", "--timeout=50s")
    _done(plane, "delete", "namespace", namespace, "--wait=false")


@pytest.fixture(scope="module")
def hooks(installed: Installed) -> Iterator[webhooks.Webhooks]:
    with webhooks.serving(installed.cluster) as found:
        yield found


def _done(plane: LightCluster, *arguments: str) -> None:
    done = plane.kubectl(*arguments)
    assert done.returncode == 0, done.stderr


async def _says(stage: Stage, kind: str) -> str:
    """Return status, reason and message of a condition of the job, in one line."""
    found = await stage.job("run")
    conditions = (found or {}).get("status", {}).get("conditions", [])
    (said,) = (one for one in conditions if one["type"] == kind)
    return f"{said['status']} {said['reason']}: {said['message']}"


# The operator is away.


async def _started_long_ago(scene: Scene) -> None:
    """Leave a job behind whose pods were made and placed, and whose time to start is over by now, as they say."""
    stage = scene.stage
    async with scene.running():
        await stage.create(startupDeadlineSeconds=DEADLINE_S)

        async def begins() -> bool:
            status = (await stage.job("run") or {}).get("status", {})
            return "scheduledTime" in status and len(await stage.pods()) == len(enums.STANDARD_ROLES)

        await stage.sees(begins)
    then = clock.to_timestamp(time.time() - LONG_AGO_S)
    await _set_status(stage, kinds.RLJOB, "run", {"startTime": then, "scheduledTime": then})
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": then} for kind in ("PodScheduled", "Ready")]
    for pod in await stage.pods():
        await _set_status(stage, kinds.POD, pod["metadata"]["name"], {"conditions": conditions})


async def _set_status(stage: Stage, kind: kinds.Kind, name: str, status: dict[str, object]) -> None:
    await stage.client.merge(kind, stage.namespace, name, {"status": status}, subresource="status")


async def test_run_that_stepped_while_the_operator_was_away_is_left_alone(scene: Scene) -> None:
    stage = scene.stage
    await _started_long_ago(scene)
    before = {pod["metadata"]["uid"] for pod in await stage.pods()}
    tried = stage.said.num_opened
    async with scene.running():
        # The coordinator cannot be reached at first, as while DNS or a node is slow: no word is not a reason to end a
        # run.
        async def was_tried() -> bool:
            return stage.said.num_opened >= tried + NUM_TRIES

        await stage.sees(was_tried)
        assert (await _says(stage, "Failed")).startswith("False")
        await stage.runs(step=300)
        found = await stage.job("run")
    assert found is not None
    assert (found["status"]["attempt"], found["status"]["step"]) == (1, 300)
    assert {pod["metadata"]["uid"] for pod in await stage.pods()} == before


async def test_run_that_reports_no_step_is_ended_by_an_operator_that_was_away(scene: Scene) -> None:
    stage = scene.stage
    await _started_long_ago(scene)
    stage.said.says(enums.Phase.STARTING, step=0)
    async with scene.running():
        await stage.until("run", "Failed")
    assert f"spec.startupDeadlineSeconds = {DEADLINE_S}" in await _says(stage, "Failed")


# The API server is away.


async def test_run_goes_on_by_itself_after_an_api_server_that_was_away(scene: Scene) -> None:
    stage = scene.stage
    async with scene.running():
        await stage.create(failurePolicy__stall__timeoutSeconds=STALL_S)
        await stage.runs()
        before = {pod["metadata"]["uid"] for pod in await stage.pods()}
        scene.cluster.stop_server()
        # The run does not need it, and is heard all the same.
        said = stage.said.num_said
        stage.said.says(enums.Phase.RUNNING, step=2)
        await operator_stage.until(lambda: stage.said.num_said > said)
        scene.cluster.start_server()

        async def is_told() -> bool:
            return (await stage.job("run") or {})["status"]["step"] == 2

        await stage.sees(is_told)
        await stage.until("run", "Running")
        assert {pod["metadata"]["uid"] for pod in await stage.pods()} == before
        # And what has to be done is done again.
        await stage.end_trainer(75)
        await stage.sees(_second_attempt(stage))


# Pods are refused by the quota of a namespace.

QUOTAS = {
    # A namespace that has used up what it has.
    "no pod more": ({"pods": "0"}, "exceeded quota: tight"),
    # What a quota of a resource asks of every pod; verifiers have it.
    "no pod without a limit": ({"limits.memory": "1Ti"}, "must specify limits.memory"),
}


@pytest.mark.parametrize("quota", QUOTAS)
async def test_pods_that_a_quota_refuses_are_told_of_and_made_when_it_is_lifted(scene: Scene, quota: str) -> None:
    stage, (hard, why) = scene.stage, QUOTAS[quota]
    admission.apply_quota(scene.cluster, stage.namespace, "tight", hard, why)
    async with scene.running():
        await stage.create()

        async def is_told() -> bool:
            return "CreateFailed" in await stage.condition("run", "PodsScheduled")

        await stage.sees(is_told, within_s=NAMED_S)
        said = await _says(stage, "PodsScheduled")
        assert re.match("False CreateFailed: (Deployment|StatefulSet|Job) run-[a-z0-9-]+: ", said), said
        assert why in said
        _done(scene.cluster, "delete", "resourcequota", "tight", "-n", stage.namespace)
        stage.said.says(enums.Phase.RUNNING, step=1)
        await stage.until("run", "Running", within_s=AGAIN_S)
        assert (await _says(stage, "PodsScheduled")).startswith("True")


# A webhook refuses one kind of child in the middle of a run.


@pytest.mark.parametrize("code", [400, 403, 422, 0], ids=["400", "403", "422", "nobody answers"])
async def test_refused_deployments_do_not_stop_the_recovery_of_the_trainer(
    scene: Scene, hooks: webhooks.Webhooks, code: int
) -> None:
    stage = scene.stage
    async with scene.running():
        await stage.create()
        await stage.runs()
        refusing = hooks.refusing("deployments", stage.namespace, code=code)
        with refusing if code else hooks.silent("deployments", stage.namespace):
            await stage.edit("run", {"rollout": {"replicas": 2}})
            if code:
                await stage.until("run", "ChildrenApplied", is_="False")
                said = await _says(stage, "ChildrenApplied")
                assert "Deployment run-rollout: " in said, "it names the child"
                assert webhook_server.MESSAGE in said, "and what the webhook says"
            await stage.end_trainer(75)
            await stage.sees(_second_attempt(stage))
            await stage.until("run", "Running")
            assert len(await stage.pods(enums.Role.ROLLOUT)) == 1
        if code in (400, 403):
            return  # What was refused is tried again after a minute, whatever the code: once is enough.

        async def is_two() -> bool:
            return len(await stage.pods(enums.Role.ROLLOUT)) == 2

        await stage.sees(is_two, within_s=AGAIN_S)
        await stage.until("run", "ChildrenApplied")
        await stage.until("run", "Running")


def _second_attempt(stage: Stage) -> Callable[[], Awaitable[bool]]:
    async def is_there() -> bool:
        return [found["metadata"]["name"] for found in await stage.children("Job")] == ["run-trainer-2"]

    return is_there


async def test_job_runs_without_what_only_guards_it(scene: Scene, hooks: webhooks.Webhooks) -> None:
    stage = scene.stage
    async with scene.running():
        with hooks.refusing("poddisruptionbudgets", stage.namespace, code=403):
            # Several rollouts have a budget.
            await stage.create(rollout__replicas=2)
            await stage.runs()
            await stage.until("run", "ChildrenApplied", is_="False")
            assert "PodDisruptionBudget run-rollout: " in await _says(stage, "ChildrenApplied")
            await stage.until("run", "Running")
            # A budget that was refused is not a reason to be without a trainer.
            await stage.end_trainer(75)
            await stage.sees(_second_attempt(stage))
        await stage.until("run", "ChildrenApplied", within_s=AGAIN_S)
        await stage.until("run", "Running")


async def test_refused_change_that_is_taken_back_is_forgotten(scene: Scene, hooks: webhooks.Webhooks) -> None:
    stage = scene.stage
    async with scene.running():
        await stage.create()
        await stage.runs()
        with hooks.refusing("deployments", stage.namespace):
            await stage.edit("run", {"rollout": {"replicas": 2}})
            await stage.until("run", "ChildrenApplied", is_="False")
            # It is what it was: nothing is left to apply.
            await stage.edit("run", {"rollout": {"replicas": 1}})
            await stage.until("run", "ChildrenApplied")
            await stage.until("run", "Running")


# A webhook adds to whatever makes pods.


async def test_additions_of_a_mutating_webhook_are_not_fought(scene: Scene, hooks: webhooks.Webhooks) -> None:
    stage = scene.stage
    tolerations = [{"key": "own", "operator": "Exists"}]
    with hooks.injecting(stage.namespace):
        async with scene.running():
            # An atomic list of our own, to which the webhook adds.
            await stage.create(rollout__pod__tolerations=tolerations)
            await stage.runs()
            end, before = time.monotonic() + WATCHED_S, len(writes(stage.requests))
            while time.monotonic() < end:
                await stage.turn()
            written = [one for one in writes(stage.requests)[before:] if one[1] != "events"]
            assert len(written) <= MOST_WRITES, written
            for kind in ("Deployment", "StatefulSet", "Job"):
                for child in await stage.children(kind):
                    spec = child["spec"]["template"]["spec"]
                    assert webhook_server.INJECTED in [one["name"] for one in spec["volumes"]]
            # Another hand is distinguished from the webhook's.
            await operator_stories.edited_child_is_mended(stage)
            await stage.edit("run", {"rollout": {"replicas": 2}})

            async def followed() -> bool:
                return len(await stage.pods(enums.Role.ROLLOUT)) == 2

            await stage.sees(followed)


# A namespace that is watched goes.


async def _certificate(stage: Stage) -> str:
    secret = await stage.client.get(SECRET, stage.namespace, "run-tls-verifier")
    assert secret is not None
    return str(secret["data"]["tls.crt"])


async def _leave_one_that_is_due(stage: Stage) -> str:
    """Replace a certificate by one that is soon to be renewed, and return it."""
    job, authority = await stage.job("run"), await stage.client.get(SECRET, stage.namespace, "run-ca")
    assert job is not None
    assert authority is not None
    data = certificates.leaf_that_is_due(
        job, authority["data"], enums.Role.VERIFIER, now=time.time(), within_s=DUE_WITHIN_S
    )
    await stage.client.merge(SECRET, stage.namespace, "run-tls-verifier", {"data": data})
    return data["tls.crt"]


@pytest.mark.timeout(600)  # renewals are looked for every minute
async def test_namespace_that_goes_and_comes_back_costs_the_others_nothing(
    scene: Scene, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    stage, system = scene.stage, "outage-system"
    other = Stage(stage.client, "outage-other", stage.said, stage.requests)
    watched = (stage.namespace, other.namespace)
    _done(scene.cluster, "create", "namespace", other.namespace)
    request.addfinalizer(lambda: _removed(scene.cluster, other.namespace))
    helm = Helm(program_or_skip("helm"), tmp_path)
    own = operator_installation.install(scene.cluster, helm, system=system, watched=watched)
    # An account that has rights in these namespaces alone is refused in one that is gone.
    scene = scene._replace(connection=await cluster.connect(str(own)))

    async def has_pods() -> bool:
        return len(await stage.pods()) == len(enums.STANDARD_ROLES)

    async with scene.running(other.namespace):
        await stage.create(security__tls="Operator")
        await stage.sees(has_pods)
    due = await _leave_one_that_is_due(stage)
    async with scene.running(other.namespace):
        _done(scene.cluster, "delete", "namespace", other.namespace, "--timeout=50s")

        async def is_renewed() -> bool:
            return await _certificate(stage) != due

        await stage.sees(is_renewed, within_s=RENEWED_S)
    # An operator that never saw the namespace works for the others, and for this one when it is there.
    async with scene.running(other.namespace):
        began = time.monotonic()
        await stage.edit("run", {"rollout": {"replicas": 2}})

        async def followed() -> bool:
            return len(await stage.pods(enums.Role.ROLLOUT)) == 2

        await stage.sees(followed)
        # It has been refused for longer than a watch of Kopf's own settings is tried.
        await operator_stage.until(lambda: time.monotonic() > began + KOPF_TRIES_S, within_s=2 * KOPF_TRIES_S)
        _done(scene.cluster, "create", "namespace", other.namespace)
        operator_installation.grant(scene.cluster, helm, system=system, watched=watched)
        await other.create()

        async def has_begun() -> bool:
            return bool(await other.children("Job"))

        await other.sees(has_begun)
