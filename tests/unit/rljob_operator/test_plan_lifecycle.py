import dataclasses

import pytest

from rljob_api import enums
from rljob_operator.model import Child, Ref
from rljob_testing.fake_cluster import DRAIN_S
from rljob_testing.operator_runs import Run, operator_job

C, R, V, T = enums.Role.COORDINATOR, enums.Role.ROLLOUT, enums.Role.VERIFIER, enums.Role.TRAINER
CONFIG = Ref("ConfigMap", "job-config")


def running(changes: dict[str, object] | None = None) -> Run:
    run = Run(operator_job(changes))
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=3, checkpoint_step=2)
    run.settle()
    return run


def condition(run: Run, kind: str) -> tuple[str, str]:
    assert run.cluster.job is not None
    assert run.cluster.job.status is not None
    return next((one.status, one.reason) for one in run.cluster.job.status.conditions if one.type == kind)


def test_job_starts_with_what_pods_rest_on_and_then_all_roles_at_once() -> None:
    run = Run()
    run.reconcile()
    assert run.cluster.calls == [
        "status",
        "apply job-config",
        "apply job-coordinator",
        "apply job-verifier",
        "apply job-rollout",
        "apply job-trainer-1",
    ]
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    assert run.summary == "Running"
    assert condition(run, "Running") == ("True", "Running")


def finished() -> Run:
    """Return a run whose trainer has ended it."""
    run = running()
    run.cluster.end_trainer(0)
    run.cluster.says(enums.Phase.FINISHED, step=10)
    run.settle()
    return run


def test_nothing_is_written_while_nothing_changes() -> None:
    run = running()
    before = list(run.cluster.calls)
    for _ in range(5):
        run.clock.tick(4)
        run.reconcile()
    assert run.cluster.calls == before


def test_child_changed_or_deleted_by_hand_is_repaired() -> None:
    run = running()
    rollout = Ref("Deployment", "job-rollout")
    del run.cluster.children[rollout]
    run.settle()
    assert run.cluster.children[rollout].wanted_replicas == 2


def test_rollouts_on_their_way_out_are_not_counted_for_an_autoscaler() -> None:
    run = running()
    key, pod = next((key, pod) for key, pod in run.cluster.pods.items() if pod.role is R)
    run.cluster.pods[key] = dataclasses.replace(pod, deleting=True)
    run.reconcile()
    assert run.cluster.job is not None
    assert run.cluster.job.status is not None
    assert run.cluster.job.status.rollout is not None
    assert run.cluster.job.status.rollout.replicas == 1


def test_finished_run_is_complete_and_frees_rollouts_and_verifiers_only() -> None:
    run = finished()
    run.wait(DRAIN_S + 1)
    assert condition(run, "Complete") == ("True", "MaxStepsReached")
    assert (run.alive(R), run.alive(V)) == ([], [])
    assert run.alive(C) == ["job-coordinator-0"]
    assert Ref("Job", "job-trainer-1") in run.cluster.children


def test_finished_run_is_never_run_again() -> None:
    run = finished()
    run.cluster.children.clear()
    run.wait(100)
    assert run.cluster.jobs_made == ["job-trainer-1"]
    assert run.summary == "Succeeded"


def test_finished_run_stays_finished_when_its_end_is_raised() -> None:
    run = finished()
    run.wait(DRAIN_S + 1)
    before = (run.alive(C), list(run.cluster.jobs_made), run.cluster.children[CONFIG])
    run.cluster.edit(max_steps=20)
    run.wait(100)
    assert (run.alive(C), run.cluster.jobs_made, run.cluster.children[CONFIG]) == before
    assert condition(run, "Complete") == ("True", "MaxStepsReached")


def test_finished_trainer_waits_for_the_coordinators_word_for_a_minute() -> None:
    run = running()
    run.cluster.end_trainer(0)
    run.settle()
    assert run.summary == "Running", "nothing starts"
    run.wait(70)
    assert run.summary == "Running", "it was not asked since"
    run.cluster.answers()
    run.settle()
    assert run.summary == "Succeeded"


