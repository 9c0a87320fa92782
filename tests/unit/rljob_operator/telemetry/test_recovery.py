from rljob_api import enums
from rljob_operator.telemetry.durations import Recoveries

ROLLOUT, TRAINER = enums.Role.ROLLOUT, enums.Role.TRAINER
WHOLE = {ROLLOUT: True, TRAINER: True}


def test_a_role_has_recovered_when_it_is_whole_and_a_further_step_is_finished() -> None:
    kept = Recoveries()
    assert kept.observe(lost=[ROLLOUT], whole={ROLLOUT: False}, step=4, now=100.0) == []
    assert kept.observe(lost=[], whole={ROLLOUT: False}, step=5, now=110.0) == [], "the others went on, it is missing"
    assert kept.observe(lost=[], whole=WHOLE, step=5, now=130.0) == [(ROLLOUT, 30.0)]
    assert kept.observe(lost=[], whole=WHOLE, step=6, now=140.0) == [], "told once"


def test_a_role_that_is_whole_again_has_not_recovered_before_a_step_is_finished() -> None:
    kept = Recoveries()
    kept.observe(lost=[ROLLOUT], whole={}, step=4, now=100.0)
    assert kept.observe(lost=[], whole=WHOLE, step=4, now=110.0) == []
    assert kept.observe(lost=[], whole=WHOLE, step=5, now=115.0) == [(ROLLOUT, 15.0)]


def test_steps_that_the_trainer_makes_again_count_as_progress() -> None:
    """It was at step 12 and continues from the checkpoint of step 10."""
    kept = Recoveries()
    kept.observe(lost=[TRAINER], whole={}, step=12, now=0.0)
    assert kept.observe(lost=[], whole=WHOLE, step=10, now=20.0) == []
    assert kept.observe(lost=[], whole=WHOLE, step=11, now=40.0) == [(TRAINER, 40.0)]


def test_a_second_loss_before_recovery_does_not_start_the_clock_anew() -> None:
    kept = Recoveries()
    kept.observe(lost=[ROLLOUT], whole={}, step=1, now=0.0)
    kept.observe(lost=[ROLLOUT], whole={}, step=1, now=50.0)
    assert kept.observe(lost=[], whole=WHOLE, step=2, now=60.0) == [(ROLLOUT, 60.0)]


def test_what_was_open_is_forgotten_when_the_run_is_not_meant_to_go_on() -> None:
    kept = Recoveries()
    kept.observe(lost=[ROLLOUT], whole={}, step=1, now=0.0)
    kept.clear()
    assert kept.observe(lost=[], whole=WHOLE, step=2, now=9.0) == []
