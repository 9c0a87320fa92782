"""Differences of pairs and their standard errors."""

import math

import pytest

from bench import paired


def test_difference_has_the_standard_error_of_its_mean() -> None:
    """Differences 0.1 and 0.3: mean 0.2, standard deviation sqrt(0.02), over the root of two."""
    found = paired.difference([0.1, 0.3])
    assert (found.mean, found.num_pairs) == (pytest.approx(0.2), 2)
    assert found.error == pytest.approx(math.sqrt(0.02) / math.sqrt(2))


def test_a_single_pair_has_no_error_and_none_is_refused() -> None:
    assert paired.difference([0.1]) == paired.Difference(0.1, None, 1)
    with pytest.raises(ValueError, match="no pair"):
        paired.difference([])


def test_pooled_parts_count_alike_and_their_errors_are_independent() -> None:
    """Means 0.1 and 0.3; errors 0.03 and 0.04 add to 0.05, over two parts."""
    whole = paired.pooled([paired.Difference(0.1, 0.03, 2), paired.Difference(0.3, 0.04, 8)])
    assert (whole.mean, whole.error, whole.num_pairs) == (pytest.approx(0.2), pytest.approx(0.025), 10)


def test_pooled_without_an_error_of_each_part_has_none() -> None:
    assert paired.pooled([paired.Difference(0.1, None, 1), paired.Difference(0.3, 0.04, 2)]).error is None
    with pytest.raises(ValueError, match="nothing to pool"):
        paired.pooled([])


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (0.2, 0.05, "+0.200 ± 0.050"),
        (-0.02, 0.05, "(-0.020 ± 0.050)"),
        (0.0, 0.0, "(+0.000 ± 0.000)"),
        (0.1, None, "(+0.100)"),
    ],
)
def test_difference_within_two_errors_is_in_brackets(mean: float, error: float | None, text: str) -> None:
    assert str(paired.Difference(mean, error, 2)) == text


@pytest.mark.parametrize(
    ("mean", "error", "words"),
    [
        (-0.075, 0.02, "costs 0.07"),
        (0.026, 0.009, "gains 0.03"),
        (-0.01, 0.02, "costs nothing that these runs show"),
        (-0.5, None, "has one pair of runs, which does not tell"),
    ],
)
def test_difference_in_words_is_a_cost_a_gain_or_nothing_that_can_be_told(
    mean: float, error: float | None, words: str
) -> None:
    assert paired.Difference(mean, error, 10).in_words == words


@pytest.mark.parametrize(
    ("mean", "error", "words"),
    [
        (-0.02, 0.02, "is within one standard error of"),
        (-0.03, 0.02, "is 1.5 standard errors below"),
        (0.05, 0.02, "is 2.5 standard errors above"),
        (-0.03, 0.0, "is inf standard errors below"),
        (-0.03, None, "has too few pairs of runs to tell how far it is from"),
    ],
)
def test_how_far_a_difference_is_from_nothing_is_said_in_its_standard_errors(
    mean: float, error: float | None, words: str
) -> None:
    assert paired.Difference(mean, error, 10).in_errors == words
