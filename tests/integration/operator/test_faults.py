"""An API server that refuses, forgets and breaks off; two operators at once; an operator that starts on a running job.

The fake API server's: what it says is what a real one says, with the timing of a real one left out.
"""

import random

import pytest
from aiohttp import web

from rljob_api.conditions import ConditionType as Type
from rljob_operator.kube import kinds
from rljob_testing import fake_api, operator_stage, operator_stories
from rljob_testing.operator_scene import Scene
from rljob_testing.operator_stage import Request, Stage, writes

pytestmark = pytest.mark.asyncio(loop_scope="module")


def some(share: float, status: int) -> fake_api.Fault:
    """Return a fault that hits a share of the requests that can get it, the same ones every time."""
    chance = random.Random(7)

    def fault(request: web.Request) -> int | None:
        # Only a write meets a conflict, and only a list expires.
        can = {409: request.method == "PATCH", 410: "name" not in request.match_info}.get(status, True)
        return status if can and chance.random() < share else None

    return fault


@pytest.mark.parametrize("status", [0, 409, 410, 429, 500, 503])
async def test_job_lives_its_life_though_many_requests_fail(scene: Scene, stage: Stage, status: int) -> None:
    scene.api.fault = some(0.15, status)
    await operator_stories.job_runs_finishes_and_frees_its_pods(stage)


async def test_child_that_is_refused_is_named_in_a_condition_and_taken_once_the_spec_is_mended(
    scene: Scene, stage: Stage
) -> None:
    def refuses_deployments(request: web.Request) -> int | None:
        return 422 if request.method == "PATCH" and "deployments" in request.path else None

    scene.api.fault = refuses_deployments
    await stage.create()
    await stage.until("run", "Accepted", is_="False")
    assert await stage.condition("run", "Accepted") == ("False", "ChildRejected")
    for _ in range(30):
        await stage.turn()
    refused = [request for request in stage.requests if request == ("patch", "deployments", 422)]
    assert len(refused) == 2, "each of both once: not tried again before a minute or an edit"
    scene.api.fault = lambda _: None
    await stage.edit("run", {"maxSteps": 5})
    await stage.until("run", "Accepted")
    await stage.runs()


async def test_missing_right_is_named_with_verb_and_resource(scene: Scene, stage: Stage) -> None:
    def forbids_services(request: web.Request) -> int | None:
        return 403 if request.method == "PATCH" and "services" in request.path else None

    scene.api.fault = forbids_services
    await stage.create()
    await stage.until("run", "Accepted", is_="False")
    found = await stage.job("run")
    assert found is not None
    accepted = next(one for one in found["status"]["conditions"] if one["type"] == Type.ACCEPTED)
    assert accepted["reason"] == "Forbidden"
    assert "patch services" in accepted["message"]


async def test_two_operators_at_once_make_no_child_twice(scene: Scene, stage: Stage) -> None:
    async with operator_stage.running_operator(scene.connection, coordinator=scene.coordinator):
        await operator_stories.failed_trainer_comes_again_and_the_other_pods_stay(stage)
        made = [found["metadata"]["name"] for found in await stage.children("Job")]
        assert made == ["run-trainer-2"]
        await operator_stories.stops_and_goes_on(stage)
        found = await stage.job("run")
        assert found is not None
        outcomes = [(one["number"], one.get("class")) for one in found["status"]["trainer"]["attempts"]]
        assert outcomes == [(1, "infrastructure"), (2, "requested"), (3, None)]
        assert found["status"]["restarts"]["total"] == 1, "counted once"


async def test_start_of_an_operator_writes_nothing(scene: Scene, stage: Stage) -> None:
    await stage.create()
    await stage.runs()
    sent = list[Request]()
    async with operator_stage.running_operator(scene.connection, coordinator=scene.coordinator, requests=sent):
        for _ in range(60):
            await stage.turn()
    assert sent
    assert writes(sent) == []


async def test_lists_are_streamed_by_a_server_that_says_when_all_was_sent_and_by_no_other(scene: Scene) -> None:
    for streams in (True, False):
        scene.api.streams_lists = streams
        assert await scene.client.streams(kinds.RLJOB, None) is streams
