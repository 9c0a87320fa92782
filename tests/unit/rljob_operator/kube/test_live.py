import asyncio
import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import pytest

from rljob_api import enums
from rljob_operator.kube import kinds
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.client import ApiError, Client
from rljob_operator.kube.kinds import Kind
from rljob_operator.kube.resync import Lister
from rljob_operator.model import Apply, Delete, Observed, Plan, Ref, Refusal, Scale
from rljob_operator.policies import drift
from rljob_operator.reconcile.cluster import LiveCluster, OutOfDateError
from rljob_testing.clock import FakeClock
from rljob_testing.cluster import manifests
from rljob_testing.fake_client import FakeClient, Unheard

KEY = "team/run"


class Scene:
    """A live cluster over a fake client, with a job that is in the cache."""

    def __init__(self, api: FakeClient | None = None) -> None:
        self.client, self.cache, self.clock = api or FakeClient(), Cache(), FakeClock()
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

    def apply(self, **more: Any) -> Refusal | None:
        return asyncio.run(self.live.apply(self.seen(), Apply(**{"manifest": self.child(), **more})))


def test_a_child_is_made_by_one_request_and_later_ones_name_the_object() -> None:
    scene = Scene()
    scene.apply()
    uid = scene.client.objects[("ConfigMap", "run-config")]["metadata"]["uid"]
    scene.apply(uid=uid)
    assert scene.client.requests == ["apply ConfigMap run-config"] * 2


def test_a_child_that_is_there_though_no_watch_reported_it_is_looked_at_and_changed() -> None:
    scene = Scene()
    there = scene.client.hold(scene.child(data={"a": "old"}))
    assert scene.apply(manifest=scene.child(data={"a": "new"})) is None
    applied = "apply ConfigMap run-config"
    assert scene.client.requests == [applied, "get ConfigMap run-config", applied]
    live = scene.client.objects[("ConfigMap", "run-config")]
    assert (live["data"], live["metadata"]["uid"]) == ({"a": "new"}, there["metadata"]["uid"])


def test_what_was_written_is_seen_by_the_next_pass_before_any_watch_says_so() -> None:
    scene = Scene()
    scene.apply()
    assert list(scene.seen().children) == [Ref("ConfigMap", "run-config")]


def test_claim_that_outlives_its_job_is_known_by_its_label_and_one_of_another_job_is_not_taken() -> None:
    scene = Scene()
    claim = scene.child("PersistentVolumeClaim", "run-state-1", spec={"accessModes": ["ReadWriteOnce"]})
    del claim["metadata"]["ownerReferences"]
    claim["metadata"]["labels"]["rljob.dev/uid"] = scene.job["metadata"]["uid"]
    assert scene.apply(manifest=claim) is None
    assert list(scene.seen().children) == [Ref("PersistentVolumeClaim", "run-state-1")]
    other = copy.deepcopy(claim)
    other["metadata"]["name"], other["metadata"]["labels"]["rljob.dev/uid"] = "run-state-2", "another"
    scene.client.hold(other)
    refusal = scene.apply(manifest={**claim, "metadata": {**claim["metadata"], "name": "run-state-2"}})
    assert refusal is not None
    assert refusal.reason == "NameConflict"


def test_object_of_another_owner_is_a_conflict_that_is_tried_again_later() -> None:
    scene = Scene()
    foreign = scene.child()
    foreign["metadata"]["ownerReferences"] = []
    untouched = copy.deepcopy(scene.client.hold(foreign))
    refusal = scene.apply()
    assert refusal is not None
    assert (refusal.reason, refusal.again_at) == ("NameConflict", scene.clock.now() + 60)
    assert "is not this job's" in refusal.message
    assert scene.client.objects[("ConfigMap", "run-config")] == untouched


