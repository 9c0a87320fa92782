"""What a judge changes of a job: its images, its conditions, and the order in which it stops."""

import dataclasses

from rljob_api import enums
from rljob_api.conditions import ConditionType as Type
from rljob_operator.model import Observed, Pod, ref_of
from rljob_operator.reconcile.desired import desired_objects
from rljob_operator.reconcile.suspend import PodsLeft, SuspendStage, stage
from rljob_operator.settings import JobSettings
from rljob_testing.operator_runs import Run, operator_job

SETTINGS = JobSettings(images={role: f"example/{role}:1" for role in enums.STANDARD_ROLES})
J = enums.Role.JUDGE
JUDGED = {
    "verifier": {
        "rewards": [{"name": "helpful", "type": "judge", "config": {"url": "https://example.com/v1", "model": "m"}}]
    }
}


def test_a_judge_has_the_image_of_the_verifiers() -> None:
    made = desired_objects(Observed(job=operator_job(JUDGED)), SETTINGS)
    assert made.problems == ()
    (deployment,) = (each for each in made.workloads(1) if ref_of(each).name == "job-judge")
    assert '"image": "example/verifier:1"' in str(deployment).replace("'", '"')


def test_who_grades_is_ready_once_the_judge_is_too() -> None:
    run = Run(operator_job(JUDGED))
    run.settle()
    assert run.condition(Type.VERIFIER_READY) == (
        "False",
        "Starting",
        "the judge is not ready: it waits for the first answer of its language model",
    )
    looping = Pod(name="job-judge-0", uid="j", role=J, phase="Running", waiting_reason="CrashLoopBackOff")
    run.cluster.pods["job-judge-0"] = looping
    run.reconcile()
    assert run.condition(Type.VERIFIER_READY) == ("False", "CrashLoop", "job-judge-0")
    run.cluster.pods["job-judge-0"] = dataclasses.replace(looping, waiting_reason="", ready=True)
    run.reconcile()
    assert run.condition(Type.VERIFIER_READY)[:2] == ("True", "Ready")


def test_a_judge_stops_with_the_verifiers_once_no_rollout_needs_it() -> None:
    with_rollout = PodsLeft(trainer=0, rollout=1, verifier=0, coordinator=1, judge=1)
    assert stage(with_rollout) == SuspendStage.TRAINER_AND_ROLLOUTS
    assert stage(dataclasses.replace(with_rollout, rollout=0)) == SuspendStage.VERIFIERS
    assert stage(dataclasses.replace(with_rollout, rollout=0, judge=0)) == SuspendStage.COORDINATOR
