import dataclasses
import json

import pytest

import rljob_api
from rljob_api import enums
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.storage import StorageSpec
from rljob_operator.model import CLAIM, Apply, Child, Manifest, Observed, Ref, ref_of
from rljob_operator.policies import drift, pinning
from rljob_operator.reconcile import conditions
from rljob_operator.reconcile.desired import desired_objects
from rljob_operator.reconcile.plan import plan
from rljob_operator.settings import JobSettings
from rljob_testing.operator_runs import Run, operator_job

IMAGES = {role: f"example/{role}:1" for role in enums.Role}
SETTINGS = JobSettings(images=IMAGES)


def seen(changes: dict[str, object] | None = None, **more: object) -> Observed:
    return Observed(**{"job": operator_job(changes), **more})  # type: ignore[arg-type]  # fields of Observed


def kinds_of(observed: Observed) -> list[str]:
    return [ref_of(manifest).kind for manifest in desired_objects(observed, SETTINGS).workloads(1)]


def test_config_and_policies_come_before_what_makes_pods() -> None:
    found = desired_objects(seen(), SETTINGS)
    assert found.problems == ()
    first = [ref_of(manifest).kind for manifest in found.first]
    assert {"NetworkPolicy", "ServiceAccount", "ConfigMap", "Service"} == set(first)
    assert kinds_of(seen())[:4] == ["StatefulSet", "Deployment", "Deployment", "Job"]


def test_claims_come_before_what_makes_pods_and_stay_as_they_were_made() -> None:
    storage = {"type": "Persistent", "checkpoints": {"size": "10Gi"}}
    claims = [
        each for each in desired_objects(seen({"storage": storage}), SETTINGS).first if ref_of(each).kind == CLAIM
    ]
    assert [ref_of(each).name for each in claims] == ["job-state-job-uid", "job-checkpoints-job-uid"]
    larger = {**storage, "checkpoints": {"size": "20Gi"}}
    live = {ref_of(each): Child(ref=ref_of(each), uid=ref_of(each).name, manifest=each) for each in claims}
    observed = seen({"storage": larger}, children=live)
    made = plan(observed, desired_objects(observed, SETTINGS), now=1000.0)
    applied = [action.ref.kind for action in made.actions if isinstance(action, Apply)]
    assert "StatefulSet" in applied
    assert CLAIM not in applied


def test_role_without_an_image_is_a_problem_that_says_where_to_name_one() -> None:
    settings = JobSettings(images={role: IMAGES[role] for role in enums.Role if role is not enums.Role.VERIFIER})
    (problem,) = desired_objects(seen(), settings).problems
    assert problem == (
        "no image for verifier pods: set spec.verifier.pod.image, or jobs.images.verifier in the operator's settings"
    )
    assert desired_objects(seen(), settings).workloads(1) == ()


def test_manifest_that_cannot_be_resolved_gives_its_problems() -> None:
    valid = seen()
    algorithm = valid.job.spec.algorithm.model_copy(update={"group_size": 1})
    job = valid.job.model_copy(update={"spec": valid.job.spec.model_copy(update={"algorithm": algorithm})})
    desired = desired_objects(dataclasses.replace(valid, job=job), SETTINGS)
    assert [problem for problem in desired.problems if "spec.algorithm" in problem]


def test_run_under_way_of_which_it_is_not_said_where_its_state_is_gets_no_pod_that_would_begin_anew() -> None:
    found = desired_objects(_under_way(storage=StorageSpec()), SETTINGS)
    assert "spec.storage.type is null" in found.problems[0]
    assert (found.first, found.workloads(2)) == ((), ())


def _under_way(settings: JobSettings = SETTINGS, **spec: object) -> Observed:
    """Return a job whose ConfigMap an earlier pass made, with the spec changed since."""
    began = seen()
    made = next(each for each in desired_objects(began, settings).first if ref_of(each).kind == "ConfigMap")
    config = Child(ref=ref_of(made), uid="c", manifest=made)
    job = began.job.model_copy(update={"spec": began.job.spec.model_copy(update=spec)})
    return Observed(job=job, children={config.ref: config})


def test_spec_that_is_not_admitted_any_more_still_says_what_a_run_under_way_needs() -> None:
    strict = JobSettings(images=IMAGES, require_tls=True, require_network_policy=True)
    plain = seen({"security": {"tls": "off", "networkPolicy": False}})
    found = desired_objects(plain, strict)
    assert len(found.problems) == 2
    assert [ref_of(each) for each in found.first] == [ref_of(each) for each in desired_objects(plain, SETTINGS).first]
    assert "Job" in [ref_of(each).kind for each in found.workloads(2)]


def test_edit_that_cannot_be_resolved_leaves_a_run_under_way_the_configs_it_began_with() -> None:
    broken = _under_way(algorithm=operator_job().spec.algorithm.model_copy(update={"group_size": 1}))
    found = desired_objects(broken, SETTINGS)
    assert found.problems
    (config,) = [each for each in found.first if ref_of(each).kind == "ConfigMap"]
    assert config["data"] == broken.children[ref_of(config)].manifest["data"]
    assert "Job" in [ref_of(each).kind for each in found.workloads(2)]


def _devices(observed: Observed, settings: JobSettings) -> set[str]:
    made = next(each for each in desired_objects(observed, settings).first if ref_of(each).kind == "ConfigMap")
    data = made["data"]
    assert isinstance(data, dict)
    return {json.loads(data[f"{role}.json"])["device"] for role in (enums.Role.ROLLOUT, enums.Role.TRAINER)}


