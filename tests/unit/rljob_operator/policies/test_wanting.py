import dataclasses
import json
from typing import Any

import pytest

from rljob_api import enums
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import LIVE
from rljob_api.manifest.storage import StorageSpec
from rljob_operator.model import CLAIM, Apply, Child, Manifest, Observed, Ref, ref_of
from rljob_operator.policies import drift, pinning
from rljob_operator.reconcile import conditions
from rljob_operator.reconcile.desired import desired_objects
from rljob_operator.reconcile.plan import plan
from rljob_operator.settings import JobSettings
from rljob_testing.fake_cluster import NUM_ROLLOUTS
from rljob_testing.operator_runs import Run, operator_job

IMAGES = {role: f"example/{role}:1" for role in enums.STANDARD_ROLES}
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
    settings = JobSettings(
        images={role: IMAGES[role] for role in enums.STANDARD_ROLES if role is not enums.Role.VERIFIER}
    )
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
    plain = seen({"security": {"tls": "Disabled", "networkPolicy": False}})
    found = desired_objects(plain, strict)
    assert len(found.problems) == 2
    assert [ref_of(each) for each in found.first] == [ref_of(each) for each in desired_objects(plain, SETTINGS).first]
    assert "Job" in [ref_of(each).kind for each in found.workloads(2)]


def test_edit_that_cannot_be_resolved_leaves_a_run_under_way_the_configs_it_began_with() -> None:
    broken = _under_way(algorithm=operator_job().spec.algorithm.model_copy(update={"group_size": 1}))
    found = desired_objects(broken, SETTINGS)
    assert found.problems
    (config,) = [each for each in found.first if ref_of(each).kind == "ConfigMap"]
    for role in enums.STANDARD_ROLES:
        assert _document(config, role) == _document(broken.children[ref_of(config)].manifest, role)
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


def test_trainers_budget_exists_where_it_is_asked_for_and_only_while_the_job_runs() -> None:
    run = Run()
    run.settle()
    assert _budgets(run, allows_disruption="false") == ["job-rollout"]
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    job = run.cluster.job
    assert job is not None
    assert job.status is not None
    assert conditions.statuses(job.status.conditions)[Type.RUNNING] == "True"
    assert _budgets(run) == ["job-rollout"]
    assert _budgets(run, allows_disruption="false") == ["job-rollout", "job-trainer"]


def _budgets(run: Run, *, allows_disruption: str | None = None) -> list[str]:
    job = run.cluster.job
    assert job is not None
    annotations = {} if allows_disruption is None else {"rljob.dev/allow-disruption": allows_disruption}
    annotated = job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": annotations})})
    refs = map(ref_of, desired_objects(Observed(job=annotated), SETTINGS).workloads(1))
    return [ref.name for ref in refs if ref.kind == "PodDisruptionBudget"]


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


# A run of another version of the operator, whose schema of configs is not this one's.

OTHER = "0.0.1"
CONFIG = Ref("ConfigMap", "job-config")
_CLEANED = {"rollout": "Delete", "verifier": "Delete", "trainer": "Keep"}
# What a running job takes over: an edit, and what their config has of it then.
LIVE_EDITS: dict[str, tuple[object, object]] = {
    "maxSteps": (20, 20),
    "activeDeadlineSeconds": (3600, 3600),
    "schedulingDeadlineSeconds": (600, 600),
    "startupDeadlineSeconds": (900, 900),
    "ttlSecondsAfterFinished": (60, 60),
    "cleanupPolicy": (
        {"onSuccess": {"coordinator": "Keep"}},
        {role: {**_CLEANED, "coordinator": "Keep"} for role in ("onSuccess", "onFailure")},
    ),
    # Their schema knows but one field of it.
    "failurePolicy": ({"stall": {"timeoutSeconds": 99}, "maxInfraRestarts": 5}, {"stall": {"timeoutSeconds": 99}}),
    "rollout.replicas": (5, 5),
    "verifier.replicas": (3, 3),
    # They had none: what is written is in any schema that has it, what this version adds by default may not be.
    "rollout.autoscaling": ({"maxReplicas": 7}, {"maxReplicas": 7}),
    "async.maxOffPolicySteps": (3, 3),
    "evaluation.everySteps": (5, 5),
    "observability.logLevel": ("Debug", "Debug"),
}


