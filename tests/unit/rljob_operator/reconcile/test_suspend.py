import pytest

from rljob_operator.reconcile.suspend import PodsLeft, SuspendStage, is_overdue, keeps_stopping, stage


@pytest.mark.parametrize(
    ("trainer", "rollout", "verifier", "coordinator", "expected"),
    [
        (1, 2, 1, 1, "trainer_and_rollouts"),
        (1, 0, 1, 1, "trainer_and_rollouts"),
        (0, 1, 1, 1, "trainer_and_rollouts"),
        (0, 0, 1, 1, "verifiers"),
        (0, 0, 0, 1, "coordinator"),
        (0, 0, 0, 0, "suspended"),
    ],
)
def test_ledger_outlives_everything_that_writes_to_it(
    trainer: int, rollout: int, verifier: int, coordinator: int, expected: str
) -> None:
    left = PodsLeft(trainer=trainer, rollout=rollout, verifier=verifier, coordinator=coordinator)
    assert stage(left) == expected


def test_stop_is_bounded_by_drain_and_two_minutes() -> None:
    assert [is_overdue(asked_at=1000, drain_s=60, now=now) for now in (1179, 1180)] == [False, True]


def test_stop_that_began_is_completed_before_resuming() -> None:
    halfway, end = SuspendStage.VERIFIERS, SuspendStage.SUSPENDED
    assert keeps_stopping(suspend=False, was_suspending=True, current=halfway)
    assert not keeps_stopping(suspend=False, was_suspending=True, current=end)
    assert not keeps_stopping(suspend=False, was_suspending=False, current=halfway)
