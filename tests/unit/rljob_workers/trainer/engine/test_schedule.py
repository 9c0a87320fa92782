import pytest

from rljob_api.manifest.trainer import OptimizerSpec
from rljob_testing.sections import section
from rljob_workers.trainer.engine import schedule


def rate(
    update: int,
    *,
    kind: str = "Constant",
    warmup: int = 0,
    per_step: int = 1,
    steps: int = 10,
    decay: int | None = None,
) -> float:
    config = section(OptimizerSpec, learning_rate=1.0, warmup_steps=warmup, schedule=kind, decay_steps=decay)
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


def test_a_decay_of_the_last_steps_leaves_the_rate_at_its_peak_until_then() -> None:
    assert [rate(update, kind="Linear", decay=4) for update in (0, 5, 6, 7, 8, 10)] == [1.0, 1.0, 1.0, 0.75, 0.5, 0.0]
    assert [rate(update, kind="Cosine", decay=4) for update in (5, 6, 8, 10)] == pytest.approx([1.0, 1.0, 0.5, 0.0])


def test_a_decay_counts_steps_and_falls_with_each_update() -> None:
    falls = [rate(update, kind="Linear", decay=2, steps=4, per_step=2) for update in range(3, 9)]
    assert falls == [1.0, 1.0, 0.75, 0.5, 0.25, 0.0]


def test_a_decay_of_more_steps_than_there_are_begins_after_the_warmup() -> None:
    updates = range(12)
    assert [rate(update, kind="Linear", warmup=2, decay=10) for update in updates] == [
        rate(update, kind="Linear", warmup=2) for update in updates
    ]


def test_the_last_steps_are_averaged_and_no_others() -> None:
    config = section(OptimizerSpec, average_steps=3)
    places = [schedule.place_in_average(step, config=config, max_steps=5) for step in range(1, 7)]
    assert places == [
        None,
        None,
        schedule.PlaceInAverage(is_first=True, is_last=False),
        schedule.PlaceInAverage(is_first=False, is_last=False),
        schedule.PlaceInAverage(is_first=False, is_last=True),
        None,
    ]
    assert schedule.place_in_average(5, config=section(OptimizerSpec), max_steps=5) is None


def test_an_average_of_more_steps_than_there_are_begins_with_the_first() -> None:
    config = section(OptimizerSpec, average_steps=9)
    places = [schedule.place_in_average(step, config=config, max_steps=2) for step in (1, 2)]
    assert [(place.is_first, place.is_last) for place in places if place] == [(True, False), (False, True)]


def test_a_run_that_was_extended_stays_at_the_end_of_its_schedule() -> None:
    assert rate(25, kind="Linear") == 0.0
