import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import types
from rljob_operator.policies import stall


def _wait(role: str, on: str, since: float = 0.0, pod: str = "") -> types.Waiting:
    return types.Waiting(role=role, pod=pod or f"{role}-0", what=f"what {on} does", on_role=on, since=since)


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


def test_chain_ends_at_the_role_that_waits_for_nobody() -> None:
    found = stall.chain([_wait("rollout", "verifier", 20), _wait("trainer", "rollout", 10)])
    assert ([link.role for link in found.links], found.culprit, found.is_cycle) == (
        ["trainer", "rollout"],
        "verifier",
        False,
    )
    assert found.message(110) == (
        "trainer-0 waits for what rollout does for 100 s; rollout-0 waits for what verifier does for 90 s"
    )


def test_longest_waiter_speaks_for_its_role() -> None:
    found = stall.chain(
        [_wait("trainer", "rollout"), _wait("rollout", "trainer", 50, "b"), _wait("rollout", "verifier", 40, "a")]
    )
    assert found.culprit == "verifier"


def test_roles_that_wait_for_each_other_are_a_cycle() -> None:
    found = stall.chain([_wait("trainer", "rollout"), _wait("rollout", "trainer")])
    assert (found.is_cycle, len(found.links)) == (True, 2)


def test_nobody_waiting_leaves_the_trainer_itself() -> None:
    assert stall.chain([]) == stall.Chain(links=(), culprit="trainer", is_cycle=False)


ROLES = st.sampled_from(["trainer", "rollout", "verifier", "coordinator", ""])


@given(st.lists(st.builds(_wait, ROLES, ROLES, st.floats(0, 1e6)), max_size=12))
def test_any_reports_give_a_chain_that_names_each_role_once(waiting: list[types.Waiting]) -> None:
    found = stall.chain(waiting)
    named = [link.role for link in found.links]
    assert len(named) == len(set(named))
    assert found.is_cycle == (found.culprit in named)
