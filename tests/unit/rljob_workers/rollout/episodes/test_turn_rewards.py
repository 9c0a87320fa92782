import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import enums
from rljob_workers.rollout.episodes import turns

FINITE = st.floats(min_value=-100, max_value=100)


@pytest.mark.covers("algorithms 3", "workflows 5.2", "workflows 5.5")
@pytest.mark.parametrize(
    ("rewards", "discount", "expected"),
    [
        pytest.param([-1, -1, 1], 1.0, [-1, 0, 1], id="wrong, wrong, right"),
        pytest.param([1, 1, 1], 1.0, [3, 2, 1], id="no early stop in legacy"),
        pytest.param([1, 2, 3], 0.5, [2.75, 3.5, 3], id="half counts"),
        pytest.param([0, 0, 10], 0.9, [8.1, 9, 10], id="unset rewards count 0"),
    ],
)
def test_rewards_run_back_from_the_last_turn(rewards: list[float], discount: float, expected: list[float]) -> None:
    assert turns.back_propagated(rewards, discount=discount) == pytest.approx(expected)


@pytest.mark.covers("algorithms 3", "workflows 5.2")
@given(st.lists(FINITE, min_size=1, max_size=8), st.floats(min_value=-2, max_value=2))
def test_each_turn_is_its_own_reward_and_the_discounted_rest(rewards: list[float], discount: float) -> None:
    found = turns.back_propagated(rewards, discount=discount)
    direct = [sum(r * discount**j for j, r in enumerate(rewards[i:])) for i in range(len(rewards))]
    assert found == pytest.approx(direct, rel=1e-6, abs=1e-6)


def test_an_infinite_discount_is_refused() -> None:
    with pytest.raises(ValueError, match="turnDiscount is inf"):
        turns.back_propagated([1.0], discount=float("inf"))


@pytest.mark.covers("workflows 4", "workflows 5.5")
def test_signed_shaping_subtracts_the_bias_and_takes_fractions() -> None:
    found = [turns.signed(success, bias=0.1, scale=2.0) for success in (0.5, 0.7)]
    assert found == pytest.approx([-0.2, 0.6])


@pytest.mark.covers("workflows 5.2")
@pytest.mark.parametrize(("success", "expected"), [(1.0, 5.0), (0.0, -5.0)])
def test_scale_5_without_bias_gives_plus_and_minus_5(success: float, expected: float) -> None:
    assert turns.signed(success, scale=5.0) == expected


@pytest.mark.covers("workflows 5.5")
@pytest.mark.parametrize(
    ("successes", "lower", "upper", "expected"),
    [
        pytest.param([0.5, 0.7], 0.1, 1.0, None, id="mean 0.6 is inside"),
        pytest.param([0.5, 0.7], 0.0, 0.0, enums.DropReason.TOO_HIGH, id="upper bound 0"),
        pytest.param([0.0, 0.0], 0.1, 1.0, enums.DropReason.TOO_LOW, id="below the lower bound"),
        pytest.param([1.0, 0.0], 0.5, 0.5, None, id="bounds are inclusive"),
    ],
)
def test_a_group_is_judged_by_its_mean_success(
    successes: list[float], lower: float, upper: float, expected: enums.DropReason | None
) -> None:
    assert turns.rejection(successes, lower=lower, upper=upper) is expected


@pytest.mark.covers("workflows 5.1")
@pytest.mark.parametrize(
    ("raw", "expected"), [([1.0], 1.0), ([0.0] * 4, 0.0), ([0.0, 0.0, 1.0], 0.81), ([0.0, 1.0, 1.0], 0.9)]
)
def test_failed_turns_before_the_first_success_discount_it(raw: list[float], expected: float) -> None:
    assert turns.final_reward(raw, discount=0.9) == pytest.approx(expected)
