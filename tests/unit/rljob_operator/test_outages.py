"""An operator that was away, or cut off, or is restarted: what it has not seen it does not judge
(docs/design/operator.md#s-1-12, #s-8-7, #s-8-8).

The run continues meanwhile; nothing of it is ended or disturbed, and what happened is known afterwards.
"""

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rljob_api import enums, types
from rljob_api.manifest.status import JobStatus
from rljob_operator import clock
from rljob_operator.model import Pod
from rljob_testing.operator_runs import Run, operator_job

C, R, V, T = enums.Role.COORDINATOR, enums.Role.ROLLOUT, enums.Role.VERIFIER, enums.Role.TRAINER
HOUR = 3600.0
UNPLACED = {"phase": "Pending", "ready": False, "conditions": frozenset({("PodScheduled", "False")})}


def attempt(number: int = 1, *, resume_step: int = 0, at: float = 0.0) -> types.TrainerAttempt:
    return types.TrainerAttempt(attempt=number, resume_step=resume_step, first_step_at=at)


def started(**spec: object) -> Run:
    """Return a run whose pods are there and whose coordinator was not heard of yet."""
    run = Run(operator_job(spec))
    run.settle()
    run.cluster.calls.clear()
    return run


def status(run: Run) -> JobStatus:
    assert run.cluster.job is not None
    assert run.cluster.job.status is not None
    return run.cluster.job.status


def condition(run: Run, kind: str) -> tuple[str, str, str]:
    return next((one.status, one.reason, one.message) for one in status(run).conditions if one.type == kind)


def disturbed(run: Run) -> list[str]:
    """Return what was done to the run besides reporting of it."""
    return [call for call in run.cluster.calls if call != "status"]


def become(run: Run, name: str, fields: Mapping[str, object]) -> Pod:
    pod = dataclasses.replace(run.cluster.pods[name], **fields)  # type: ignore[arg-type]  # names fit
    run.cluster.pods[name] = pod
    return pod


def test_first_step_was_done_while_the_operator_was_away_for_longer_than_the_deadline() -> None:
    run = started()
    stepped_at = run.clock.now() + 1200.0
    run.clock.tick(HOUR)
    run.settle()
    assert condition(run, "Failed")[0] == "False", "nothing was heard yet"
    run.cluster.says(enums.Phase.RUNNING, step=300, checkpoint_step=290, attempts=(attempt(at=stepped_at),))
    run.settle()
    assert run.summary == "Running"
    assert status(run).first_step_time == clock.to_timestamp(stepped_at), "when it was done, not when it was heard of"
    assert disturbed(run) == []


def test_coordinator_cannot_be_reached_for_a_day_and_is_named_while_the_run_goes_on() -> None:
    run = started()
    for _ in range(24):
        run.wait(HOUR)
    assert condition(run, "CoordinatorReady")[:2] == ("False", "Unreachable")
    assert condition(run, "Stalled")[:2] == ("True", "CoordinatorUnreachable")
    assert (run.summary, disturbed(run)) == ("Stalled", [])
    run.cluster.says(enums.Phase.RUNNING, step=900, attempts=(attempt(at=run.clock.now() - 23 * HOUR),))
    run.settle()
    assert (run.summary, disturbed(run)) == ("Running", [])


def test_step_between_the_last_report_and_the_deadline_is_not_overlooked() -> None:
    run = started(startupDeadlineSeconds=100)
    run.clock.tick(95)
    run.cluster.says(enums.Phase.RUNNING, step=0, attempts=(attempt(),))
    run.settle()
    run.clock.tick(10)
    run.settle()
    assert condition(run, "Failed")[0] == "False", "the report is older than the deadline"
    run.cluster.says(enums.Phase.RUNNING, step=1, attempts=(attempt(at=run.clock.now() - 12.0),))
    run.settle()
    assert run.summary == "Running"


