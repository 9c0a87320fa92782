import json
from typing import Any

import pytest

from rljob_api import enums
from rljob_operator.model import TEMPLATE_HASH, Child, Ref
from rljob_operator.policies import pinning

R, V = enums.Role.ROLLOUT, enums.Role.VERIFIER


def workload(template_hash: str, image: str, *, rendered_by: str = "", replicas: int = 1) -> dict[str, Any]:
    annotations = {pinning.RENDERED_BY: rendered_by} if rendered_by else {}
    template = {"metadata": {"annotations": {TEMPLATE_HASH: template_hash}}, "spec": {"image": image}}
    metadata = {"name": "job-rollout", "annotations": annotations}
    return {"kind": "Deployment", "metadata": metadata, "spec": {"replicas": replicas, "template": template}}


def living(manifest: dict[str, Any]) -> Child:
    return Child(ref=Ref("Deployment", "job-rollout"), uid="u", manifest=manifest)


def test_images_of_a_running_segment_win_over_a_new_installation_and_the_manifests_over_the_operators() -> None:
    settings, job = {R: "operator:2", V: "operator:2"}, {V: "own:1"}
    assert pinning.images({}, settings=settings, job=job) == {R: "operator:2", V: "own:1"}
    assert pinning.images({R: "operator:1"}, settings=settings, job=job)[R] == "operator:1"


def test_template_of_another_version_stays_while_its_inputs_are_the_same() -> None:
    live = living(workload("same", "old rendering", rendered_by="0.1.0"))
    kept = pinning.template(live, workload("same", "new rendering", replicas=3), version="0.2.0")
    assert kept["spec"] == {"replicas": 3, "template": live.manifest["spec"]["template"]}  # type: ignore[index]
    assert kept["metadata"]["annotations"] == {pinning.RENDERED_BY: "0.1.0"}  # type: ignore[index]


def test_template_is_replaced_when_its_inputs_change() -> None:
    live = living(workload("before", "old", rendered_by="0.1.0"))
    made = pinning.template(live, workload("after", "new"), version="0.2.0")
    assert made["spec"] == workload("after", "new")["spec"]
    assert made["metadata"]["annotations"] == {pinning.RENDERED_BY: "0.2.0"}  # type: ignore[index]


def test_template_that_this_version_rendered_is_wanted_in_full_so_that_edits_by_hand_are_undone() -> None:
    live = living(workload("same", "edited by hand", rendered_by="0.2.0"))
    made = pinning.template(live, workload("same", "as rendered"), version="0.2.0")
    assert made["spec"] == workload("same", "as rendered")["spec"]


def test_first_template_is_marked_with_the_version_that_rendered_it() -> None:
    made = pinning.template(None, workload("h", "i"), version="0.2.0")
    assert made["metadata"]["annotations"] == {pinning.RENDERED_BY: "0.2.0"}  # type: ignore[index]


def config(content: str, *, rendered_by: str = "", generation: int = 3) -> dict[str, Any]:
    document = {"job": {"config_generation": generation}, "content": content, "spec": {"maxSteps": 10}}
    annotations = {pinning.RENDERED_BY: rendered_by} if rendered_by else {}
    metadata = {"name": "job-config", "annotations": annotations}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"coordinator.json": json.dumps(document)}}


@pytest.mark.parametrize("generation", [3, 4], ids=["the same spec", "a spec that was edited"])
@pytest.mark.parametrize(("rendered_by", "kept"), [("0.1.0", True), ("0.2.0", False), ("", False)])
def test_configs_of_another_version_stay_whatever_the_spec(rendered_by: str, kept: bool, generation: int) -> None:
    live = living(config("old", rendered_by=rendered_by))
    wanted = pinning.config(live, config("new", generation=generation), written={}, version="0.2.0")
    document = json.loads(wanted["data"]["coordinator.json"])  # type: ignore[index]
    assert document["content"] == ("old" if kept else "new")
    assert document["job"]["config_generation"] == generation, "what the coordinator acknowledges"
    assert wanted["metadata"]["annotations"] == {pinning.RENDERED_BY: "0.1.0" if kept else "0.2.0"}  # type: ignore[index]


def test_config_that_another_hand_broke_is_left_as_it_is() -> None:
    live = living(config("old", rendered_by="0.1.0"))
    for text in ("no JSON", "[]", "{}", '{"job": null}'):
        live.manifest["data"]["coordinator.json"] = text  # type: ignore[index]
        wanted = pinning.config(live, config("new"), written={}, version="0.2.0")
        assert wanted["data"] == {"coordinator.json": text}
