import asyncio
import dataclasses
import time
import zlib
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import enums
from rljob_operator.kube import kinds, projection
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.client import ApiError, Client
from rljob_operator.kube.resync import Lister
from rljob_operator.model import Ref
from rljob_testing.fake_client import FakeClient

KEY, UID = "team/run", "job-uid"


def pod(name: str = "p", *, version: int = 1, uid: str = "pod-uid", **status: Any) -> dict[str, Any]:
    labels = {"rljob.dev/job": "run", "rljob.dev/uid": UID, "rljob.dev/role": "trainer", "rljob.dev/attempt": "2"}
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": labels,
        "ownerReferences": [{"uid": "owner", "controller": True}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": status}


def workload(name: str, *, version: int = 1, uid: str = "w", owner: str = UID) -> dict[str, Any]:
    labels = {"rljob.dev/job": "run", "rljob.dev/role": "rollout"}
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": labels,
        "ownerReferences": [{"uid": owner, "controller": True}],
        "managedFields": [{"manager": "x"}],
    }
    spec = {"replicas": 3}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec, "status": {"x": 1}}


def test_child_is_read_from_its_bytes_when_something_of_it_is_looked_at_and_not_before() -> None:
    view = projection.project_child(workload("run-rollout"))
    child = view.child()
    assert child.manifest["spec"] == {"replicas": 3}
    assert set(child.manifest) == {"apiVersion", "kind", "metadata", "spec"}
    assert child.wanted_replicas == 3
    broken = dataclasses.replace(view, body=b"no bytes of a child").child()
    assert (broken.ref, broken.uid, broken.version) == (child.ref, "w", 1)
    with pytest.raises(zlib.error):
        broken.manifest["spec"]


def test_objects_outside_the_scope_are_not_kept_and_a_namespace_is_let_go_of_without_being_gone() -> None:
    cache = Cache(lambda namespace: namespace == "team")
    outside = pod()
    outside["metadata"]["namespace"] = "others"
    assert cache.put(kinds.POD, outside) is None
    assert cache.put(kinds.POD, pod()) == KEY
    cache.put(kinds.WORKLOADS[1], workload("run-rollout"))
    assert cache.drop("team") == {}
    assert len(cache) == 0
    assert cache.put(kinds.POD, pod()) == KEY, "the same version, since nothing of it was deleted"


def test_pod_is_kept_as_the_few_fields_that_decisions_read() -> None:
    cache = Cache()
    terminated = {"exitCode": 75, "reason": "Error", "finishedAt": "2026-01-01T00:00:10Z"}
    status: dict[str, Any] = {
        "phase": "Failed",
        "conditions": [{"type": "DisruptionTarget", "status": "True"}],
        "containerStatuses": [{"restartCount": 2, "state": {"terminated": terminated}}],
    }
    assert cache.put(kinds.POD, pod(**status)) == KEY
    (kept,) = cache.pods(KEY, UID)
    assert (kept.role, kept.attempt, kept.exit_code, kept.restarts) == (enums.Role.TRAINER, 2, 75, 2)
    assert kept.finished_at == 1767225610.0
    assert ("DisruptionTarget", "True") in kept.conditions


def test_pod_of_another_job_of_the_same_name_is_not_shown() -> None:
    cache = Cache()
    cache.put(kinds.POD, pod())
    assert cache.pods(KEY, "another-uid") == ()


def test_content_of_a_child_changes_with_its_manifest_and_not_with_its_status() -> None:
    raw = workload("run-rollout")
    content = projection.project_child(raw).child().content
    later = {**raw, "metadata": {**raw["metadata"], "resourceVersion": "2"}, "status": {"readyReplicas": 3}}
    assert projection.project_child(later).child().content == content
    assert projection.project_child({**later, "spec": {"replicas": 4}}).child().content != content


def test_child_is_shown_with_its_manifest_without_status_and_only_to_its_controller() -> None:
    cache = Cache()
    cache.put(kinds.BY_NAME["Deployment"], workload("run-rollout"))
    cache.put(kinds.BY_NAME["Deployment"], workload("foreign", owner="else", uid="f"))
    shown = cache.children(KEY, UID)
    assert list(shown) == [Ref("Deployment", "run-rollout")]
    child = shown[Ref("Deployment", "run-rollout")]
    assert (child.wanted_replicas, child.role, "status" in child.manifest) == (3, enums.Role.ROLLOUT, False)


def test_deleted_object_does_not_come_back_by_a_late_event() -> None:
    cache = Cache()
    cache.put(kinds.POD, pod(version=5))
    assert cache.remove(kinds.POD, pod(version=6)) == KEY
    assert cache.put(kinds.POD, pod(version=4)) is None
    assert cache.pods(KEY, UID) == ()


