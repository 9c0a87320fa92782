import asyncio
import time
from typing import cast

import pytest

from rljob_api import crd
from rljob_operator.assembly import Operator
from rljob_operator.cluster import Client
from rljob_operator.settings import Settings
from rljob_testing.fake_client import FakeClient


class Scene:
    """An operator over a fake client."""

    def __init__(self) -> None:
        self.client = FakeClient()
        self.operator = Operator(Settings(), cast(Client, self.client))


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

    monkeypatch.setattr("rljob_operator.assembly.asyncio.sleep", waits)
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
