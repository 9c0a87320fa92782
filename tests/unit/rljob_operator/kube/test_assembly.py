import asyncio
import itertools
import json
import math
import time
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from rljob_api.manifest.job import RLJob
from rljob_api.manifest.status import Condition, JobStatus
from rljob_api.validation import crd
from rljob_operator.app import Operator
from rljob_operator.kube import kinds
from rljob_operator.kube.client import Client, NotLeadingError
from rljob_operator.kube.fence import fence_of
from rljob_operator.model import Observed
from rljob_operator.settings import Settings
from rljob_testing import runtime_makers
from rljob_testing.cluster import manifests
from rljob_testing.fake_client import FakeClient
from rljob_testing.operator_stage import until


class Scene:
    """An operator over a fake client."""

    def __init__(self, **settings: Any) -> None:
        self.client = FakeClient()
        self.operator = Operator(Settings(**settings), cast(Client, self.client))


async def test_operator_is_ready_once_everything_is_listed_and_while_the_api_server_answers() -> None:
    scene = Scene()
    assert scene.operator.ready() == "the first lists are not complete"
    assert scene.operator.alive() == "", "not ready is no reason to be killed"
    await scene.operator.start()
    scene.client.answered_at = time.monotonic()
    assert scene.operator.ready() == ""
    scene.client.answered_at -= 61.0
    assert scene.operator.ready() == "the API server has not answered for 61 s"
    assert scene.operator.alive() == "", "an API server that is away is no reason to be killed"
    await scene.operator.finish()


@pytest.mark.parametrize(("silent_s", "asked"), [(5.0, []), (25.0, ["ping"])])
async def test_idle_operator_asks_for_a_sign_of_life(silent_s: float, asked: list[str]) -> None:
    scene = Scene()
    scene.client.answered_at = time.monotonic() - silent_s
    await scene.operator.hear()
    assert scene.client.requests == asked


async def test_api_server_that_does_not_answer_ends_nothing() -> None:
    scene = Scene()
    scene.client.fail["ping"] = 0
    scene.client.answered_at = time.monotonic() - 90.0
    await scene.operator.hear()
    assert not scene.operator.stopped.is_set()


async def _rounds(loop: Coroutine[Any, Any, None], monkeypatch: pytest.MonkeyPatch, *, rounds: int = 3) -> None:
    """Let a loop of the operator go round: its waits take no time, and the last one ends it."""
    left = itertools.count()

    async def waits(seconds: float) -> None:
        if next(left) == rounds:
            raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr("rljob_operator.app.asyncio.sleep", waits)
        with pytest.raises(asyncio.CancelledError):
            await loop


async def test_namespace_that_was_deleted_does_not_keep_the_operator_from_being_ready() -> None:
    scene = Scene(watch_namespaces=("gone", "team"))
    for kind in (kinds.RLJOB, kinds.POD, *kinds.CHILDREN):
        scene.client.fail[f"list {kind.kind} in gone"] = 403
    await scene.operator.start()
    scene.client.answered_at = time.monotonic()
    assert scene.operator.ready() == ""
    await scene.operator.finish()


async def test_certificates_are_renewed_though_nothing_can_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.client.fail = {f"list {kind.kind}": 403 for kind in (kinds.RLJOB, kinds.POD, *kinds.CHILDREN)}
    job = RLJob.model_validate_json(
        json.dumps(scene.client.hold(cast(dict[str, Any], manifests.job("run", {"security.tls": "Operator"}))))
    )
    await scene.operator._certifier.ensure(job)
    now = time.time()
    monkeypatch.setattr("rljob_operator.clock.time.time", lambda: now + 6 * 86_400)
    before = len(scene.client.requests)
    await _rounds(scene.operator._compare(), monkeypatch)
    assert not [each for each in scene.client.requests[before:] if "Secret" in each]
    await _rounds(scene.operator.listening.renew(), monkeypatch)
    assert scene.client.requests.count("apply Secret run-tls-trainer") == 2


