import dataclasses
import json
from typing import Any

import pytest

from rljob_api import enums
from rljob_api.manifest.status import Condition, JobStatus
from rljob_operator.model import Apply, Child, Delete, DesiredObjects, Observed, Pod, Ref, StatusWrite
from rljob_operator.policies import pinning
from rljob_operator.reconcile.plan import plan
from rljob_testing.operator_runs import operator_job

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


def stateful_set(*claims: dict[str, Any], replicas: int = 0) -> dict[str, Any]:
    made = [{"metadata": {"name": "state"}, "spec": {"accessModes": ["ReadWriteOnce"], **claim}} for claim in claims]
    spec = {"replicas": replicas, **({"volumeClaimTemplates": made} if made else {})}
    return {"kind": "StatefulSet", "metadata": {"name": "job-coordinator"}, "spec": spec}


def coordinator(*claims: dict[str, Any], replicas: int = 0) -> Child:
    manifest = stateful_set(*claims, replicas=replicas)
    return Child(ref=Ref("StatefulSet", "job-coordinator"), uid="u", manifest=manifest, role=enums.Role.COORDINATOR)


TEN = {"resources": {"requests": {"storage": "10Gi"}}}
SERVED = {**TEN, "volumeMode": "Filesystem"}
CHANGES = {
    "nothing": ((SERVED,), (TEN,), True),
    "another spelling": ((TEN,), ({"resources": {"requests": {"storage": "10737418240"}}},), True),
    "a size": ((TEN,), ({"resources": {"requests": {"storage": "20Gi"}}},), False),
    "a class": ((TEN,), ({**TEN, "storageClassName": "fast"},), False),
    "the default class": (({**TEN, "storageClassName": "fast"},), (TEN,), False),
    "access modes": ((TEN,), ({**TEN, "accessModes": ["ReadWriteMany"]},), False),
    "a claim of the user's": ((TEN,), (), False),
    "a claim instead of an emptyDir": ((), (TEN,), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_storage_that_was_changed_while_the_job_was_suspended_makes_its_stateful_set_anew(change: str) -> None:
    before, after, is_same = CHANGES[change]
    live, wanted = coordinator(*before), stateful_set(*after, replicas=1)
    assert pinning.may_become(live, wanted) is is_same
    suspended = Condition.model_validate(
        {"type": "Suspended", "status": "True", "reason": "UserRequested", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    )
    job = operator_job().model_copy(update={"status": JobStatus(conditions=(suspended,))})
    seen = Observed(job=job, children={live.ref: live})
    made = plan(seen, DesiredObjects(workloads=lambda _: (wanted,)), now=1000.0)
    acts = [one for one in made.actions if not isinstance(one, StatusWrite)]
    first = Apply(manifest=wanted, uid="u", due_at=1000.0) if is_same else Delete(ref=live.ref, uid="u")
    assert acts == [first]
    again = plan(dataclasses.replace(seen, children={}), DesiredObjects(workloads=lambda _: (wanted,)), now=1001.0)
    assert Apply(manifest=wanted) in again.actions


def test_claims_of_a_coordinator_that_runs_stay_whatever_this_version_would_render() -> None:
    live, wanted = coordinator(TEN, replicas=1), stateful_set({**TEN, "storageClassName": "fast"}, replicas=1)
    pod = Pod(name="job-coordinator-0", uid="p", role=enums.Role.COORDINATOR, phase="Running", ready=True)
    wanted = {**wanted, "metadata": {"name": "job-coordinator", "labels": {"new": "1"}}}
    seen = Observed(job=operator_job(), children={live.ref: live}, pods=(pod,))
    made = plan(seen, DesiredObjects(workloads=lambda _: (wanted,)), now=1000.0)
    (kept,) = [one for one in made.actions if isinstance(one, Apply)]
    assert kept.manifest["spec"] == live.manifest["spec"]
    assert kept.manifest["metadata"] == wanted["metadata"]