def test_run_of_which_the_coordinator_says_that_it_made_no_step_ends_and_says_what_was_waited_for() -> None:
    run = started(startupDeadlineSeconds=100)
    run.clock.tick(100)
    run.cluster.says(enums.Phase.RUNNING, step=0, attempts=(attempt(),))
    run.settle()
    assert condition(run, "Failed") == (
        "True",
        "StartupDeadlineExceeded",
        "no step was finished within spec.startupDeadlineSeconds = 100; every pod was ready; the coordinator says"
        " Running",
    )


def test_rank_that_never_began_proves_that_no_step_was_finished_without_a_word_of_the_coordinator() -> None:
    run = started(startupDeadlineSeconds=100)
    lacks = {"phase": "Pending", "ready": False, "waiting_reason": "ErrImagePull", "node": "n", "message": "no tag"}
    become(run, "job-trainer-1-1", lacks)
    run.wait(101)
    assert condition(run, "Failed")[:2] == ("True", "StartupDeadlineExceeded")
    assert "ImagePullFailed: job-trainer-1-1: no tag" in condition(run, "Failed")[2]


def test_coordinator_that_never_began_proves_it_too_and_one_that_was_made_again_does_not() -> None:
    for made_at, reason in ((-50.0, "StartupDeadlineExceeded"), (5000.0, "NotFailed")):
        run = started(startupDeadlineSeconds=100)
        began = run.clock.now()
        for index in (0, 1):
            become(run, f"job-trainer-1-{index}", {"started_at": began})
        lacks = {"phase": "Pending", "ready": False, "node": "n", "created_at": began + made_at}
        run.clock.tick(6000.0)
        become(run, "job-coordinator-0", lacks)
        run.settle()
        assert condition(run, "Failed")[1] == reason


def test_rank_of_a_later_attempt_proves_nothing_of_the_ones_before() -> None:
    run = started(startupDeadlineSeconds=100)
    run.cluster.end_trainer(75)
    run.until(lambda: run.alive(T) == ["job-trainer-2-0", "job-trainer-2-1"])
    become(run, "job-trainer-2-1", {"phase": "Pending", "ready": False, "node": "n"})
    run.wait(1000)
    assert condition(run, "Failed")[0] == "False"


def test_run_that_finished_while_the_operator_was_away_past_the_end_of_the_whole_run_is_complete() -> None:
    run = started(activeDeadlineSeconds=600)
    run.cluster.end_trainer(0)
    run.cluster.settle()
    run.clock.tick(HOUR)
    run.settle()
    run.cluster.says(enums.Phase.FINISHED, step=10, attempts=(attempt(at=run.clock.now()),))
    run.settle()
    assert condition(run, "Complete")[:2] == ("True", "MaxStepsReached")


@pytest.mark.parametrize("heard", [True, False])
def test_run_that_goes_on_past_its_end_is_ended_whether_or_not_its_coordinator_answers(heard: bool) -> None:
    run = started(activeDeadlineSeconds=600)
    run.clock.tick(600)
    if heard:
        run.cluster.says(enums.Phase.RUNNING, step=7, attempts=(attempt(at=1.0),))
    run.settle()
    assert condition(run, "Failed")[:2] == ("True", "ActiveDeadlineExceeded")


def test_new_operator_asks_before_it_ends_a_run_whose_time_is_over() -> None:
    run = started(activeDeadlineSeconds=600)
    run.cluster.says(enums.Phase.RUNNING, step=7, attempts=(attempt(at=1.0),))
    run.settle()
    run.clock.tick(HOUR)
    run.cluster.report = None
    run.settle()
    assert condition(run, "Failed")[0] == "False"
    run.wait(61)
    assert condition(run, "Failed")[:2] == ("True", "ActiveDeadlineExceeded")