def test_finished_trainer_whose_coordinator_is_silent_is_taken_at_its_word_after_a_minute() -> None:
    run = running()
    run.cluster.end_trainer(0)
    run.cluster.silent_since = run.clock.now()
    run.wait(50)
    assert run.summary != "Succeeded"
    run.wait(20)
    assert run.summary == "Succeeded"


def test_new_operator_asks_before_it_takes_a_finished_trainer_at_its_word() -> None:
    run = running()
    run.cluster.end_trainer(0)
    run.clock.tick(3600)
    run.cluster.report = None
    run.settle()
    assert run.summary != "Succeeded"
    run.cluster.says(enums.Phase.FINISHED, step=7)
    run.settle()
    assert condition(run, "Complete") == ("True", "DataExhausted")


def test_lost_rank_ends_the_attempt_and_only_the_trainer_starts_anew() -> None:
    run = running()
    others = {name: pod.uid for name, pod in run.cluster.pods.items() if pod.role is not T}
    run.cluster.end_trainer(1, rank=0)
    run.settle()
    assert condition(run, "TrainerReady") == ("False", "BackingOff")
    assert run.alive(T) == []
    run.wait(11)
    assert run.alive(T) == ["job-trainer-2-0", "job-trainer-2-1"]
    assert {name: pod.uid for name, pod in run.cluster.pods.items() if pod.role is not T} == others
    assert run.cluster.job is not None
    assert run.cluster.job.status is not None
    first = run.cluster.job.status.trainer.attempts[0] if run.cluster.job.status.trainer else None
    assert first is not None
    assert (first.outcome, first.class_, first.exit_code, first.step) == ("failed", "application", 1, 3)


def test_next_attempt_does_not_wait_for_the_last_ones_job_to_be_cleared_away() -> None:
    run = running()
    run.cluster.end_trainer(1)
    run.settle()
    run.wait(11)
    calls = run.cluster.calls
    assert calls.index("apply job-trainer-2") < calls.index("delete job-trainer-1")


@pytest.mark.parametrize(
    ("exit_code", "budget", "reason"),
    [
        (1, {"maxTrainerRestarts": 0}, "RestartLimitExceeded"),
        (75, {"maxInfraRestarts": 0}, "InfraLimitExceeded"),
        (78, {}, "ConfigurationError"),
        (1, {"rules": [{"action": "FailJob", "exitCodes": {"operator": "In", "values": [1]}}]}, "FailJobRule"),
    ],
)
def test_run_fails_for_the_reason_of_its_last_attempt(exit_code: int, budget: dict[str, object], reason: str) -> None:
    run = running({"failurePolicy": budget})
    run.cluster.end_trainer(exit_code, rank=0)
    run.settle()
    assert condition(run, "Failed") == ("True", reason)
    assert condition(run, "Stalled") == ("True", "Failed")
    assert run.cluster.jobs_made == ["job-trainer-1"]


def test_run_that_the_coordinator_declares_failed_fails_with_its_sentence_and_frees_the_pods_that_cost_most() -> None:
    run = running()
    why = "record 7 of source 'sums' cannot be used: it has no 'answer'"
    run.cluster.says(enums.Phase.FAILED, step=1, failure=why)
    run.settle()
    assert condition(run, "Failed") == ("True", "ConfigurationError")
    job = run.cluster.job
    assert job is not None
    assert job.status is not None
    assert [one.message for one in job.status.conditions if one.type == "Failed"] == [why]
    run.wait(DRAIN_S + 1)
    assert run.alive(R) == []
    assert run.cluster.jobs_made == ["job-trainer-1"]


def test_suspend_stops_the_ledger_last_and_frees_every_pod() -> None:
    run = running()
    run.cluster.edit(suspend=True)
    run.reconcile()
    assert run.summary == "Suspending"
    assert run.cluster.calls[-2:] == ["delete job-trainer-1", "scale job-rollout 0"]
    run.settle()
    assert run.cluster.pods == {}
    assert condition(run, "Suspended") == ("True", "UserRequested")
    stops = [call for call in run.cluster.calls if call.startswith("scale")]
    assert stops == ["scale job-rollout 0", "scale job-verifier 0", "scale job-coordinator 0"]


