"""What is kept of runtimes, and the status that says whether each is accepted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest

from rljob_operator.kube.client import ApiError, Client, NotLeadingError
from rljob_operator.kube.kinds import Kind
from rljob_operator.kube.runtimes import Runtimes, listed
from rljob_testing import runtime_makers


def served(*, version: int, generation: int = 1, uid: str = "u", **parts: Any) -> dict[str, Any]:
    """Return a runtime as an API server sends it."""
    document: dict[str, Any] = runtime_makers.document(**parts)
    numbers = {"uid": uid, "generation": generation, "resourceVersion": str(version)}
    return {**document, "metadata": {"name": "platform", **numbers}}


class Recorded:
    """Applies statuses to the objects that it was given. A fake."""

    def __init__(self, status: int = 0, *, led_by_another: str = "-") -> None:
        self.written: list[dict[str, Any]] = []
        self._status, self._led_by_another = status, led_by_another

    async def apply_status(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if namespace == self._led_by_another:
            raise NotLeadingError(f"this process does not lead the shard of namespace {namespace}")
        if self._status:
            raise ApiError("refused", status=self._status)
        self.written.append({"kind": kind.kind, "namespace": namespace, **body["status"]})
        return {**served(version=90 + len(self.written)), "status": body["status"]}


def report(runtimes: Runtimes, api: Recorded) -> None:
    asyncio.run(runtimes.report(cast(Client, api), now=0.0))


def test_a_runtime_that_is_right_says_so_once() -> None:
    runtimes, api = Runtimes(), Recorded()
    assert runtimes.put(served(version=1))
    report(runtimes, api)
    report(runtimes, api)
    (status,) = api.written
    assert (status["kind"], status["namespace"], status["observedGeneration"]) == ("ClusterRLJobRuntime", "", 1)
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Accepted", "True", "Accepted")


def test_a_runtime_that_is_wrong_says_why_by_field() -> None:
    runtimes, api = Runtimes(), Recorded()
    runtimes.put(served(version=1, defaults={"seed": -1}, trainer={"spec": {"hostPID": True}}))
    report(runtimes, api)
    condition = api.written[0]["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
    assert condition["message"] == (
        "spec.defaults.seed is -1, but must be at least 0; spec.template.trainer.spec.hostPID is true, but a role may"
        " not look into processes of its node"
    )


def test_what_no_model_can_read_is_wrong_and_not_lost() -> None:
    runtimes = Runtimes()
    document = served(version=1)
    document["spec"]["defaults"] = [1]
    runtimes.put(document)
    found = runtimes.find("ClusterRLJobRuntime", "", "platform")
    assert found is not None
    assert found.runtime is None
    assert found.problems[0].startswith("spec.defaults is [1], but must be a mapping")


def test_a_status_that_is_written_changes_nothing_for_jobs_and_an_edit_does() -> None:
    runtimes = Runtimes()
    assert runtimes.put(served(version=1))
    assert not runtimes.put(served(version=1)), "known already"
    assert not runtimes.put(served(version=2)), "its status"
    assert runtimes.put(served(version=3, generation=2, defaults={"seed": 1}))
    assert runtimes.put(served(version=4, uid="other")), "deleted and made again"


def test_a_late_event_brings_no_runtime_back() -> None:
    runtimes = Runtimes()
    runtimes.put(served(version=1, uid="new"))
    assert not runtimes.remove(served(version=9, uid="old"))
    assert runtimes.remove(served(version=9, uid="new"))
    assert runtimes.find("ClusterRLJobRuntime", "", "platform") is None


class Listed(Recorded):
    """Lists the runtimes of the cluster that it was given. A fake."""

    objects: tuple[dict[str, Any], ...] = ()

    async def pages(self, kind: Kind, namespace: str | None) -> AsyncIterator[list[dict[str, Any]]]:
        if self._status:
            raise ApiError("refused", status=self._status)
        yield [raw for raw in self.objects if raw["kind"] == kind.kind]


def test_a_runtime_that_vanished_while_a_watch_was_broken_is_forgotten() -> None:
    runtimes, api = Runtimes(), Listed()
    api.objects = (served(version=1),)
    assert asyncio.run(runtimes.compare(cast(Client, api), (None,)))
    assert not asyncio.run(runtimes.compare(cast(Client, api), (None,))), "nothing changed"
    api.objects = ()
    assert asyncio.run(runtimes.compare(cast(Client, api), (None,)))
    assert runtimes.find("ClusterRLJobRuntime", "", "platform") is None


@pytest.mark.parametrize(("status", "raised"), [(403, False), (404, False), (500, True)])
def test_what_may_not_be_listed_stays_as_it_is(status: int, raised: bool) -> None:
    runtimes = Runtimes()
    runtimes.put(served(version=1))
    with pytest.raises(ApiError) if raised else contextlib.nullcontext():
        assert not asyncio.run(runtimes.compare(cast(Client, Listed(status)), (None,)))
    assert runtimes.find("ClusterRLJobRuntime", "", "platform") is not None


@pytest.mark.parametrize("namespaces", [("team",), ("team", "other")])
def test_an_operator_of_single_namespaces_lists_nothing_of_the_cluster(namespaces: tuple[str, ...]) -> None:
    assert [(kind.kind, namespace) for kind, namespace in listed(namespaces)] == [
        ("RLJobRuntime", namespace) for namespace in namespaces
    ]
    assert [kind.kind for kind, _ in listed((None,))] == ["ClusterRLJobRuntime", "RLJobRuntime"]


@pytest.mark.parametrize("status", [404, 409])
def test_a_runtime_that_went_meanwhile_is_no_failure(status: int) -> None:
    runtimes = Runtimes()
    runtimes.put(served(version=1))
    report(runtimes, Recorded(status))


def test_a_runtime_of_a_shard_that_another_process_leads_keeps_no_other_from_its_status() -> None:
    runtimes, api = Runtimes(), Recorded(led_by_another="theirs")
    for namespace in ("theirs", "ours"):
        document = served(version=1, uid=namespace)
        runtimes.put({**document, "kind": "RLJobRuntime", "metadata": {**document["metadata"], "namespace": namespace}})
    report(runtimes, api)
    assert [status["namespace"] for status in api.written] == ["ours"]


def test_a_right_that_is_missing_is_raised() -> None:
    runtimes = Runtimes()
    runtimes.put(served(version=1))
    with pytest.raises(ApiError):
        report(runtimes, Recorded(403))