def _tells(operator: Operator, client: FakeClient, *names: str) -> Coroutine[Any, Any, None]:
    """Write statuses by which jobs run: each is worth an Event."""
    condition = {"type": "Running", "status": "True", "reason": "Running", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = JobStatus(conditions=(Condition.model_validate({**condition, "message": ""}),))

    async def written() -> None:
        for name in names:
            raw = client.hold(cast(dict[str, Any], manifests.job(name, {})))
            await operator._status_written(Observed(job=RLJob.model_validate_json(json.dumps(raw))), status)

    return written()


async def test_no_pass_waits_for_an_event_and_each_is_posted_one_after_the_other() -> None:
    scene = Scene()
    await scene.operator.start()
    scene.client.fail["post Event Running"] = 500
    await _tells(scene.operator, scene.client, "a", "b")
    assert "post Event Running" not in scene.client.requests
    await until(lambda: scene.client.requests.count("post Event Running") == 2)
    assert not scene.operator.stopped.is_set(), "one that is refused holds up no other"
    await scene.operator.finish()


async def test_events_that_wait_at_the_end_are_posted_before_the_lead_is_given_back() -> None:
    scene = Scene()
    await _tells(scene.operator, scene.client, "a", "b")
    await scene.operator.finish()
    assert scene.client.requests.count("post Event Running") == 2


async def test_api_that_appears_after_the_start_has_every_job_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    await scene.operator.start()
    scene.operator.cache.put(kinds.RLJOB, scene.client.hold(cast(dict[str, Any], manifests.job("run", {}))))
    await scene.operator._look_for_apis()
    assert len(scene.operator._queue) == 0
    scene.client.api_groups = frozenset({"monitoring.coreos.com", "monitoring.coreos.com/v1"})
    await scene.operator._look_for_apis()
    assert len(scene.operator._queue) == 1
    assert not scene.operator.stopped.is_set()
    await scene.operator.finish()


async def test_an_api_that_has_to_be_watched_and_appears_after_the_start_has_the_process_started_again() -> None:
    scene = Scene()
    await scene.operator.start()
    assert scene.operator.also_watched == ()
    scene.client.api_groups = frozenset({"kueue.x-k8s.io", "kueue.x-k8s.io/v1beta2"})
    await scene.operator._look_for_apis()
    assert scene.operator.stopped.is_set()
    await scene.operator.finish()


@pytest.mark.parametrize("served", [None, {"properties": {}}], ids=["missing", "older"])
async def test_operator_is_not_ready_and_writes_nothing_before_a_definition_is_served_that_it_fits(
    served: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene()
    scene.client.served = served
    looked, mended, sleep = asyncio.Event(), asyncio.Event(), asyncio.sleep

    async def waits(seconds: float) -> None:
        if mended.is_set():
            await sleep(seconds)
        looked.set()
        await mended.wait()

    monkeypatch.setattr("rljob_operator.app.asyncio.sleep", waits)
    starting = asyncio.create_task(scene.operator.start())
    await looked.wait()
    assert "apply the CustomResourceDefinition of this version" in scene.operator.ready()
    assert 'crd_matches="false"' in scene.operator.metrics.exposition().decode()
    assert scene.client.requests == ["get RLJob schema"]
    scene.client.served = crd.root_schema()
    mended.set()
    await starting
    scene.client.answered_at = time.monotonic()
    assert scene.operator.ready() == ""
    assert 'crd_matches="true"' in scene.operator.metrics.exposition().decode()
    await scene.operator.finish()


LEASE = {
    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
    "metadata": {"name": "rljob-operator-shard-0", "namespace": "system"},
    "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600},
}  # fmt: skip


class Elected(Scene):
    """An operator among others; the Lease is another's at first, and a job is there."""

    def __init__(self, **terms: float) -> None:
        self.client = FakeClient()
        short = {"enabled": True, "namespace": "system", "renew_seconds": 0.2, "retry_seconds": 0.01}
        settings = Settings.model_validate({"leader_election": {**short, **terms}})
        self.fence = fence_of(settings.leader_election)
        self.operator = Operator(settings, cast(Client, self.client), fence=self.fence, identity="this")
        self.client.hold(LEASE)
        self.client.hold(manifests.job("run", {}), finalizers=[])
        self.client.answered_at = time.monotonic() + 3600.0

    def holds(self, identity: str) -> None:
        spec = {"leaseDurationSeconds": 3600, **({"holderIdentity": identity} if identity else {})}
        self.client.hold({**LEASE, "spec": spec})

    def writes(self) -> list[str]:
        return [each for each in self.client.requests if each.split()[0] in ("apply", "status", "merge", "delete")]


async def test_an_operator_that_does_not_lead_knows_all_jobs_is_ready_and_writes_nothing() -> None:
    scene = Elected()
    await scene.operator.start()
    reads = scene.client.requests.count("get Lease rljob-operator-shard-0")
    await until(lambda: scene.client.requests.count("get Lease rljob-operator-shard-0") > reads + 3)
    assert scene.operator.ready() == ""
    assert scene.operator.cache.keys == ["team/run"]
    scene.operator.on_object(kinds.RLJOB, False, scene.client.hold(manifests.job("more", {})))
    await asyncio.sleep(0)
    assert scene.writes() == []
    await scene.operator.finish()
    assert scene.client.objects["Lease", "rljob-operator-shard-0"]["spec"]["holderIdentity"] == "another"


async def test_an_operator_that_comes_to_lead_looks_at_every_job_and_gives_its_lease_back_at_the_end() -> None:
    scene = Elected()
    await scene.operator.start()
    scene.holds("")
    await until(scene.writes)
    assert scene.fence.leads(0)
    assert b'rljob_operator_leader{shard="0"} 1.0' in scene.operator.metrics.exposition()
    await scene.operator.finish()
    assert not scene.fence.leads(0)
    assert "holderIdentity" not in scene.client.objects["Lease", "rljob-operator-shard-0"]["spec"]


async def test_an_operator_that_comes_to_lead_says_of_runtimes_what_it_could_not_write_before() -> None:
    scene, unfenced = Elected(), FakeClient.apply_status

    async def fenced(kind: kinds.Kind, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        if not scene.fence.allows(namespace):
            raise NotLeadingError("this process does not lead")
        return await unfenced(scene.client, kind, namespace, body)

    scene.client.apply_status = fenced  # type: ignore[method-assign]
    scene.client.hold({**runtime_makers.document(), "metadata": {"name": "platform", "generation": 1}})
    await scene.operator.start()
    scene.holds("")
    await until(lambda: "status ClusterRLJobRuntime platform" in scene.client.requests)
    await scene.operator.finish()


async def test_an_operator_that_loses_its_lead_drops_what_waits_and_shows_no_jobs_any_more() -> None:
    scene = Elected()
    scene.holds("this")
    await scene.operator.start()
    await until(lambda: b'rljob="run"' in scene.operator.metrics.exposition())
    scene.holds("another")
    await until(lambda: not scene.fence.leads(0))
    await until(lambda: b'rljob="run"' not in scene.operator.metrics.exposition())
    before = scene.writes()
    scene.operator.on_object(kinds.RLJOB, False, scene.client.hold(manifests.job("run", {"maxSteps": 5})))
    await asyncio.sleep(0)
    assert scene.writes() == before
    assert b"rljob_operator_queue_depth 0.0" in scene.operator.metrics.exposition()
    await scene.operator.finish()


async def test_what_changes_while_a_renewal_is_late_is_looked_at_once_it_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rljob_operator.app._TRY_AGAIN_S", 0.01)
    # No renewal is ever late but by the test's own doing.
    scene = Elected(lease_seconds=7200, renew_seconds=3600.0)
    scene.holds("this")
    await scene.operator.start()
    await until(lambda: scene.fence.leads(0) and scene.writes())
    asked, renewed, writes = asyncio.Event(), asyncio.Event(), FakeClient.write_lease

    async def late(*arguments: Any, **named: Any) -> dict[str, Any]:
        asked.set()
        await renewed.wait()
        return await writes(scene.client, *arguments, **named)

    scene.client.write_lease = late  # type: ignore[method-assign]
    await asked.wait()
    # The time of the last renewal is over, and the next one, which is on its way, comes before anyone else takes over.
    scene.fence.set(0, -math.inf)
    before = len(scene.writes())
    scene.operator.on_object(kinds.RLJOB, False, scene.client.hold(manifests.job("more", {}), finalizers=[]))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(scene.writes()) == before, "nothing is written while the lead is in doubt"
    renewed.set()
    await until(lambda: any("more" in each for each in scene.writes()[before:]))
    await scene.operator.finish()
