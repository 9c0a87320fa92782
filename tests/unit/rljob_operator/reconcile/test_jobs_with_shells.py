"""What an environment changes of a job: its images, its conditions, and the order in which it stops."""

import dataclasses

from rljob_api import enums
from rljob_api.conditions import ConditionType as Type
from rljob_operator.model import Child, Observed, Pod, ref_of
from rljob_operator.reconcile import conditions
from rljob_operator.reconcile.desired import desired_objects
from rljob_operator.reconcile.suspend import PodsLeft, SuspendStage, stage
from rljob_operator.settings import JobSettings
from rljob_testing.operator_runs import Run, operator_job

SETTINGS = JobSettings(images={role: f"example/{role}:1" for role in enums.STANDARD_ROLES})
E = enums.Role.ENVIRONMENT
WITH_SHELLS = {
    "workflow": {"type": "tool_use", "config": {"tools": ["shell"], "notation": "terminal"}},
    "environment": {},
}


def test_an_environment_has_the_image_of_the_verifiers() -> None:
    made = desired_objects(Observed(job=operator_job(WITH_SHELLS)), SETTINGS)
    assert made.problems == ()
    (deployment,) = (each for each in made.workloads(1) if ref_of(each).name == "job-environment")
    assert "'image': 'example/verifier:1'" in str(deployment)


def test_an_environment_with_an_image_of_its_own_leaves_verifiers_alone() -> None:
    job = operator_job({**WITH_SHELLS, "environment": {"image": "example/toolchain:2"}})
    objects = desired_objects(Observed(job=job), SETTINGS).workloads(1)
    texts = {ref_of(each).name: str(each) for each in objects if ref_of(each).kind == "Deployment"}
    assert "'image': 'example/toolchain:2'" in texts["job-environment"]
    assert [name for name, text in texts.items() if "toolchain" in text] == ["job-environment"]


def test_a_started_job_keeps_the_images_of_its_environments_and_verifiers() -> None:
    job = operator_job({**WITH_SHELLS, "environment": {"image": "example/toolchain:2"}})
    made = desired_objects(Observed(job=job), SETTINGS)
    children = {ref_of(each): Child(ref=ref_of(each), uid="c", manifest=each) for each in made.first}
    later = JobSettings(images={role: f"example/{role}:2" for role in enums.STANDARD_ROLES})
    again = desired_objects(Observed(job=job, children=children), later).workloads(1)
    texts = {ref_of(each).name: str(each) for each in again if ref_of(each).kind == "Deployment"}
    assert "'image': 'example/toolchain:2'" in texts["job-environment"]
    assert "'image': 'example/verifier:1'" in texts["job-verifier"]


def test_who_runs_what_the_policy_wrote_is_ready_once_an_environment_is_too() -> None:
    run = Run(operator_job(WITH_SHELLS))
    run.settle()
    assert run.condition(Type.VERIFIER_READY) == (
        "False",
        "Starting",
        "no environment is ready: the first ones make their places and try their confinement",
    )
    looping = Pod(name="job-environment-0", uid="e", role=E, phase="Running", waiting_reason="CrashLoopBackOff")
    run.cluster.pods["job-environment-0"] = looping
    run.reconcile()
    assert run.condition(Type.VERIFIER_READY) == ("False", "CrashLoop", "job-environment-0")
    run.cluster.pods["job-environment-0"] = dataclasses.replace(looping, waiting_reason="", ready=True)
    run.reconcile()
    assert run.condition(Type.VERIFIER_READY)[:2] == ("True", "Ready")


def test_missing_environments_degrade_a_job() -> None:
    target = {E: 2, enums.Role.VERIFIER: 1}
    ready = {E: 1, enums.Role.VERIFIER: 1}
    assert conditions.degraded_reason(ready=ready, desired=target, run_reason="") == "EnvironmentsBelowTarget"


def test_an_environment_stops_once_no_rollout_needs_it() -> None:
    with_rollout = PodsLeft(trainer=0, rollout=1, verifier=0, coordinator=1, environment=1)
    assert stage(with_rollout) == SuspendStage.TRAINER_AND_ROLLOUTS
    assert stage(dataclasses.replace(with_rollout, rollout=0)) == SuspendStage.VERIFIERS
    assert stage(dataclasses.replace(with_rollout, rollout=0, environment=0)) == SuspendStage.COORDINATOR