def test_resume_is_a_new_attempt_that_counts_in_no_budget() -> None:
    run = running()
    run.cluster.edit(suspend=True)
    run.settle()
    run.cluster.edit(suspend=False)
    run.settle()
    assert run.alive(T) == ["job-trainer-2-0", "job-trainer-2-1"]
    assert run.cluster.job is not None
    assert run.cluster.job.status is not None
    assert run.cluster.job.status.restarts is None
    run.wait(100)
    assert condition(run, "Suspended") == ("False", "Resumed")


def test_resumed_run_is_starting_until_its_pods_are_ready_and_restarting_after_a_failure_of_its_own() -> None:
    run = running()
    run.cluster.edit(suspend=True)
    run.settle()
    run.cluster.edit(suspend=False)
    run.until(lambda: run.alive(T) == ["job-trainer-2-0", "job-trainer-2-1"])
    for name in run.alive(T):
        run.cluster.pods[name] = dataclasses.replace(run.cluster.pods[name], ready=False)
    run.settle()
    assert (run.summary, condition(run, "TrainerReady")) == ("Starting", ("False", "Starting"))
    assert condition(run, "Running") == ("False", "Starting")
    for name in run.alive(T):
        run.cluster.pods[name] = dataclasses.replace(run.cluster.pods[name], ready=True)
    run.cluster.pods["job-verifier-0"] = dataclasses.replace(run.cluster.pods["job-verifier-0"], ready=False)
    run.settle()
    assert run.summary == "Starting", "its verifier still comes up"
    run.cluster.end_trainer(75)
    run.until(lambda: run.cluster.jobs_made[-1] == "job-trainer-3")
    assert condition(run, "TrainerReady")[0] == "True"
    for name in run.alive(T):
        run.cluster.pods[name] = dataclasses.replace(run.cluster.pods[name], ready=False)
    run.settle()
    assert (run.summary, condition(run, "TrainerReady")) == ("Restarting", ("False", "Restarting"))


def test_stop_that_began_is_completed_before_the_run_goes_on() -> None:
    run = running()
    run.cluster.edit(suspend=True)
    run.reconcile()
    run.cluster.edit(suspend=False)
    run.settle()
    assert "scale job-coordinator 0" in run.cluster.calls
    assert run.alive(T) == ["job-trainer-2-0", "job-trainer-2-1"]


def test_run_without_a_step_fails_at_the_startup_deadline_and_a_resumed_one_starts_up_anew() -> None:
    run = Run(operator_job({"startupDeadlineSeconds": 100}))
    run.settle()
    run.clock.tick(101)
    run.cluster.says(enums.Phase.STARTING, step=0)
    run.settle()
    assert condition(run, "Failed") == ("True", "StartupDeadlineExceeded")
    resumed = running({"startupDeadlineSeconds": 100})
    resumed.cluster.edit(suspend=True)
    resumed.settle()
    resumed.wait(1000)
    resumed.cluster.edit(suspend=False)
    resumed.settle()
    resumed.cluster.says(enums.Phase.RUNNING, step=4)
    resumed.wait(101)
    resumed.cluster.answers()
    resumed.settle()
    assert condition(resumed, "Failed") == ("False", "NotFailed")


def test_job_is_deleted_when_its_time_is_over_and_not_before() -> None:
    run = running({"ttlSecondsAfterFinished": 50})
    run.cluster.end_trainer(0)
    run.cluster.says(enums.Phase.FINISHED, step=10)
    run.settle()
    run.wait(40)
    assert run.cluster.job is not None
    run.clock.tick(-1000)
    run.settle()
    assert run.cluster.job is not None
    run.wait(1060)
    assert run.cluster.job is None


def test_another_controllers_job_is_left_alone() -> None:
    run = Run(operator_job({"managedBy": "kueue.x-k8s.io/multikueue"}))
    run.settle()
    assert run.cluster.calls == []


@pytest.mark.parametrize("kind", ["NetworkPolicy", "PodMonitor", "PodDisruptionBudget", "ScaledObject"])
def test_object_that_the_job_does_not_ask_for_any_more_is_deleted_and_nothing_else_is(kind: str) -> None:
    run = running()
    kept = set(run.cluster.children)
    ref = Ref(kind, "job-trainer")
    run.cluster.children[ref] = Child(ref=ref, uid="left", manifest={"kind": kind})
    run.settle()
    assert set(run.cluster.children) == kept
