"""A benchmark of two sides that learn: what is read off their steps."""

import math

import pytest

from bench import comparison
from bench.rows import c14_addition


def steps(*rewards: float, wall_s: float = 30.0) -> list[dict[str, float]]:
    return [{"wall_s": wall_s, "reward": reward} for reward in rewards]


def test_the_time_to_the_reward_is_that_of_the_step_that_completes_the_mean() -> None:
    assert c14_addition.time_to(steps(0.9, 0.0, 0.5, 0.6, 0.4, 0.9)) == 5 * 30.0
    assert c14_addition.time_to(steps(0.9, 0.9)) == math.inf, "a mean of three steps needs three"
    assert c14_addition.time_to(steps(0.4, 0.5, 0.5)) == math.inf


def test_the_first_step_is_left_out_of_the_wall_of_a_step() -> None:
    assert c14_addition.per_step([{"wall_s": 900.0, "reward": 0.0}, *steps(0.1, 0.2)]) == 30.0


def test_a_curve_has_a_point_for_each_step_in_minutes() -> None:
    assert comparison.points(steps(0.0, 0.5, 1.0), window=2) == ([0.5, 1.0, 1.5], [0.0, 0.25, 0.75])
    with pytest.raises(ValueError, match="window=0"):
        comparison.points(steps(0.0), window=0)


def test_the_picture_has_a_panel_for_each_seed() -> None:
    curves = {seed: {"ours": steps(0.1, 0.6), "peer": steps(0.1, 0.5, wall_s=600.0)} for seed in (0, 7)}
    drawn = comparison.svg(curves, window=3, target=0.5)
    assert drawn.startswith("<?xml")
    assert drawn.count('id="axes_') == 2
    assert drawn == comparison.svg(curves, window=3, target=0.5), "the same curves are the same file"
