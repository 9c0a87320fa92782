import asyncio
from typing import Any, cast

import pytest

from rljob_operator import kinds
from rljob_operator.cache import Cache
from rljob_operator.cluster import ApiError, Client
from rljob_operator.listing import Lister
from rljob_operator.live import LiveCluster, OutOfDateError
from rljob_operator.model import Apply, Delete, Observed, Ref, Scale
from rljob_testing.clock import FakeClock
from rljob_testing.cluster import manifests
from rljob_testing.fake_client import FakeClient, Unheard

KEY = "team/run"


class Scene:
    """A live cluster over a fake client, with a job that is in the cache."""

    def __init__(self) -> None:
        self.client, self.cache, self.clock = FakeClient(), Cache(), FakeClock()
        client = cast(Client, self.client)
        lister = Lister(client=client, cache=self.cache, namespaces=(None,))
        self.lister = lister
        self.live = LiveCluster(
            client=client, cache=self.cache, lister=lister, coordinators=Unheard(), clock=self.clock.now
        )
        self.job = self.client.hold(cast(dict[str, Any], manifests.job("run", {})))
        self.cache.put(kinds.RLJOB, self.job)

    def observe(self, *, live: bool = False) -> Observed | None:
        return asyncio.run(self.live.observe(KEY, live=live))

    def seen(self) -> Observed:
        found = self.observe()
        assert found is not None
        return found

    def child(self, kind: str = "ConfigMap", name: str = "run-config", **more: Any) -> dict[str, Any]:
        owner = {"kind": "RLJob", "name": "run", "uid": self.job["metadata"]["uid"], "controller": True}
        labels = {"rljob.dev/job": "run", "app.kubernetes.io/managed-by": "rljob-operator"}
        metadata = {"name": name, "namespace": "team", "labels": labels, "ownerReferences": [owner]}
        version = kinds.BY_NAME[kind].api_version
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}

    def apply(self, **more: Any) -> None:
        asyncio.run(self.live.apply(self.seen(), Apply(**{"manifest": self.child(), **more})))


def test_first_apply_looks_whether_the_name_is_free_and_later_ones_name_the_object() -> None:
    scene = Scene()
    scene.apply()
    uid = scene.client.objects[("ConfigMap", "run-config")]["metadata"]["uid"]
    scene.apply(uid=uid)
    applied = "apply ConfigMap run-config"
    assert scene.client.requests == ["get ConfigMap run-config", applied, applied]


def test_what_was_written_is_seen_by_the_next_pass_before_any_watch_says_so() -> None:
    scene = Scene()
    scene.apply()
    assert list(scene.seen().children) == [Ref("ConfigMap", "run-config")]


def test_object_of_another_owner_is_a_conflict_that_is_tried_again_later() -> None:
    scene = Scene()
    foreign = scene.child()
    foreign["metadata"]["ownerReferences"] = []
    scene.client.hold(foreign)
    with pytest.raises(OutOfDateError, match="is not this job's"):
        scene.apply()
    refusal = scene.seen().refusal
    assert refusal is not None
    assert (refusal.reason, refusal.again_at) == ("NameConflict", scene.clock.now() + 60)
    assert "apply ConfigMap run-config" not in scene.client.requests


@pytest.mark.parametrize(("status", "reason", "again"), [(422, "ChildRejected", False), (403, "Forbidden", True)])
def test_refused_child_is_kept_until_the_spec_changes(status: int, reason: str, again: bool) -> None:
    scene = Scene()
    scene.client.fail["apply ConfigMap run-config"] = status
    with pytest.raises(OutOfDateError, match="apply configmaps: refused"):
        scene.apply()
    refusal = scene.seen().refusal
    assert refusal is not None
    assert (refusal.reason, refusal.again_at is not None) == (reason, again)
    scene.cache.put(kinds.RLJOB, scene.client.hold(scene.job, generation=2))
    assert scene.seen().refusal is None


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_failure_that_may_pass_is_raised_and_says_nothing_of_the_job(status: int) -> None:
    scene = Scene()
    scene.client.fail["apply ConfigMap run-config"] = status
    with pytest.raises(ApiError):
        scene.apply()
    assert scene.seen().refusal is None