@pytest.mark.parametrize(
    ("status", "reason"), [(400, "ChildRejected"), (403, "Forbidden"), (404, "ChildRejected"), (422, "ChildRejected")]
)
def test_refused_child_is_tried_again_later_and_later_for_ever(status: int, reason: str) -> None:
    scene = Scene()
    scene.client.fail["apply ConfigMap run-config"] = status
    waits = []
    for _ in range(8):
        refusal = scene.apply()
        assert refusal is not None
        assert (refusal.reason, refusal.message) == (reason, "apply configmaps: refused")
        waits.append(refusal.again_at - scene.clock.now())
        scene.clock.tick(waits[-1])
    assert waits == [60, 120, 240, 480, 600, 600, 600, 600]
    assert scene.seen().refusals[refusal.ref].times == 8
    scene.client.fail = {}
    assert scene.apply() is None
    assert scene.seen().refusals == {}


def test_refusal_of_one_child_says_nothing_of_another() -> None:
    scene = Scene()
    scene.client.fail["apply ConfigMap run-config"] = 403
    scene.apply()
    assert scene.apply(manifest=scene.child("Service", "run-coordinator")) is None
    assert list(scene.seen().refusals) == [Ref("ConfigMap", "run-config")]


def test_webhook_that_does_not_answer_holds_up_its_child_alone_and_is_tried_again_soon() -> None:
    scene = Scene()
    scene.client.fail["apply ConfigMap run-config"] = 500
    waits = []
    for _ in range(4):
        refusal = scene.apply()
        assert refusal is not None
        waits.append(refusal.again_at - scene.clock.now())
        scene.clock.tick(waits[-1])
    assert (waits, refusal.passing) == ([2, 4, 8, 16], True)


@pytest.mark.parametrize("status", [0, 429, 502, 503, 504])
def test_server_that_does_not_answer_ends_the_pass_and_says_nothing_of_the_job(status: int) -> None:
    scene = Scene()
    scene.client.fail["apply ConfigMap run-config"] = status
    with pytest.raises(ApiError):
        scene.apply()
    assert scene.seen().refusals == {}


@pytest.mark.parametrize("verb", ["merge", "delete"])
def test_refusal_to_scale_or_delete_is_kept_and_not_raised(verb: str) -> None:
    scene = Scene()
    ref = Ref("Deployment", "run-rollout")
    held = scene.client.hold(scene.child(*dataclasses.astuple(ref), spec={"replicas": 1}))
    scene.client.fail[f"{verb} Deployment run-rollout"] = 403
    uid = held["metadata"]["uid"]
    if verb == "merge":
        refusal = asyncio.run(scene.live.scale(scene.seen(), Scale(ref=ref, uid=uid, replicas=0)))
    else:
        refusal = asyncio.run(scene.live.delete(scene.seen(), Delete(ref=ref, uid=uid)))
    assert refusal is not None
    assert scene.seen().refusals[ref].reason == "Forbidden"


def test_refusal_of_what_is_not_wanted_any_more_is_forgotten() -> None:
    scene = Scene()
    scene.client.fail["apply ConfigMap run-config"] = 403
    scene.apply()
    scene.live.planned(scene.seen(), Plan())
    assert scene.seen().refusals == {}


