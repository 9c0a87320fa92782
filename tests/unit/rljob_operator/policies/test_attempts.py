import pytest

from rljob_api import enums
from rljob_api.manifest.lifecycle import FailurePolicySpec
from rljob_api.manifest.status import AttemptStatus, CheckpointStatus, JobStatus, TrainerStatus
from rljob_operator import clock
from rljob_operator.model import Pod
from rljob_operator.policies import attempts


def ended(*steps: int, outcome: str = "failed", checkpoint_at: float | None = None) -> JobStatus:
    """Attempts 1, 2, .. that end at 100, 200, .. seconds after these finished steps."""
    rows = tuple(
        AttemptStatus(number=number, outcome=outcome, end=clock.to_timestamp(100.0 * number), step=step)
        for number, step in enumerate(steps, start=1)
    )
    checkpoint = None if checkpoint_at is None else CheckpointStatus(step=1, time=clock.to_timestamp(checkpoint_at))
    status = JobStatus(attempt=len(rows), trainer=TrainerStatus(attempts=rows))
    return status.model_copy(update={"last_checkpoint": checkpoint})


@pytest.mark.parametrize(
    ("before", "now", "count"),
    [((), 0, 1), ((), 5, 0), ((0, 0), 0, 3), ((5,), 5, 1), ((5, 5), 5, 2), ((5, 5), 6, 0), ((0, 4, 4), 4, 2)],
)
def test_attempts_that_get_no_further_are_counted_in_a_row(before: tuple[int, ...], now: int, count: int) -> None:
    assert attempts.num_fruitless(ended(*before), step=now) == count


def test_wait_doubles_with_each_failure_and_begins_anew_after_a_checkpoint() -> None:
    assert attempts.next_start(ended(0)) == 100 + 10
    assert attempts.next_start(ended(0, 0, 0)) == 300 + 40
    assert attempts.next_start(ended(0, 0, 0, checkpoint_at=250)) == 300 + 10


def test_last_ten_attempts_are_kept_in_order() -> None:
    status = JobStatus()
    for number in range(1, 13):
        status = attempts.with_record(status, attempts.started(number, now=0.0))
    assert status.trainer is not None
    assert [one.number for one in status.trainer.attempts] == list(range(3, 13))
    assert status.attempt == 12


@pytest.mark.parametrize(
    ("code", "outcome", "reason"),
    [(enums.ExitCode.STOPPED_ON_REQUEST, "requested", "StoppedOnRequest"), (1, "failed", "Error")],
)
def test_an_evicted_rank_that_stopped_in_order_is_not_called_an_error(code: int, outcome: str, reason: str) -> None:
    # What a kubelet and the eviction leave in the pod's status, whatever the code.
    evicted = frozenset({("DisruptionTarget", "True"), ("Ready", "False")})
    pod = Pod(
        name="rank-0",
        uid="uid",
        role=enums.Role.TRAINER,
        phase="Failed",
        exit_code=int(code),
        container_reason="Error",
        conditions=evicted,
        disruption="EvictionByEvictionAPI",
        deleting=True,
    )
    ending = attempts.ending_of([pod], policy=FailurePolicySpec(), fruitless=0)
    assert (ending.outcome, ending.reason) == (outcome, reason)