def test_child_that_was_replaced_meanwhile_is_read_again() -> None:
    scene = Scene()
    scene.apply()
    old = scene.client.objects.pop(("ConfigMap", "run-config"))
    new = scene.client.hold(scene.child())
    with pytest.raises(OutOfDateError, match="was replaced"):
        scene.apply(uid=old["metadata"]["uid"])
    assert scene.seen().children[Ref("ConfigMap", "run-config")].uid == new["metadata"]["uid"]


def test_status_of_a_replaced_job_is_dropped() -> None:
    scene = Scene()
    seen = scene.seen()
    scene.client.objects.pop(("RLJob", "run"))
    asyncio.run(scene.live.write_status(seen, seen.status))
    assert scene.observe() is None
    scene.client.hold(scene.job, uid="another")
    asyncio.run(scene.live.write_status(seen, seen.status))
    assert "status" not in scene.client.objects[("RLJob", "run")]


def test_status_that_is_refused_for_the_same_job_stops_the_pass() -> None:
    scene = Scene()
    scene.client.fail["status RLJob run"] = 409
    with pytest.raises(OutOfDateError):
        asyncio.run(scene.live.write_status(scene.seen(), scene.seen().status))


def test_status_that_rests_on_an_older_one_is_refused_and_the_newer_one_is_seen() -> None:
    scene = Scene()
    seen = scene.seen()
    scene.client.hold({**scene.job, "status": {"step": 7}})
    with pytest.raises(OutOfDateError):
        asyncio.run(scene.live.write_status(seen, seen.status))
    assert scene.client.objects[("RLJob", "run")]["status"] == {"step": 7}, "what another operator wrote stands"
    assert scene.seen().status.step == 7


@pytest.mark.parametrize("status", [404, 409])
def test_deleting_what_is_gone_is_a_success(status: int) -> None:
    scene = Scene()
    scene.apply()
    uid = scene.client.objects[("ConfigMap", "run-config")]["metadata"]["uid"]
    scene.client.objects.clear()
    scene.client.fail["delete ConfigMap run-config"] = status
    asyncio.run(scene.live.delete(scene.seen(), Delete(ref=Ref("ConfigMap", "run-config"), uid=uid)))
    assert scene.cache.children(KEY, scene.job["metadata"]["uid"]) == {}


def test_scaling_what_is_gone_is_a_success() -> None:
    scene = Scene()
    asyncio.run(scene.live.scale(scene.seen(), Scale(ref=Ref("Deployment", "run-rollout"), uid="u", replicas=0)))
    assert scene.client.requests == ["merge Deployment run-rollout", "get Deployment run-rollout"]


def test_live_look_forgets_a_trainers_job_that_is_gone() -> None:
    scene = Scene()
    made = scene.client.hold(scene.child("Job", "run-trainer-3", spec={"completions": 1}))
    scene.cache.put(kinds.BY_NAME["Job"], made)
    del scene.client.objects[("Job", "run-trainer-3")]
    assert list(scene.seen().children) == [Ref("Job", "run-trainer-3")], "the cache does not know yet"
    found = scene.observe(live=True)
    assert found is not None
    assert not found.children


def test_live_look_finds_the_job_of_the_next_attempt_which_no_watch_has_told_of() -> None:
    scene = Scene()
    scene.client.hold({**scene.job, "status": {"attempt": 2}})
    scene.client.hold(scene.child("Job", "run-trainer-3", spec={"completions": 1}))
    found = scene.observe(live=True)
    assert found is not None
    assert list(found.children) == [Ref("Job", "run-trainer-3")]


def test_live_look_at_a_job_without_pods_lists_nothing() -> None:
    scene = Scene()
    scene.observe(live=True)
    assert scene.client.requests == ["get RLJob run", "get Job run-trainer-1"]


def test_live_look_lists_pods_where_a_trainers_job_is_there() -> None:
    scene = Scene()
    scene.client.hold(scene.child("Job", "run-trainer-1", spec={"completions": 1}))
    scene.observe(live=True)
    assert scene.client.requests[-1] == "list Pod"


def test_job_that_no_model_takes_gets_a_status_with_its_problems() -> None:
    scene = Scene()
    scene.job["spec"]["maxSteps"] = "many"
    scene.cache.put(kinds.RLJOB, scene.client.hold(scene.job))
    assert scene.observe() is None
    status = scene.client.objects[("RLJob", "run")]["status"]
    accepted = next(one for one in status["conditions"] if one["type"] == "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert "maxSteps" in accepted["message"]
    before = len(scene.client.requests)
    assert scene.observe() is None
    assert len(scene.client.requests) == before, "it is written once"