def _other_run() -> Child:
    """Return the ConfigMap of a run that another version began: its configs have a field more and fields less, and its
    trainer's template is rendered in another way.
    """
    manifest = json.loads(json.dumps(everything(seen())[CONFIG]))
    manifest["metadata"]["annotations"][pinning.RENDERED_BY] = OTHER
    for role in enums.STANDARD_ROLES:
        document = _document(manifest, role)
        del document["scratch_dir"]
        document["field_of_theirs"] = 1
        if "spec" in document:
            document["spec"]["failurePolicy"] = {"stall": {"timeoutSeconds": 600}}
        manifest["data"][f"{role}.json"] = json.dumps(document)
    template = json.loads(manifest["data"]["trainer-template.json"])
    template["spec"]["containers"][0]["args"] = ["--their-config"]
    manifest["data"]["trainer-template.json"] = json.dumps(template)
    return Child(ref=CONFIG, uid="u", manifest=manifest)


def _document(manifest: Any, role: enums.Role) -> dict[str, Any]:
    return dict(json.loads(manifest["data"][f"{role}.json"]))


def _set(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    *parents, leaf = path.split(".")
    for key in parents:
        document = document[key]
    if parents and leaf not in document:
        return document
    document[leaf] = value
    return document


def test_every_field_that_is_taken_over_live_has_an_edit() -> None:
    assert {*LIVE_EDITS, "suspend", "retry"} == set(LIVE)


@pytest.mark.parametrize("path", LIVE_EDITS)
def test_live_edit_reaches_a_run_of_another_version_in_its_own_schema(path: str) -> None:
    value, taken_over = LIVE_EDITS[path]
    section, _, leaf = path.partition(".")
    others: dict[str, object] = {
        "rollout": {"replicas": NUM_ROLLOUTS},
        "verifier": {"rewards": [{"name": "right", "type": "exact"}]},
    }.get(section, {})
    job = seen({section: {**others, leaf: value} if leaf else value}).job
    edited = job.model_copy(update={"metadata": job.metadata.model_copy(update={"generation": 2})})
    other = _other_run()
    after = everything(Observed(job=edited, children={CONFIG: other}))[CONFIG]
    for role in enums.STANDARD_ROLES:
        expected = _document(other.manifest, role)
        expected["job"]["config_generation"] = 2
        # A verifier reads one section of the manifest.
        if "spec" in expected:
            _set(expected["spec"], path, taken_over)
        elif section in expected:
            _set(expected, path, taken_over)
        assert _document(after, role) == expected
    observed = Observed(job=edited, children={CONFIG: dataclasses.replace(other, manifest=after)})
    assert everything(observed)[CONFIG] == after, "and nothing more is written"


def test_next_attempt_of_a_run_of_another_version_has_its_pod_template() -> None:
    other = _other_run()
    (job,) = [
        each
        for each in desired_objects(seen(children={CONFIG: other}), SETTINGS).workloads(2)
        if ref_of(each).kind == "Job"
    ]
    template = json.loads(json.dumps(job))["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["args"] == ["--their-config"]
    assert {"HOME", "RLJOB_ATTEMPT"} <= {variable["name"] for variable in container["env"]}
    assert template["metadata"]["labels"]["rljob.dev/attempt"] == "2"
    assert ref_of(job).name == "job-trainer-2"


def test_run_that_is_suspended_goes_on_as_this_version_makes_it() -> None:
    run = Run()
    run.cluster.edit(suspend=True)
    run.settle()
    job = run.cluster.job
    assert job is not None
    plain, begun = Observed(job=job), Observed(job=job, children={CONFIG: _other_run()})
    assert everything(begun) == everything(plain)


@pytest.mark.parametrize("content", ["", "null", "[]", "no JSON"])
def test_template_that_another_hand_broke_is_not_used(content: str) -> None:
    other = _other_run()
    data: Any = other.manifest["data"]
    broken = dataclasses.replace(other, manifest={**other.manifest, "data": {**data, "trainer-template.json": content}})
    trainer = Ref("Job", "job-trainer-1")
    assert everything(seen(children={CONFIG: broken}))[trainer] == everything(seen())[trainer]


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
