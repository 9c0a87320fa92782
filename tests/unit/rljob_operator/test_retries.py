"""A failed run that is retried goes on in place: everything is stopped, and the next attempt begins where it was."""

import pytest

from rljob_api import enums
from rljob_api.manifest.status import AttemptStatus, JobStatus
from rljob_operator.model import Ref
from rljob_testing.fake_cluster import DRAIN_S
from rljob_testing.operator_runs import Run, operator_job

C, R, V, T = enums.Role.COORDINATOR, enums.Role.ROLLOUT, enums.Role.VERIFIER, enums.Role.TRAINER


def status_of(run: Run) -> JobStatus:
    assert run.cluster.job is not None
    assert run.cluster.job.status is not None
    return run.cluster.job.status


def condition(run: Run, kind: str) -> tuple[str, str]:
    return next((each.status, each.reason) for each in status_of(run).conditions if each.type == kind)


def attempts(run: Run) -> tuple[AttemptStatus, ...]:
    trainer = status_of(run).trainer
    return trainer.attempts if trainer else ()


def failed() -> Run:
    """Return a run whose trainer may not be restarted and did not end well."""
    run = Run(operator_job({"failurePolicy": {"maxTrainerRestarts": 0}}))
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=3, checkpoint_step=2)
    run.settle()
    run.cluster.end_trainer(1)
    run.settle()
    assert condition(run, "Failed") == ("True", "RestartLimitExceeded")
    return run


def test_a_retry_stops_what_is_left_and_begins_the_next_attempt_with_the_history_kept() -> None:
    run = failed()
    assert status_of(run).completion_time is not None
    run.cluster.edit(retry=1)
    run.reconcile()
    assert (condition(run, "Failed"), condition(run, "Suspending")) == (
        ("False", "NotFailed"), ("True", "RetryRequested"),
    )  # fmt: skip
    run.wait(DRAIN_S + 10)
    assert run.cluster.jobs_made == ["job-trainer-1", "job-trainer-2"]
    assert [attempt.number for attempt in attempts(run)] == [1, 2]
    assert attempts(run)[0].outcome == "failed"
    assert (status_of(run).retry, status_of(run).first_attempt, status_of(run).completion_time) == (1, 2, None)
    run.cluster.says(enums.Phase.RUNNING, step=4)
    run.settle()
    assert run.summary == "Running"


def test_no_pod_of_before_is_left_when_the_run_resumes() -> None:
    run = failed()
    before = set(run.alive(C))
    run.cluster.edit(retry=1)
    for _ in range(200):
        run.reconcile()
        if condition(run, "Suspended") == ("True", "RetryRequested"):
            break
        run.cluster.settle()
        run.clock.tick(1)
    assert before
    assert [run.alive(role) for role in (C, R, V, T)] == [[], [], [], []]
    assert Ref("Job", "job-trainer-1") not in run.cluster.children


def test_a_retried_run_has_its_whole_budget_of_restarts_again() -> None:
    run = failed()
    run.cluster.edit(retry=1)
    run.wait(DRAIN_S + 10)
    assert status_of(run).restarts is None
    run.cluster.end_trainer(1)
    run.settle()
    assert condition(run, "Failed") == ("True", "RestartLimitExceeded")
    run.wait(100)
    assert condition(run, "Failed") == ("True", "RestartLimitExceeded"), "one retry for each value"
    run.cluster.edit(retry=2)
    run.wait(DRAIN_S + 10)
    assert run.cluster.jobs_made == ["job-trainer-1", "job-trainer-2", "job-trainer-3"]


def test_a_value_that_was_raised_before_the_failure_is_not_saved_up() -> None:
    run = Run(operator_job({"failurePolicy": {"maxTrainerRestarts": 0}}))
    run.settle()
    run.cluster.edit(retry=3)
    run.settle()
    assert status_of(run).retry == 3
    run.cluster.end_trainer(1)
    run.wait(100)
    assert condition(run, "Failed") == ("True", "RestartLimitExceeded")


def test_a_run_that_is_complete_is_not_retried() -> None:
    run = Run()
    run.settle()
    run.cluster.end_trainer(0)
    run.cluster.says(enums.Phase.FINISHED, step=10)
    run.settle()
    run.cluster.edit(retry=1)
    run.wait(100)
    assert condition(run, "Complete") == ("True", "MaxStepsReached")
    assert run.cluster.jobs_made == ["job-trainer-1"]


def test_a_retry_of_a_suspended_failure_waits_for_the_resume() -> None:
    run = failed()
    run.cluster.edit(retry=1, suspend=True)
    run.wait(100)
    assert condition(run, "Failed") == ("True", "RestartLimitExceeded")
    run.cluster.edit(suspend=False)
    run.wait(DRAIN_S + 10)
    assert run.cluster.jobs_made == ["job-trainer-1", "job-trainer-2"]


@pytest.mark.parametrize("suspended_first", [True, False])
def test_a_suspension_during_a_retry_ends_in_a_suspended_job(suspended_first: bool) -> None:
    run = failed()
    run.cluster.edit(retry=1)
    run.reconcile()
    if suspended_first:
        run.cluster.edit(suspend=True)
    run.wait(DRAIN_S + 10)
    run.cluster.edit(suspend=True)
    run.wait(DRAIN_S + 130)
    assert condition(run, "Suspended") == ("True", "UserRequested")
    assert condition(run, "Failed") == ("False", "NotFailed")