def test_object_that_lost_its_label_looks_deleted_and_is_shown_again_by_a_read_or_by_a_newer_event() -> None:
    kind = kinds.BY_NAME["Deployment"]
    for again in ({"version": 7}, {"version": 6, "live": True}):
        cache, live = Cache(), bool(again.pop("live", False))
        cache.put(kind, workload("run-rollout", version=5))
        cache.remove(kind, workload("run-rollout", version=6))
        assert cache.put(kind, workload("run-rollout", version=6)) is None, "the event of its going, told late"
        assert cache.put(kind, workload("run-rollout", **again), live=live) == KEY


def test_child_without_the_label_of_its_job_is_known_by_its_owner() -> None:
    raw = workload("run-rollout")
    del raw["metadata"]["labels"]["rljob.dev/job"]
    raw["metadata"]["ownerReferences"] = [{"kind": "RLJob", "name": "run", "uid": UID, "controller": True}]
    cache = Cache()
    assert cache.put(kinds.BY_NAME["Deployment"], raw) == KEY


def test_trainers_job_without_labels_is_known_by_its_name() -> None:
    raw = {**workload("run-trainer-12"), "apiVersion": "batch/v1", "kind": "Job"}
    raw["metadata"]["labels"] = {"rljob.dev/job": "run"}
    cache = Cache()
    cache.put(kinds.BY_NAME["Job"], raw)
    (child,) = cache.children(KEY, UID).values()
    assert (child.role, child.attempt) == (enums.Role.TRAINER, 12), "an attempt that is lost would be begun anew"


def test_successor_of_the_same_name_takes_its_place() -> None:
    cache = Cache()
    cache.put(kinds.POD, pod(version=9, uid="old"))
    assert cache.put(kinds.POD, pod(version=3, uid="new")) == KEY
    assert cache.remove(kinds.POD, pod(version=10, uid="old")) is None
    assert [one.uid for one in cache.pods(KEY, UID)] == ["new"]


@given(st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=20))
def test_events_in_any_order_leave_the_newest(versions: list[int]) -> None:
    cache = Cache()
    for version in versions:
        cache.put(kinds.POD, pod(version=version, phase=f"v{version}"))
    assert cache.pods(KEY, UID)[0].phase == f"v{max(versions)}"


def test_restored_server_that_knows_less_is_believed_when_it_is_asked() -> None:
    cache = Cache()
    cache.put(kinds.POD, pod(version=900, phase="Running"))
    assert cache.put(kinds.POD, pod(version=40, phase="Pending"), live=True) is None, "a late answer is no restore"
    assert cache.put(kinds.POD, pod(version=40, phase="Pending"), live=True, instead_of=900) == KEY
    assert cache.pods(KEY, UID)[0].phase == "Pending"
    assert cache.put(kinds.POD, pod(version=41, phase="Running")) == KEY


class Listed:
    """A lister over a fake client."""

    def __init__(self) -> None:
        self.client, self.cache = FakeClient(), Cache()
        self.lister = Lister(client=cast(Client, self.client), cache=self.cache, namespaces=(None,))

    def compare(self) -> set[str]:
        return asyncio.run(self.lister.compare())


def test_comparison_prunes_what_a_broken_watch_never_reported_as_gone() -> None:
    listed = Listed()
    listed.cache.put(kinds.POD, pod())
    assert listed.compare() == {KEY}
    assert listed.cache.pods(KEY, UID) == ()


def test_comparison_reads_only_what_differs() -> None:
    listed = Listed()
    held = listed.client.hold(workload("run-rollout"))
    listed.cache.put(kinds.BY_NAME["Deployment"], held)
    assert listed.compare() == set()
    assert not [request for request in listed.client.requests if request.startswith("get")]
    listed.client.hold({**held, "spec": {"replicas": 7}})
    assert listed.compare() == {KEY}
    assert listed.cache.children(KEY, UID)[Ref("Deployment", "run-rollout")].wanted_replicas == 7


def test_fill_keeps_everything_that_is_listed() -> None:
    listed = Listed()
    listed.client.hold(workload("run-rollout"))
    listed.client.hold(pod())
    asyncio.run(listed.lister.fill())
    assert len(listed.cache) == 2


@pytest.mark.parametrize("refused", [["Pod"], ["Pod", "Service", "RLJob"]], ids=len)
def test_fill_of_which_lists_are_refused_is_an_error_of_the_api_that_may_be_tried_again(refused: list[str]) -> None:
    listed = Listed()
    listed.client.hold(workload("run-rollout"))
    listed.client.fail = {f"list {kind}": 503 for kind in refused}
    with pytest.raises(ApiError):
        asyncio.run(listed.lister.fill())
    listed.client.fail = {}
    asyncio.run(listed.lister.fill())
    assert len(listed.cache) == 1