def test_child_that_lost_the_label_by_which_it_is_watched_gets_it_back_in_the_same_pass() -> None:
    scene = Scene()
    kind, made = kinds.BY_NAME["Deployment"], scene.child("Deployment", "run-rollout", spec={"replicas": 1})
    scene.apply(manifest=made)
    unlabelled = scene.child("Deployment", "run-rollout", spec={"replicas": 1})
    del unlabelled["metadata"]["labels"]["app.kubernetes.io/managed-by"]
    held = scene.client.hold(unlabelled)
    # The server shows a watch by label that such an object is gone.
    scene.cache.remove(kind, held)
    assert scene.seen().children == {}
    assert scene.apply(manifest=made) is None
    live = scene.client.objects["Deployment", "run-rollout"]
    assert live["metadata"]["uid"] == held["metadata"]["uid"]
    assert live["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "rljob-operator"
    assert list(scene.seen().children) == [Ref("Deployment", "run-rollout")]


def test_trainers_job_that_lost_its_label_gets_it_back_and_nothing_else_of_it_is_written() -> None:
    scene = Scene()
    made = scene.child("Job", "run-trainer-1", spec={"completions": 2})
    del made["metadata"]["labels"]["app.kubernetes.io/managed-by"]
    held = scene.client.hold(made)
    scene.cache.remove(kinds.BY_NAME["Job"], held)
    assert scene.apply(manifest=scene.child("Job", "run-trainer-1", spec={"completions": 99})) is None
    live = scene.client.objects["Job", "run-trainer-1"]
    assert live["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "rljob-operator"
    assert live["spec"] == {"completions": 2}
    child = scene.seen().children[Ref("Job", "run-trainer-1")]
    assert (child.attempt, child.role) == (1, enums.Role.TRAINER), "known by its name"


class Webhook(FakeClient):
    """Adds an argument to what is applied, each time. A fake of a mutating webhook."""

    async def apply(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> dict[str, Any]:
        spec = body.get("spec", {})
        return await super().apply(kind, namespace, {**body, "spec": {**spec, "args": [*spec.get("args", []), "x"]}})


def _wanted(scene: Scene, *args: str) -> dict[str, Any]:
    child = scene.child("Deployment", "run-rollout", spec={"args": list(args)})
    return cast(dict[str, Any], drift.signed(child))


def _due(scene: Scene, wanted: dict[str, Any]) -> float | None:
    seen = scene.seen()
    child = seen.children[Ref("Deployment", "run-rollout")]
    return drift.due_at(child.manifest, wanted, seen.written.get(child.uid), now=scene.clock.now())


def test_child_that_a_webhook_changes_whenever_it_is_written_is_written_once() -> None:
    scene = Scene(Webhook())
    wanted = _wanted(scene, "a")
    scene.apply(manifest=wanted)
    assert scene.client.objects["Deployment", "run-rollout"]["spec"]["args"] == ["a", "x"]
    assert _due(scene, wanted) is None
    assert _due(scene, _wanted(scene, "b")) is not None, "another intent is written"


def test_edit_by_hand_of_a_child_that_a_webhook_changes_is_repaired() -> None:
    scene = Scene(Webhook())
    wanted = _wanted(scene, "a")
    scene.apply(manifest=wanted)
    edited = copy.deepcopy(scene.client.objects["Deployment", "run-rollout"])
    edited["spec"]["args"] = ["by hand"]
    scene.cache.put(kinds.BY_NAME["Deployment"], scene.client.hold(edited))
    assert _due(scene, wanted) == scene.clock.now()
    scene.apply(manifest=wanted, uid=edited["metadata"]["uid"])
    assert _due(scene, wanted) is None


def test_writes_against_another_hand_that_never_rests_are_few() -> None:
    scene = Scene()
    wanted, began, writes = _wanted(scene, "a"), scene.clock.now(), 0
    scene.apply(manifest=wanted)
    uid = scene.client.objects["Deployment", "run-rollout"]["metadata"]["uid"]
    while scene.clock.now() < began + 3600:
        edited = copy.deepcopy(scene.client.objects["Deployment", "run-rollout"])
        edited["spec"]["args"] = ["theirs"]
        scene.cache.put(kinds.BY_NAME["Deployment"], scene.client.hold(edited))
        due = _due(scene, wanted)
        assert due is not None, "it is never given up"
        scene.clock.tick(due - scene.clock.now())
        scene.apply(manifest=wanted, uid=uid)
        writes += 1
    assert writes < 20
    scene.clock.tick(3600)
    edited["spec"]["args"] = ["another day"]
    scene.cache.put(kinds.BY_NAME["Deployment"], scene.client.hold(edited))
    assert _due(scene, wanted) == scene.clock.now(), "an edit long after is repaired at once"


def test_setting_replicas_anew_after_a_stop_is_never_held_back() -> None:
    scene = Scene()
    wanted = cast(dict[str, Any], drift.signed(scene.child("Deployment", "run-rollout", spec={"replicas": 2})))
    scene.apply(manifest=wanted)
    uid = scene.client.objects["Deployment", "run-rollout"]["metadata"]["uid"]
    for _ in range(20):
        scale = Scale(ref=Ref("Deployment", "run-rollout"), uid=uid, replicas=0)
        asyncio.run(scene.live.scale(scene.seen(), scale))
        assert _due(scene, wanted) == scene.clock.now()
        scene.apply(manifest=wanted, uid=uid)
        assert _due(scene, wanted) is None


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