def test_run_under_way_stays_on_the_device_of_its_images_when_the_installation_moves_to_another() -> None:
    cuda = SETTINGS.model_copy(update={"device": "cuda"})
    assert _devices(_under_way(), SETTINGS) == {"cpu"}
    assert _devices(_under_way(), cuda) == {"cpu"}
    assert desired_objects(_under_way(), cuda).problems == ()
    assert _devices(seen(), cuda) == {"cuda"}


def test_configs_that_nobody_can_read_are_not_used() -> None:
    broken = _under_way(algorithm=operator_job().spec.algorithm.model_copy(update={"group_size": 1}))
    (config,) = broken.children.values()
    data = {**config.manifest["data"], "trainer.json": '{"of": "another version"}'}  # type: ignore[dict-item]  # it is a mapping
    other = dataclasses.replace(config, manifest={**config.manifest, "data": data})
    found = desired_objects(dataclasses.replace(broken, children={other.ref: other}), SETTINGS)
    assert found.problems
    assert found.first == ()


def test_every_child_says_what_it_was_applied_from() -> None:
    found = desired_objects(seen(), SETTINGS)
    digests = [drift.intent(each) for each in (*found.first, *found.workloads(1))]
    assert all(digests)
    assert digests == [drift.intent(each) for each in (*desired_objects(seen(), SETTINGS).first, *found.workloads(1))]


def test_template_that_another_version_rendered_counts_as_the_same_intent() -> None:
    (made,) = [
        each
        for each in desired_objects(seen(), SETTINGS).workloads(1)
        if ref_of(each) == Ref("Deployment", "job-rollout")
    ]
    live = json.loads(json.dumps(made))
    live["metadata"]["annotations"][pinning.RENDERED_BY] = "0.0.1"
    live["spec"]["template"]["spec"]["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
    live = json.loads(json.dumps(drift.signed(live)))
    child = Child(ref=Ref("Deployment", "job-rollout"), uid="d", manifest=live)
    again = desired_objects(Observed(job=seen().job, children={child.ref: child}), SETTINGS).workloads(1)
    (pinned,) = [each for each in again if ref_of(each) == child.ref]
    assert drift.due_at(live, pinned, None, now=1.0) is None, "an upgrade writes nothing"


def test_trainers_budget_exists_only_while_the_job_runs() -> None:
    run = Run()
    run.settle()
    job = run.cluster.job
    assert job is not None
    assert job.status is not None
    assert kinds_of(Observed(job=job)).count("PodDisruptionBudget") == 1, "the rollouts' alone"
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    job = run.cluster.job
    assert job is not None
    assert job.status is not None
    assert conditions.statuses(job.status.conditions)[Type.RUNNING] == "True"
    assert kinds_of(Observed(job=job)).count("PodDisruptionBudget") == 2


@pytest.mark.parametrize(("suspended", "image"), [("False", "pinned:1"), ("True", "example/rollout:1")])
def test_images_are_pinned_by_the_jobs_config_until_it_is_suspended(suspended: str, image: str) -> None:
    config = {"kind": "ConfigMap", "data": {"images.json": json.dumps({str(enums.Role.ROLLOUT): "pinned:1"})}}
    ref = Ref("ConfigMap", "job-config")
    run = Run()
    if suspended == "True":
        run.cluster.edit(suspend=True)
    run.settle()
    job = run.cluster.job
    assert job is not None
    observed = Observed(job=job, children={ref: Child(ref=ref, uid="u", manifest=config)})
    rollout = next(m for m in desired_objects(observed, SETTINGS).workloads(1) if ref_of(m).name == "job-rollout")
    assert f'"image": "{image}"' in json.dumps(rollout)


@pytest.mark.parametrize(("version", "kept"), [("0.0.1", True), (rljob_api.__version__, False)])
def test_configs_that_another_version_resolved_stay_until_the_spec_changes(version: str, kept: bool) -> None:
    ref = Ref("ConfigMap", "job-config")
    fresh = everything(seen())[ref]
    data = {**fresh["data"], "verifier.json": "as it was resolved then"}  # type: ignore[dict-item]
    live = {"kind": "ConfigMap", "metadata": {"annotations": {pinning.RENDERED_BY: version}}, "data": data}
    after = everything(seen(children={ref: Child(ref=ref, uid="u", manifest=live)}))[ref]
    assert after["data"] == (data if kept else fresh["data"])


@pytest.mark.parametrize(
    "change",
    [{"maxSteps": 20}, {"async": {"maxOffPolicySteps": 3}}, {"evaluation": {"everySteps": 5}}],
    ids=["maxSteps", "async.maxOffPolicySteps", "evaluation.everySteps"],
)
def test_what_a_coordinator_takes_over_live_changes_the_config_and_no_other_child(change: dict[str, object]) -> None:
    before, after = everything(seen()), everything(seen(change))
    assert before.keys() == after.keys()
    assert [ref for ref in before if before[ref] != after[ref]] == [Ref("ConfigMap", "job-config")]


def everything(observed: Observed) -> dict[Ref, Manifest]:
    found = desired_objects(observed, SETTINGS)
    assert found.problems == ()
    return {ref_of(manifest): manifest for manifest in (*found.first, *found.workloads(1))}
