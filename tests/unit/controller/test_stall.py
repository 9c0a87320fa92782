import pytest

from rljob_operator.policies import stall


def _state(*, age_s: float, readable: bool = True, active: bool = True, past_startup: bool = True) -> stall.StallState:
    return stall.stall_state(
        counter_readable=readable,
        active=active,
        past_startup=past_startup,
        last_progress_at=1000,
        timeout_s=600,
        now=1000 + age_s,
    )


@pytest.mark.parametrize(("age_s", "expected"), [(599, "progressing"), (600, "stalled"), (-50, "progressing")])
def test_run_is_stalled_once_the_counter_stood_still_for_the_timeout(age_s: float, expected: str) -> None:
    assert _state(age_s=age_s) == expected


def test_run_that_is_not_active_or_still_starts_is_not_stalled() -> None:
    assert _state(age_s=9999, active=False) is stall.StallState.PROGRESSING
    assert _state(age_s=9999, past_startup=False) is stall.StallState.PROGRESSING


def test_counter_that_cannot_be_read_is_no_stall_of_the_data_loop() -> None:
    assert _state(age_s=9999, readable=False) is stall.StallState.UNREADABLE
