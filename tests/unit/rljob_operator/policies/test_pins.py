import json
from typing import Any

import pytest

from rljob_api import enums
from rljob_operator.model import Child, Ref
from rljob_operator.policies import pinning

R, V = enums.Role.ROLLOUT, enums.Role.VERIFIER


def workload(template_hash: str, image: str, *, rendered_by: str = "", replicas: int = 1) -> dict[str, Any]:
    annotations = {pinning.RENDERED_BY: rendered_by} if rendered_by else {}
    template = {"metadata": {"annotations": {pinning.TEMPLATE_HASH: template_hash}}, "spec": {"image": image}}
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


def config(generation: int, content: str, *, rendered_by: str = "") -> dict[str, Any]:
    data = {"coordinator.json": json.dumps({"job": {"config_generation": generation}, "content": content})}
    annotations = {pinning.RENDERED_BY: rendered_by} if rendered_by else {}
    return {"kind": "ConfigMap", "metadata": {"name": "job-config", "annotations": annotations}, "data": data}


@pytest.mark.parametrize(
    ("rendered_by", "generation", "kept"), [("0.1.0", 3, True), ("0.1.0", 2, False), ("0.2.0", 3, False)]
)
def test_configs_of_another_version_stay_while_the_spec_is_the_same(
    rendered_by: str, generation: int, kept: bool
) -> None:
    live = living(config(generation, "old", rendered_by=rendered_by))
    made = pinning.config(live, config(3, "new"), version="0.2.0")
    assert ("old" in json.dumps(made["data"])) is kept
    assert made["metadata"]["annotations"] == {pinning.RENDERED_BY: "0.1.0" if kept else "0.2.0"}  # type: ignore[index]
