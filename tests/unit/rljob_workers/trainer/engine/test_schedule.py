import pytest

from rljob_api.manifest.trainer import OptimizerSpec
from rljob_testing.sections import section
from rljob_workers.trainer.engine import schedule


def rate(update: int, *, kind: str = "Constant", warmup: int = 0, per_step: int = 1, steps: int = 10) -> float:
    config = section(OptimizerSpec, learning_rate=1.0, warmup_steps=warmup, schedule=kind)
    return schedule.learning_rate(update, config=config, updates_per_step=per_step, max_steps=steps)


@pytest.mark.covers("algorithms 8")
def test_warmup_counts_steps_and_rises_with_each_update() -> None:
    # lr_u = lr * min(1, (u + 1) / (w * updates per step)), w = 2, 4 updates a step.
    assert [rate(update, warmup=2, per_step=4) for update in (0, 3, 7, 8)] == [0.125, 0.5, 1.0, 1.0]


def test_without_warmup_the_first_update_has_the_full_rate() -> None:
    assert rate(0) == 1.0


def test_linear_falls_to_zero_after_the_last_update() -> None:
    assert [rate(update, kind="Linear") for update in (0, 5, 10)] == pytest.approx([1.0, 0.5, 0.0])


def test_cosine_is_half_way_down_in_the_middle() -> None:
    assert [rate(update, kind="Cosine") for update in (0, 5, 10)] == pytest.approx([1.0, 0.5, 0.0])


def test_decay_starts_after_the_warmup() -> None:
    assert rate(2, kind="Linear", warmup=2, steps=4) == 1.0
    assert rate(3, kind="Linear", warmup=2, steps=4) == 0.5


def test_a_run_that_was_extended_stays_at_the_end_of_its_schedule() -> None:
    assert rate(25, kind="Linear") == 0.0
