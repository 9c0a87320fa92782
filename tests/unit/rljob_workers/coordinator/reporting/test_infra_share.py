"""The share of recent answers that the infrastructure lost."""

import pytest

from rljob_workers.coordinator.reporting import infra_share
from rljob_workers.coordinator.reporting.infra_share import MIN_ANSWERS, WINDOW_S, InfraShare, failing_role


def counters(*, lost: int, accepted: int) -> dict[str, int]:
    return {"trajectories:infra_failure": lost, "trajectories:accepted": accepted, "trajectories:stale": 1000}


def test_nothing_is_lost_before_anything_happens() -> None:
    assert InfraShare().look({}, now=0.0) == 0.0


def test_the_share_is_that_of_what_came_since_the_first_look() -> None:
    share = InfraShare()
    share.look(counters(lost=500, accepted=500), now=0.0)
    assert share.look(counters(lost=510, accepted=530), now=60.0) == pytest.approx(0.25)


def test_a_few_answers_say_nothing() -> None:
    share = InfraShare()
    share.look({}, now=0.0)
    assert share.look(counters(lost=MIN_ANSWERS - 1, accepted=0), now=1.0) == 0.0
    assert share.look(counters(lost=MIN_ANSWERS, accepted=0), now=2.0) == 1.0


def test_the_role_that_loses_most_is_named_by_what_it_lost_since() -> None:
    before = {"failures:infra:rollout:engine": 90, "failures:infra:verifier:timeout": 1, "trajectories:accepted": 5}
    lost = {"failures:infra:verifier:timeout": 3, "failures:infra:verifier:transport": 2}
    assert failing_role(before, {**before, **lost, "failures:infra:rollout:engine": 93}) == "verifier", "4 of 7"


def test_nobody_fails_who_lost_nothing_since() -> None:
    before = {"failures:infra:verifier:timeout": 9}
    assert failing_role(before, before) == ""
    assert failing_role({}, {"failures:data:rollout:too_long": 4}) == ""


def test_what_was_lost_before_the_window_is_forgotten() -> None:
    share = InfraShare()
    share.look({}, now=0.0)
    assert share.look(counters(lost=40, accepted=0), now=60.0) == 1.0
    for minute in range(2, 20):
        last = share.look(counters(lost=40, accepted=40 * minute), now=60.0 * minute)
    assert last == 0.0


def test_a_run_of_days_remembers_a_windows_looks_alone() -> None:
    share = InfraShare()
    for second in range(0, 100_000, 5):
        share.look(counters(lost=second, accepted=second), now=float(second))
    assert len(share._looks) <= WINDOW_S / infra_share._EVERY_S + 2
