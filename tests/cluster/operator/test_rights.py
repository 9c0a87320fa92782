"""The operator's own account lives whole lives of jobs with the chart's rights: none is missing, and none is unused."""

import functools
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from rljob_api import enums
from rljob_operator.kube import client as cluster
from rljob_operator.kube import kinds, permissions
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.resync import Lister
from rljob_operator.settings import JobSettings, LeaderElection, Settings
from rljob_testing import operator_installation, operator_stage, operator_stories, runtime_makers
from rljob_testing.cluster import admission
from rljob_testing.cluster.light import LightCluster
from rljob_testing.operator_installation import Installed
from rljob_testing.operator_stage import Request, SaidStatus, Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")
# No one sends a request for this: the API server asks itself whether an owner may be blocked from going, and refuses
# children where this right is missing.
_ASKED_WITHIN = {("rljob.dev", "rljobs/finalizers", "update")}
# Where a watch begins with all that is there, no list comes before it; an older API server needs the list.
_LISTED_WHERE_NO_WATCH_STREAMS = {("apiextensions.k8s.io", "customresourcedefinitions", "list")}
_WITHIN_S = 240.0


class Scene(NamedTuple):
    """What all lives share. own: a client with the operator's account."""

    installed: Installed
    client: cluster.Client
    own: cluster.Client
    said: SaidStatus
    requests: list[Request]

    def stage(self, namespace: str) -> Stage:
        """Return a stage in a namespace of its own."""
        made = self.installed.cluster.kubectl("create", "namespace", namespace)
        assert made.returncode == 0, made.stderr
        self.said.run = None
        return Stage(self.client, namespace, self.said, self.requests)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(installed: Installed) -> AsyncIterator[Scene]:
    requests = list[Request]()
    client = cluster.Client(await cluster.connect(str(installed.cluster.kubeconfig)), qps=1000.0, burst=1000)
    connection = await cluster.connect(str(installed.kubeconfig))
    own = cluster.Client(connection, qps=1000.0, burst=1000)
    async with operator_stage.said_status() as (said, coordinator):
        settings = Settings(
            jobs=JobSettings(images=operator_stage.IMAGES),
            leader_election=LeaderElection(enabled=True, namespace=operator_installation.NAMESPACE),
        )
        async with operator_stage.running_operator(
            connection, coordinator=coordinator, settings=settings, requests=requests
        ):
            yield Scene(installed, client, own, said, requests)
    await own.close()
    await client.close()
    await operator_stage.connections_gone()


async def _a_rank_fails_and_the_other_is_taken_away(stage: Stage) -> None:
    storage = {"type": "Persistent", "checkpoints": {"size": "1Gi"}}
    await stage.create(trainer__nodes=2, rollout__replicas=2, storage=storage)
    await stage.runs()
    await stage.end_trainer(75, num_pods=1)

    async def is_second() -> bool:
        return [found["metadata"]["name"] for found in await stage.children("Job")] == ["run-trainer-2"]

    await stage.sees(is_second, within_s=_WITHIN_S)


async def _a_run_that_takes_too_long_gives_up_its_trainer(stage: Stage) -> None:
    before = len(stage.requests)
    await stage.create(activeDeadlineSeconds=1)

    async def has_deleted_a_pod() -> bool:
        # Of a Job that still counts as active, so that no controller of the cluster takes its pods away first.
        return any(verb == "delete" and plural == "pods" for verb, plural, _ in stage.requests[before:])

    await stage.sees(has_deleted_a_pod, within_s=_WITHIN_S)
    await stage.until("run", "Failed", within_s=_WITHIN_S)


async def _rollouts_that_scale_are_suspended(stage: Stage) -> None:
    await stage.create(rollout__autoscaling={"minReplicas": 2, "maxReplicas": 3})
    await stage.runs()
    assert await stage.get("HorizontalPodAutoscaler", "run-rollout") is not None
    await stage.edit("run", {"suspend": True})
    await stage.until("run", "Suspended", within_s=_WITHIN_S)
    assert await stage.get("HorizontalPodAutoscaler", "run-rollout") is None
    await stage.edit("run", {"suspend": False})

    async def is_there_again() -> bool:
        return await stage.get("HorizontalPodAutoscaler", "run-rollout") is not None

    await stage.sees(is_there_again, within_s=_WITHIN_S)