class TwoTeams(Listed):
    """Jobs are watched in two namespaces, of which one was deleted: its Role went with it."""

    def __init__(self, *refused: str, status: int = 403) -> None:
        super().__init__()
        self.lister = Lister(client=cast(Client, self.client), cache=self.cache, namespaces=("gone", "team"))
        self.client.fail = {f"list {kind} in gone": status for kind in refused}


ALL_KINDS = [kind.kind for kind in (kinds.RLJOB, kinds.POD, *kinds.CHILDREN)]


@pytest.mark.parametrize("status", [403, 404])
def test_deleted_namespace_takes_neither_the_start_nor_the_comparison_of_another(status: int) -> None:
    listed = TwoTeams(*ALL_KINDS, status=status)
    listed.client.hold(workload("run-rollout"))
    asyncio.run(listed.lister.fill())
    assert len(listed.cache) == 1
    assert (listed.lister.blind(), listed.lister.closed("team")) == ("", "")
    assert "cannot be listed in namespace gone" in listed.lister.closed("gone")
    listed.cache.put(kinds.POD, pod())
    assert listed.compare() == {KEY}, "what is gone from the other one is forgotten"
    assert listed.cache.pods(KEY, UID) == ()


def test_operator_that_can_list_jobs_nowhere_is_blind() -> None:
    listed = TwoTeams("RLJob")
    listed.client.fail["list RLJob in team"] = 403
    asyncio.run(listed.lister.fill())
    assert "rljobs cannot be listed in namespace gone" in listed.lister.blind()


def test_right_to_list_budgets_that_was_withdrawn_closes_nothing() -> None:
    listed = TwoTeams("PodDisruptionBudget")
    listed.compare()
    assert listed.lister.closed("gone") == ""
    assert len(listed.lister.refused) == 1, "it is told of by a metric and a line of the log"


def test_list_that_expired_ends_its_own_comparison_alone() -> None:
    listed = TwoTeams("ConfigMap", status=410)
    listed.client.hold(workload("run-rollout"))
    assert listed.compare() == {KEY}


def test_objects_of_a_namespace_that_cannot_be_listed_are_not_taken_for_gone() -> None:
    listed = TwoTeams()
    raw = pod()
    raw["metadata"]["namespace"] = "gone"
    listed.cache.put(kinds.POD, raw)
    listed.client.fail["list Pod in gone"] = 403
    assert listed.compare() == set()
    assert len(listed.cache.pods("gone/run", UID)) == 1


def test_jobs_of_a_namespace_that_can_be_listed_again_are_looked_at() -> None:
    listed = TwoTeams("Pod")
    job = {"kind": "RLJob", "metadata": {"name": "run", "namespace": "gone"}, "spec": {}}
    listed.client.hold(job)
    asyncio.run(listed.lister.fill())
    assert listed.compare() == set()
    listed.client.fail.clear()
    assert listed.compare() == {"gone/run"}
    assert listed.lister.refused == {}


def test_comparison_with_a_restored_server_brings_back_what_it_has() -> None:
    listed = Listed()
    listed.client.hold(workload("run-rollout"))
    listed.cache.put(kinds.BY_NAME["Deployment"], workload("run-rollout", version=900))
    listed.client.objects["Deployment", "run-rollout"]["metadata"]["uid"] = "w"
    assert listed.compare() == {KEY}
    assert [version for _, _, _, version in listed.cache.entries(kinds.BY_NAME["Deployment"])] == [2]


def test_change_that_no_watch_tells_ages_until_one_does() -> None:
    listed = Listed()
    held = listed.client.hold(workload("run-rollout"))
    listed.cache.put(kinds.BY_NAME["Deployment"], held)
    listed.client.hold({**held, "spec": {"replicas": 7}})
    listed.compare()
    lag = listed.lister.lag
    assert lag.seconds(now=time.monotonic() + 100.0) >= 100.0
    lag.clear(held["metadata"]["uid"])
    assert lag.seconds(now=time.monotonic() + 100.0) == 0.0


def test_what_vanished_or_is_not_watched_does_not_make_a_watch_look_frozen() -> None:
    listed = Listed()
    listed.cache.put(kinds.POD, pod())
    quiet = {**workload("run-config"), "apiVersion": "v1", "kind": "ConfigMap"}
    listed.client.hold(quiet)
    assert listed.compare() == {KEY}
    assert listed.lister.lag.seconds(now=time.monotonic() + 100.0) == 0.0
