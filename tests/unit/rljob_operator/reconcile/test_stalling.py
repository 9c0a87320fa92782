import dataclasses

from rljob_api import enums, types
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.status import StalledStatus
from rljob_operator.reconcile import conditions
from rljob_testing.operator_runs import Run, operator_job

WAITING = (
    types.Waiting(role="trainer", pod="job-trainer-1-0", what="batch 2", on_role="rollout", since=1_000_000.0),
    types.Waiting(role="rollout", pod="job-rollout-0", what="a verdict", on_role="verifier", since=1_000_000.0),
)


def standing_still(action: str = "Condition") -> Run:
    """Return a run that finished a step and then waits for its verifier."""
    run = Run(operator_job({"failurePolicy": {"stall": {"timeoutSeconds": 600, "action": action}}}))
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=1)
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
    assert run.alive(enums.Role.VERIFIER) == ["job-verifier-0"], "a condition changes nothing"


def test_first_progress_clears_it() -> None:
    run = standing_still()
    hear(run, 700.0)
    run.cluster.says(enums.Phase.RUNNING, step=2)
    run.reconcile()
    assert (stalled(run), shown(run)) == (("False", "Progressing"), None)


def test_coordinator_that_is_not_heard_of_is_named_and_the_data_loop_is_not_blamed() -> None:
    for action in ("Condition", "Restart", "Fail"):
        run = standing_still(action)
        run.clock.tick(1.0)
        run.cluster.silent_since = run.clock.now()
        run.clock.tick(599.0)
        run.reconcile()
        assert stalled(run)[0] == "False"
        run.clock.tick(1.0)
        run.settle()
        assert stalled(run) == ("True", "CoordinatorUnreachable")
        assert run.summary == "Stalled", "the run may well go on: nothing of it is ended or begun anew"
        assert not [call for call in run.cluster.calls if call.startswith("delete")]


def test_silent_coordinator_that_has_no_node_is_named_for_what_it_lacks() -> None:
    run = standing_still()
    run.cluster.silent_since = run.clock.now()
    pod = run.cluster.pods["job-coordinator-0"]
    lacks = {"phase": "Pending", "ready": False, "conditions": frozenset({("PodScheduled", "False")})}
    run.cluster.pods[pod.name] = dataclasses.replace(pod, **lacks)  # type: ignore[arg-type]  # names fit
    run.clock.tick(601.0)
    run.reconcile()
    assert stalled(run) == ("True", "PodsUnschedulable")


def test_report_that_is_old_shows_no_stall_of_what_came_after_it() -> None:
    run = standing_still("Fail")
    run.clock.tick(3600.0)
    run.reconcile()
    assert stalled(run)[0] == "False", "nobody asked for an hour"
    hear(run, 1.0)
    assert stalled(run)[0] == "True"


def test_clock_of_the_coordinators_node_that_is_behind_makes_no_stall() -> None:
    run = standing_still("Fail")
    report = run.cluster.report
    assert report is not None
    behind_s = 3600.0
    for _ in range(3):
        run.clock.tick(100.0)
        now = run.clock.now() - behind_s
        said = dataclasses.replace(report.run, said_at=now, last_progress_at=now - 30.0)
        run.cluster.report = dataclasses.replace(report, run=said, read_at=run.clock.now())
        run.reconcile()
        assert (stalled(run)[0], shown(run)) == ("False", None)


def test_attempt_that_loads_after_a_failure_is_no_stall_before_a_start_may_take_so_long() -> None:
    run = standing_still("Restart")
    run.cluster.end_trainer(75)
    run.until(lambda: run.cluster.jobs_made == ["job-trainer-1", "job-trainer-2"])
    report = run.cluster.report
    assert report is not None
    loads = (types.TrainerAttempt(attempt=1, first_step_at=1.0), types.TrainerAttempt(attempt=2))
    run.cluster.report = dataclasses.replace(report, run=dataclasses.replace(report.run, attempts=loads))
    on_trainer = types.Waiting(role="rollout", pod="job-rollout-0", what="staleness", on_role="trainer", since=0.0)
    hear(run, 1700.0, waiting=(on_trainer,))
    assert stalled(run)[0] == "False"
    hear(run, 200.0, waiting=(on_trainer,))
    assert stalled(run)[0] == "True"


def test_attempt_that_waits_for_a_node_for_hours_is_not_begun_again_for_that_and_then_has_its_time_to_load() -> None:
    run = standing_still("Restart")
    run.cluster.end_trainer(75)
    run.until(lambda: run.cluster.jobs_made == ["job-trainer-1", "job-trainer-2"])
    report, pod = run.cluster.report, run.cluster.pods["job-trainer-2-0"]
    assert report is not None
    loads = (types.TrainerAttempt(attempt=1, first_step_at=1.0), types.TrainerAttempt(attempt=2))
    run.cluster.report = dataclasses.replace(report, run=dataclasses.replace(report.run, attempts=loads))
    waits = dataclasses.replace(pod, phase="Pending", ready=False, conditions=frozenset({("PodScheduled", "False")}))
    run.cluster.pods[pod.name] = waits
    before = len(run.cluster.calls)
    for _ in range(6):
        hear(run, 3600.0)
        assert stalled(run) == ("True", "PodsUnschedulable")
    run.cluster.pods[pod.name] = dataclasses.replace(pod, ready=False, scheduled_at=run.clock.now())
    hear(run, 1700.0)
    assert stalled(run)[0] == "False", "it loads"
    assert [call for call in run.cluster.calls[before:] if call != "status"] == []
    hear(run, 200.0)
    assert stalled(run)[0] == "True"


def test_pod_that_works_is_not_taken_for_one_that_a_quota_denies_beside_it() -> None:
    run = standing_still("Restart")
    run.cluster.denied = {enums.Role.ROLLOUT: "exceeded quota: team"}
    del run.cluster.pods["job-rollout-1"]
    before = len(run.cluster.calls)
    for _ in range(2):
        run.cluster.settle()
        hear(run, 1.0)
    for _ in range(6):
        hear(run, 600.0)
        run.cluster.settle()
    assert stalled(run) == ("True", "PodsUnschedulable")
    assert run.alive(enums.Role.ROLLOUT) == ["job-rollout-0"]
    assert [call for call in run.cluster.calls[before:] if call != "status"] == []


def test_run_that_starts_is_not_called_stalled() -> None:
    run = Run(operator_job({"failurePolicy": {"stall": {"timeoutSeconds": 600}}}))
    run.settle()
    run.cluster.says(enums.Phase.STARTING, step=0)
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
    assert run.alive(enums.Role.VERIFIER) == ["job-verifier-0"]
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