async def _a_job_is_cleaned_up_and_goes_with_its_time_to_live(stage: Stage) -> None:
    await stage.create(cleanupPolicy__onSuccess={"coordinator": "Delete", "trainer": "Delete"})
    await stage.runs()
    stage.said.says(enums.Phase.FINISHED, step=4)
    await stage.end_trainer(0)

    async def is_cleaned_up() -> bool:
        return not [found for kind in kinds.WORKLOADS for found in await stage.children(kind.kind)]

    await stage.sees(is_cleaned_up, within_s=_WITHIN_S)
    await stage.edit("run", {"ttlSecondsAfterFinished": 0})

    async def is_gone() -> bool:
        return await stage.job("run") is None

    await stage.sees(is_gone, within_s=_WITHIN_S)


async def _policies_go_when_a_job_ceases_to_want_them(stage: Stage) -> None:
    await stage.create()
    await stage.runs()
    assert await stage.children("NetworkPolicy")
    await stage.edit("run", {"suspend": True})
    await stage.until("run", "Suspended", within_s=_WITHIN_S)
    await stage.edit("run", {"suspend": False, "security": {"networkPolicy": False}})

    async def are_gone() -> bool:
        return not await stage.children("NetworkPolicy")

    await stage.sees(are_gone, within_s=_WITHIN_S)
    # Nothing is written any more that the next life would count as its own.
    await stage.runs()


async def _a_runtime_of_the_cluster_is_accepted(stage: Stage) -> None:
    await stage.create()
    await stage.client.apply(kinds.CLUSTER_RUNTIME, "", runtime_makers.document())

    async def is_accepted() -> bool:
        runtime = await stage.client.get(kinds.CLUSTER_RUNTIME, "", "platform")
        return bool(((runtime or {}).get("status") or {}).get("conditions"))

    await stage.sees(is_accepted, within_s=_WITHIN_S)


async def _a_quota_denies_its_pods(plane: LightCluster, stage: Stage) -> None:
    admission.apply_quota(plane, stage.namespace, "none", {"pods": "0"}, "exceeded quota: none")
    await stage.create()

    async def has_asked() -> bool:
        return any(verb == "list" and plural == "events" for verb, plural, _ in stage.requests)

    await stage.sees(has_asked, within_s=_WITHIN_S)


LIVES = (
    operator_stories.suspended_job_has_no_pod_and_goes_on_as_the_next_attempt,
    operator_stories.rollouts_follow_the_replicas_of_the_job,
    operator_stories.certificates_are_there_before_the_pods_that_mount_them,
    _a_rank_fails_and_the_other_is_taken_away,
    _a_run_that_takes_too_long_gives_up_its_trainer,
    _rollouts_that_scale_are_suspended,
    _policies_go_when_a_job_ceases_to_want_them,
    _a_job_is_cleaned_up_and_goes_with_its_time_to_live,
    operator_stories.a_job_waits_for_its_runtime_and_keeps_what_it_was_begun_with,
    _a_runtime_of_the_cluster_is_accepted,
)


@pytest.mark.timeout(1800)  # lives one after another, each a few seconds on a machine that is not busy
async def test_whole_lives_need_every_right_of_the_chart_and_no_other(scene: Scene) -> None:
    refused = functools.partial(_a_quota_denies_its_pods, scene.installed.cluster)
    for number, life in enumerate((*LIVES, refused)):
        stage = scene.stage(f"life-{number}")
        await life(stage)
        # What the operator does every few minutes, with a cache that knows nothing: everything is read once.
        await Lister(client=scene.own, cache=Cache(), namespaces=(None,)).compare()
        await stage.delete(kinds.RLJOB.kind, "run")
    asked = list(scene.installed.audit.since())
    assert [one for one in asked if one.status == 403] == []
    # Everyone may ask which APIs are served.
    used = {(one.group, one.resource, one.verb) for one in asked if one.resource}
    # An apply that makes an object needs both rights.
    used |= {(one.group, one.resource, "create") for one in asked if (one.verb, one.status) == ("patch", 201)}
    granted = {
        (rule.group, resource, verb)
        for rule in permissions.RULES
        if rule.when in ("always", "tls", "leaderElection")
        for resource in rule.resources
        for verb in rule.verbs
    }
    assert used - granted == set(), "granted to everybody, or to this account by somebody else"
    streams = await scene.own.streams(kinds.RLJOB, None)
    unseen = _ASKED_WITHIN | (_LISTED_WHERE_NO_WATCH_STREAMS if streams else set())
    assert granted - used == unseen, "take away what nothing uses"