def test_resumed_run_steps_below_the_step_that_its_suspended_segment_had_reached() -> None:
    run = started(maxSteps=100)
    run.cluster.says(enums.Phase.RUNNING, step=49, checkpoint_step=40, attempts=(attempt(at=run.clock.now()),))
    run.settle()
    run.cluster.edit(suspend=True)
    run.until(lambda: run.summary == "Suspended")
    run.cluster.report = None
    run.cluster.edit(suspend=False)
    run.settle()
    loads = (attempt(1, at=1.0), attempt(2, resume_step=40))
    run.cluster.says(enums.Phase.RUNNING, step=40, checkpoint_step=40, attempts=loads)
    run.settle()
    assert status(run).first_step_time is None
    for step in range(41, 50):
        run.clock.tick(300)
        steps = (attempt(1, at=1.0), attempt(2, resume_step=40, at=run.clock.now() - 300 * (step - 41)))
        run.cluster.says(enums.Phase.RUNNING, step=step, checkpoint_step=40, attempts=steps)
        run.settle()
        assert run.summary == "Running"
        assert status(run).first_step_time is not None


def test_pods_wait_for_accelerators_for_a_day_and_the_start_counts_from_when_the_last_one_has_a_node() -> None:
    run = started()
    for index in (0, 1):
        become(run, f"job-trainer-1-{index}", UNPLACED)
    for _ in range(24):
        run.wait(HOUR)
    assert condition(run, "PodsScheduled")[:2] == ("False", "Unschedulable")
    assert (condition(run, "Failed")[0], status(run).scheduled_time) == ("False", None)
    placed_at = run.clock.now()
    for index in (0, 1):
        became = {"phase": "Running", "ready": True, "conditions": frozenset(), "scheduled_at": placed_at}
        become(run, f"job-trainer-1-{index}", became)
    run.settle()
    assert condition(run, "PodsScheduled")[:2] == ("True", "Scheduled")
    run.clock.tick(1700)
    run.cluster.says(enums.Phase.STARTING, step=0, attempts=(attempt(),))
    run.settle()
    assert condition(run, "Failed")[0] == "False"
    run.clock.tick(200)
    run.cluster.says(enums.Phase.STARTING, step=0, attempts=(attempt(),))
    run.settle()
    assert condition(run, "Failed")[1] == "StartupDeadlineExceeded"


def test_attempt_that_is_preempted_while_it_loads_has_its_time_from_its_next_node_on() -> None:
    run = started()
    run.clock.tick(1500)
    run.cluster.end_trainer(75)
    run.until(lambda: run.alive(T) == ["job-trainer-2-0", "job-trainer-2-1"])
    become(run, "job-trainer-2-0", UNPLACED)
    run.clock.tick(31 * 60)
    run.cluster.says(enums.Phase.STARTING, step=0, attempts=(attempt(1),))
    run.settle()
    assert condition(run, "Failed")[0] == "False"


def test_limit_of_waiting_for_nodes_ends_a_run_where_one_is_asked_for_and_may_be_raised_while_it_waits() -> None:
    run = started(schedulingDeadlineSeconds=600)
    become(run, "job-trainer-1-0", {**UNPLACED, "message": "0/3 nodes: insufficient nvidia.com/gpu"})
    run.wait(500)
    run.cluster.edit(scheduling_deadline_seconds=1200)
    run.wait(500)
    assert condition(run, "Failed")[0] == "False"
    run.wait(300)
    assert condition(run, "Failed") == (
        "True",
        "SchedulingDeadlineExceeded",
        "pods had no node after spec.schedulingDeadlineSeconds = 1200; Unschedulable: job-trainer-1-0: 0/3 nodes:"
        " insufficient nvidia.com/gpu",
    )


@pytest.mark.parametrize("role", list(enums.STANDARD_ROLES))
def test_pod_that_had_its_node_and_ends_or_goes_after_the_limit_of_waiting_for_nodes_waited_for_none(
    role: enums.Role,
) -> None:
    run = started(schedulingDeadlineSeconds=600)
    run.clock.tick(700)
    run.cluster.says(enums.Phase.STARTING, step=0, attempts=(attempt(),))
    run.settle()
    if role is T:
        run.cluster.end_trainer(1)
    else:
        name = run.alive(role)[0]
        become(run, name, {"deleting": True, "ready": False, "deleted_at": run.clock.now() + 30.0})
    for _ in range(20):
        run.reconcile()
        run.clock.tick(1)
    assert condition(run, "Failed")[0] == "False"
    assert condition(run, "PodsScheduled")[:2] == ("True", "Scheduled")


