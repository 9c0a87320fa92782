"""An operator of the namespaces that have a label: which jobs it looks after while namespaces come, change and go."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from rljob_operator.app import Operator
from rljob_operator.kube import kinds
from rljob_operator.kube.client import Client
from rljob_operator.settings import Settings
from rljob_testing.cluster import manifests
from rljob_testing.fake_client import FakeClient
from rljob_testing.operator_stage import until

SELECTOR = "rl=yes"


class Scene:
    """An operator over a fake client; jobs `run-a` and `run-b` are in namespaces a and b."""

    def __init__(self) -> None:
        self.client = FakeClient()
        self.operator = Operator(Settings(watch_namespace_selector=SELECTOR), cast(Client, self.client))
        self.jobs = {name: self.client.hold(manifests.job(f"run-{name}", {}), namespace=name) for name in "ab"}

    def namespace(self, name: str, *, matches: bool) -> dict[str, Any]:
        labels = {"rl": "yes" if matches else "no"}
        return self.client.hold({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, labels=labels)

    def sees(self, name: str, *, matches: bool) -> None:
        """Let the watch, which selects by label, show a namespace that came to match, or ceased to."""
        self.operator.on_object(kinds.NAMESPACE, not matches, self.namespace(name, matches=matches))

    def writes(self, job: str) -> list[str]:
        verbs = ("apply", "status", "merge", "delete")
        return [each for each in self.client.requests if each.split()[0] in verbs and job in each]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.operator.start()
        try:
            yield
        finally:
            await self.operator.finish()


async def test_only_jobs_of_namespaces_that_match_are_looked_after() -> None:
    scene = Scene()
    scene.namespace("a", matches=True)
    scene.namespace("b", matches=False)
    async with scene.running():
        await until(lambda: scene.writes("run-a"))
        scene.operator.on_object(kinds.RLJOB, False, scene.client.hold(manifests.job("run-b", {"maxSteps": 9})))
        assert scene.operator.cache.keys == ["a/run-a"]
        assert not scene.operator._lister.closed("a")
    assert scene.writes("run-b") == []


async def test_namespace_that_gets_the_label_is_listed_before_anything_is_judged_there() -> None:
    scene = Scene()
    scene.client.fail["list Job in b"] = 500
    async with scene.running():
        scene.sees("b", matches=True)
        await until(lambda: "list Job" in scene.client.requests)
        assert "not listed yet" in scene.operator._lister.closed("b")
        assert scene.writes("run-b") == []
        del scene.client.fail["list Job in b"]
        await until(lambda: scene.writes("run-b"))
        assert scene.operator._lister.closed("b") == ""


async def test_namespace_that_loses_the_label_is_forgotten_and_its_run_left_alone() -> None:
    scene = Scene()
    scene.namespace("a", matches=True)
    async with scene.running():
        await until(lambda: b'rljob="run-a"' in scene.operator.metrics.exposition())
        scene.operator._lister.lag.ahead(scene.jobs["a"]["metadata"]["uid"], kind="rljob", now=0.0)
        scene.sees("a", matches=False)
        assert scene.operator.cache.keys == []
        assert len(scene.operator.cache) == 0
        assert scene.operator._lag_s() == 0.0, "no watch will ever report what is forgotten"
        assert b'rljob="run-a"' not in scene.operator.metrics.exposition()
        assert scene.operator.listening.targets() == []
        before = scene.writes("run-a")
        changed = scene.client.hold(manifests.job("run-a", {"maxSteps": 9}))
        scene.operator.on_object(kinds.RLJOB, False, changed)
        assert len(scene.operator._queue) == 0
        assert scene.operator.cache.keys == []
        scene.sees("a", matches=True)
        await until(lambda: scene.writes("run-a") != before)
    assert "delete" not in " ".join(scene.writes("run-a"))


@pytest.mark.parametrize("matched", [True, False], ids=["ceased", "came"])
async def test_change_of_a_namespace_that_no_watch_reported_is_found_by_the_next_list(matched: bool) -> None:
    scene = Scene()
    scene.namespace("a", matches=matched)
    async with scene.running():
        assert scene.operator._scope.includes("a") == matched
        scene.namespace("a", matches=not matched)
        await scene.operator._compare_namespaces()
        assert scene.operator._scope.includes("a") != matched


async def test_runtimes_of_other_namespaces_are_not_touched() -> None:
    scene = Scene()
    scene.namespace("a", matches=True)
    spec = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJobRuntime", "spec": {}}
    scene.client.hold({**spec, "metadata": {"name": "mine"}}, namespace="a")
    scene.client.hold({**spec, "metadata": {"name": "others"}}, namespace="b")
    async with scene.running():
        await until(lambda: "status RLJobRuntime mine" in scene.client.requests)
        assert scene.operator._runtimes.find("RLJobRuntime", "b", "others") is None
    assert "status RLJobRuntime others" not in scene.client.requests


def test_namespaces_and_their_labels_are_not_both_named() -> None:
    with pytest.raises(ValueError, match=r"watchNamespaces = \['a'\] and watchNamespaceSelector = 'rl=yes'"):
        Settings(watch_namespaces=("a",), watch_namespace_selector=SELECTOR)
