import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import enums
from rljob_api.manifest.status import (
    AttemptStatus,
    Condition,
    JobStatus,
    RoleStatus,
    RolloutStatus,
    TrainerStatus,
    TrajectoriesStatus,
)
from rljob_operator.reconcile import status
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_testing.fake_cluster import wanted
from rljob_testing.operator_runs import KEY, Run, finish

READY = Condition(type="CoordinatorReady", status="False", reason="Starting", lastTransitionTime="2026-01-01T00:00:00Z")
BEFORE = JobStatus(conditions=(READY,), summary="Starting", trainer=TrainerStatus(attempts=(AttemptStatus(number=1),)))
COUNTS = {
    "roles": (RoleStatus(name="rollout", desired=2, ready=1),),
    "rollout": RolloutStatus(replicas=2, ready="1/2"),
    "trajectories": TrajectoriesStatus(accepted=3),
    "reason": "PodsStarting",
    "conditions": (READY.model_copy(update={"message": "1 of 2"}),),
    "start_time": "2026-01-01T00:00:01Z",
    "scheduled_time": "2026-01-01T00:00:02Z",
    "trainer": TrainerStatus(attempts=(AttemptStatus(number=1, uid="uid-of-its-job"),)),
}
DECISIONS = {
    "conditions": (READY.model_copy(update={"status": "True"}),),
    "summary": "Running",
    "observed_generation": 2,
    "attempt": 1,
    "first_step_time": "2026-01-01T00:00:09Z",
    "completion_time": "2026-01-01T00:00:09Z",
    "trainer": TrainerStatus(attempts=(AttemptStatus(number=1, outcome="failed"),)),
}


def wait_s(change: dict[str, object], *, written_at: float | None = 10.0, now: float = 10.5) -> float:
    return status.write_wait_s(BEFORE, BEFORE.model_copy(update=change), written_at=written_at, now=now)


@pytest.mark.parametrize("field", COUNTS)
def test_count_waits_until_two_seconds_after_the_last_write(field: str) -> None:
    assert wait_s({field: COUNTS[field]}) == 1.5
    assert wait_s({field: COUNTS[field]}, now=12.0) == 0


@pytest.mark.parametrize("field", DECISIONS)
def test_decision_is_written_at_once_and_takes_the_counts_along(field: str) -> None:
    assert wait_s({**COUNTS, field: DECISIONS[field]}) == 0


def test_first_write_that_an_operator_knows_of_is_due_at_once() -> None:
    assert wait_s(COUNTS, written_at=None) == 0


@given(now=st.floats(-1e9, 1e9))
def test_no_clock_makes_a_write_wait_for_longer_than_two_seconds(now: float) -> None:
    assert 0 <= wait_s(COUNTS, now=now) <= status.BETWEEN_COUNTS_S


def test_status_that_waits_is_written_by_a_later_pass_with_what_came_meanwhile() -> None:
    run = Run()
    run.settle()
    operator = Reconciler(run.cluster, desired=wanted, clock=run.clock)
    run.cluster.says(enums.Phase.RUNNING, step=1)
    finish(operator.reconcile(KEY))
    written = len(run.cluster.statuses)
    for step in (2, 3):
        run.clock.tick(0.5)
        run.cluster.says(enums.Phase.RUNNING, step=step)
        assert finish(operator.reconcile(KEY)) == pytest.approx(2.5 - step / 2)
    assert len(run.cluster.statuses) == written
    run.clock.tick(1.0)
    finish(operator.reconcile(KEY))
    assert [status.step for status in run.cluster.statuses[written:]] == [3]


def test_job_that_is_gone_leaves_no_time_of_a_write() -> None:
    run = Run()
    run.settle()
    operator = Reconciler(run.cluster, desired=wanted, clock=run.clock)
    run.cluster.says(enums.Phase.RUNNING, step=1)
    finish(operator.reconcile(KEY))
    operator.forget("job-uid")
    run.cluster.says(enums.Phase.RUNNING, step=2)
    finish(operator.reconcile(KEY))
    assert run.cluster.statuses[-1].step == 2
