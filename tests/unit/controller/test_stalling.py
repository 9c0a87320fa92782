import dataclasses

from rljob_api import names, types
from rljob_api.conditions import ConditionType as Type
from rljob_api.job_status import StalledStatus
from rljob_operator import conditions
from rljob_testing.operator_runs import Run, operator_job

WAITING = (
    types.Waiting(role="trainer", pod="job-trainer-1-0", what="batch 2", on_role="rollout", since=1_000_000.0),
    types.Waiting(role="rollout", pod="job-rollout-0", what="a verdict", on_role="verifier", since=1_000_000.0),
)


def standing_still(action: str = "Condition") -> Run:
    """Return a run that finished a step and then waits for its verifier."""
    run = Run(operator_job({"failurePolicy": {"stall": {"timeoutSeconds": 600, "action": action}}}))
    run.settle()
    run.cluster.says(names.Phase.RUNNING, step=1)
    run.settle()
    return run


def hear(run: Run, after_s: float, *, waiting: tuple[types.Waiting, ...] = WAITING) -> None:
    """Let time pass and the coordinator say that nothing moved."""
    run.clock.tick(after_s)
    report = run.cluster.report
    assert report is not None
    said = dataclasses.replace(report.run, waiting=waiting)
    run.cluster.report = dataclasses.replace(report, run=said, read_at=run.clock.now())
    run.reconcile()


def stalled(run: Run) -> tuple[str, str]:
    job = run.cluster.job
    assert job is not None
    assert job.status is not None
    known = job.status.conditions
    return conditions.statuses(known)[Type.STALLED], conditions.reasons(known)[Type.STALLED]


def shown(run: Run) -> StalledStatus | None:
    job = run.cluster.job
    assert job is not None
    assert job.status is not None
    return job.status.stalled


def test_condition_stands_at_the_timeout_and_status_names_the_culprit_before() -> None:
    run = standing_still()
    hear(run, 299.0)
    assert (stalled(run)[0], shown(run)) == ("False", None)
    hear(run, 250.0)
    found = shown(run)
    assert found is not None
    assert (stalled(run)[0], found.role, found.reason) == ("False", "verifier", "VerifierSaturated")
    hear(run, 60.0)
    assert stalled(run) == ("True", "VerifierSaturated")
    assert run.alive(names.Role.VERIFIER) == ["job-verifier-0"], "a condition changes nothing"


def test_first_progress_clears_it() -> None:
    run = standing_still()
    hear(run, 700.0)
    run.cluster.says(names.Phase.RUNNING, step=2)
    run.reconcile()
    assert (stalled(run), shown(run)) == (("False", "Progressing"), None)


def test_coordinator_that_is_not_heard_of_is_named_and_the_data_loop_is_not_blamed() -> None:
    run = standing_still()
    run.clock.tick(601.0)
    run.reconcile()
    assert stalled(run) == ("True", "CoordinatorUnreachable")


def test_run_that_starts_is_not_called_stalled() -> None:
    run = Run(operator_job({"failurePolicy": {"stall": {"timeoutSeconds": 600}}}))
    run.settle()
    run.cluster.says(names.Phase.STARTING, step=0)
    hear(run, 700.0)
    assert stalled(run)[0] == "False"


def test_action_fail_ends_the_run() -> None:
    run = standing_still("Fail")
    hear(run, 601.0)
    run.settle()
    assert run.summary == "Failed"


def test_action_restart_replaces_the_culprit_once_per_timeout_and_nobody_else() -> None:
    run = standing_still("Restart")
    hear(run, 601.0)
    hear(run, 1.0)
    hear(run, 1.0)
    assert [call for call in run.cluster.calls if call.startswith("delete")] == ["delete job-verifier-0"]
    run.settle()
    assert run.alive(names.Role.VERIFIER) == ["job-verifier-0"]
    hear(run, 500.0)
    assert len([call for call in run.cluster.calls if call.startswith("delete")]) == 1
    hear(run, 200.0)
    hear(run, 1.0)
    assert len([call for call in run.cluster.calls if call.startswith("delete")]) == 2


def test_trainer_that_hangs_gets_a_new_attempt_that_counts_as_infrastructure() -> None:
    run = standing_still("Restart")
    on_trainer = types.Waiting(role="rollout", pod="job-rollout-0", what="staleness", on_role="trainer", since=0.0)
    hear(run, 601.0, waiting=(on_trainer,))
    hear(run, 1.0, waiting=(on_trainer,))
    run.until(lambda: run.cluster.jobs_made == ["job-trainer-1", "job-trainer-2"])
    job = run.cluster.job
    assert job is not None
    assert job.status is not None
    assert job.status.restarts is not None
    assert job.status.restarts.infrastructure == 1


def test_suspended_job_is_not_stalled() -> None:
    run = standing_still()
    hear(run, 700.0)
    run.cluster.edit(suspend=True)
    run.settle()
    assert (stalled(run), shown(run)) == (("False", "Progressing"), None)