def test_pod_that_is_denied_after_all_had_a_node_has_the_whole_limit_from_then_on() -> None:
    run = started(schedulingDeadlineSeconds=600)
    run.clock.tick(700)
    run.cluster.denied = {C: "exceeded quota: team"}
    del run.cluster.pods["job-coordinator-0"]
    denied_at = run.clock.now()
    while condition(run, "Failed")[0] == "False" and run.clock.now() < denied_at + HOUR:
        run.cluster.says(enums.Phase.STARTING, step=0, attempts=(attempt(),))
        run.settle()
        run.clock.tick(10)
    assert condition(run, "Failed")[:2] == ("True", "SchedulingDeadlineExceeded")
    assert 600.0 <= run.clock.now() - denied_at < 700.0, "from when its lack was told"


def test_rollout_that_waits_for_a_node_ends_no_run_of_which_nothing_is_heard() -> None:
    run = started(schedulingDeadlineSeconds=600)
    become(run, "job-rollout-1", UNPLACED)
    run.wait(6000)
    assert (condition(run, "Failed")[0], disturbed(run)) == ("False", [])


def test_start_is_given_more_time_while_it_starts_and_no_pod_is_touched() -> None:
    run = started(startupDeadlineSeconds=100)
    run.clock.tick(90)
    run.cluster.edit(startup_deadline_seconds=7200)
    run.settle()
    run.clock.tick(HOUR)
    run.cluster.says(enums.Phase.STARTING, step=0, attempts=(attempt(),))
    run.settle()
    assert (condition(run, "Failed")[0], disturbed(run)) == ("False", [])


def test_failures_of_a_run_that_is_not_heard_of_are_not_taken_for_a_lack_of_steps() -> None:
    run = started(failurePolicy={"maxTrainerRestarts": 0})
    run.cluster.silent_since = run.clock.now()
    for number in range(2, 8):
        run.cluster.end_trainer(75)
        run.until(lambda number=number: run.alive(T) == [f"job-trainer-{number}-0", f"job-trainer-{number}-1"])  # type: ignore[misc]
    assert condition(run, "Failed")[0] == "False"


EVENTS = ("away", "pass", "silent", "heard", "step", "new operator", "longer", "edit")


@settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(st.sampled_from(EVENTS), max_size=30))
def test_healthy_run_is_neither_ended_nor_disturbed_whatever_the_operator_misses(events: list[str]) -> None:
    run = started(failurePolicy={"stall": {"action": "Fail"}}, activeDeadlineSeconds=10**7)
    stepped_at, step, heard = 0.0, 0, False
    for event in events:
        # The run makes a step at least every five minutes, from its first minutes on.
        match event:
            case "away":
                run.clock.tick(5 * HOUR)
            case "silent" | "new operator":
                heard, run.cluster.silent_since = False, run.clock.now() if event == "silent" else None
                run.cluster.report = None if event == "new operator" else run.cluster.report
            case "heard":
                heard, run.cluster.silent_since = True, None
            case "edit":
                run.cluster.edit(startup_deadline_seconds=60)
            case "longer":
                run.clock.tick(700.0)
            case _:
                run.clock.tick(1.0)
        step, stepped_at = step + 1, stepped_at or run.clock.now()
        if heard:
            run.cluster.says(enums.Phase.RUNNING, step=step, attempts=(attempt(at=stepped_at),))
        run.reconcile()
        run.cluster.settle()
        assert condition(run, "Failed")[0] == "False", events
        assert disturbed(run) == [], events
    run.cluster.says(enums.Phase.RUNNING, step=step + 1, attempts=(attempt(at=stepped_at or run.clock.now()),))
    run.settle()
    assert run.summary == "Running"
