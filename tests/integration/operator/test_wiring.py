"""The operator's wiring over HTTP on a fake API server: Kopf's watches, the cache, the queue, the client. No schema."""

import pytest

from rljob_operator.kube import client, kinds, permissions
from rljob_testing import operator_stories
from rljob_testing.operator_scene import Scene
from rljob_testing.operator_stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("story", operator_stories.STORIES, ids=lambda story: story.__name__)
async def test_story(stage: Stage, story: operator_stories.Story) -> None:
    await story(stage)


async def test_answers_are_asked_for_as_they_are_and_pages_are_let_go_of(scene: Scene, stage: Stage) -> None:
    packings = list[str | None]()
    await stage.create("run")
    scene.api.fault = lambda request: packings.append(request.headers.get("Accept-Encoding"))
    asker = client.Client(scene.connection, qps=1000.0, burst=1000)
    pages = [(len(page), page) async for page in asker.pages(kinds.RLJOB, stage.namespace)]
    await asker.close()
    assert set(packings) == {"identity"}
    assert pages == [(1, [])]


async def test_operator_asks_for_nothing_that_its_rights_do_not_grant(scene: Scene) -> None:
    granted = {(resource, verb) for rule in permissions.RULES for resource in rule.resources for verb in rule.verbs}
    asked = {(resource, "create" if verb == "post" else verb) for verb, resource, _ in scene.requests}
    asked -= {("apis", "get"), ("openapi", "get"), ("version", "get")}  # what everyone may ask
    # An apply creates what is not there yet.
    made = {resource for resource, verb in asked if verb == "patch" and "/" not in resource and resource != "pods"}
    asked |= {(resource, "create") for resource in made}
    assert len(asked) > 20, "the stories were told before"
    assert asked <= granted, f"permissions.RULES lacks {sorted(asked - granted)}"
