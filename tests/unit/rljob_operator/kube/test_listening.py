"""Which coordinators an operator listens to: those of runs that are under way, in the shards that it leads."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from rljob_api import enums
from rljob_operator.app import Operator
from rljob_operator.kube import kinds
from rljob_operator.kube.client import Client
from rljob_operator.kube.fence import Fence
from rljob_operator.settings import Settings
from rljob_testing.cluster import manifests
from rljob_testing.fake_client import FakeClient
from rljob_testing.operator_stage import SaidStatus, said_status, until

Object = dict[str, Any]


def _job(*, ended: str = "") -> Object:
    job = cast(Object, manifests.job("run", {"security.tls": "Disabled"}))
    conditions = [{"type": ended, "status": "True", "reason": "MaxStepsReached", "message": ""}] if ended else []
    return {**job, "status": {"conditions": conditions}}


def _pod(uid: str, role: enums.Role) -> Object:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": f"run-{role}", "uid": "set", "controller": True}
    labels = {"rljob.dev/job": "run", "rljob.dev/uid": uid, "rljob.dev/role": str(role)}
    metadata = {"name": f"run-{role}-0", "labels": labels, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Running"}}


class Scene:
    """An operator over a fake client, that reconciles nothing, and a coordinator that says how the run is."""

    def __init__(self, said: SaidStatus, address: str) -> None:
        self.client, self.said, self.fence = FakeClient(), said, Fence()
        self.fence.open()
        self.operator = Operator(
            Settings(), cast(Client, self.client), address_of=lambda namespace, name: address, fence=self.fence
        )

    def sees(self, raw: Object, *, gone: bool = False) -> str:
        """Let a watch show an object; return its uid."""
        held = self.client.hold(raw)
        self.operator.on_object(kinds.BY_NAME.get(raw["kind"], kinds.RLJOB), gone, held)
        return str(held["metadata"]["uid"])

    async def certified(self) -> None:
        for key in self.operator.cache.keys:
            await self.operator.listening.certified(key)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with said_status() as (said, address), contextlib.AsyncExitStack() as cleanup:
        said.says(enums.Phase.RUNNING, step=1)
        made = Scene(said, address)
        cleanup.push_async_callback(made.operator._streams.close)
        yield made


def _listen(scene: Scene) -> None:
    scene.operator._streams.keep(scene.operator.listening.targets())


@pytest.mark.parametrize("ended", ["Complete", "Failed"])
async def test_run_that_is_over_has_no_stream_though_its_coordinator_still_answers(scene: Scene, ended: str) -> None:
    uid = scene.sees(_job())
    scene.sees(_pod(uid, enums.Role.COORDINATOR))
    await scene.certified()
    _listen(scene)
    await until(lambda: scene.said.num_open == 1)
    scene.sees(_job(ended=ended))
    _listen(scene)
    await until(lambda: scene.said.num_open == 0)
    for _ in range(3):
        _listen(scene)
    assert scene.operator.listening.targets() == []
    assert scene.said.num_opened == 1
    assert scene.operator._reports.report_of(uid) is None


async def test_run_that_was_over_before_the_operator_began_is_never_connected_to(scene: Scene) -> None:
    uid = scene.sees(_job(ended="Complete"))
    scene.sees(_pod(uid, enums.Role.COORDINATOR))
    await scene.certified()
    _listen(scene)
    assert scene.operator.listening.targets() == []
    assert scene.said.num_opened == 0


async def test_job_without_a_coordinators_pod_has_no_stream(scene: Scene) -> None:
    uid = scene.sees(_job())
    scene.sees(_pod(uid, enums.Role.ROLLOUT))
    await scene.certified()
    assert scene.operator.listening.targets() == []
    scene.sees(_pod(uid, enums.Role.COORDINATOR))
    assert [target.uid for target in scene.operator.listening.targets()] == [uid]


async def test_job_whose_certificates_are_not_known_has_no_address_yet(scene: Scene) -> None:
    uid = scene.sees(_job())
    scene.sees(_pod(uid, enums.Role.COORDINATOR))
    assert [target.address for target in scene.operator.listening.targets()] == [""]
    await scene.certified()
    assert all(target.address for target in scene.operator.listening.targets())


async def test_operator_that_leads_no_more_leaves_the_coordinators_to_the_one_that_does(scene: Scene) -> None:
    uid = scene.sees(_job())
    scene.sees(_pod(uid, enums.Role.COORDINATOR))
    await scene.certified()
    _listen(scene)
    await until(lambda: scene.said.num_open == 1)
    scene.fence.set(0, 0.0)
    _listen(scene)
    await until(lambda: scene.said.num_open == 0)
