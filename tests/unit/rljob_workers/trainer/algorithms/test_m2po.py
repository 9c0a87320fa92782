"""M2PO's cut, docs/design/algorithms.md#s-6-4."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.trainer.algorithms import m2po


def kept(squares: Sequence[float], threshold: float) -> list[bool]:
    part = torch.tensor(squares, dtype=torch.float32)
    (cut,) = m2po.cuts([part], threshold, total=list, largest=list)
    found: list[bool] = (part.double() <= cut).tolist()
    return found


@pytest.mark.covers("algorithms 6.4", "algorithms 15")
def test_the_largest_leave_until_the_mean_of_the_rest_is_below_the_threshold() -> None:
    """Mean of [.01, .04, .0025] is 0.0175."""
    assert kept([0.01, 0.04, 0.25, 0.0025], 0.04) == [True, True, False, True]


def test_nothing_leaves_where_the_mean_is_below() -> None:
    assert kept([0.01, 0.02], 0.04) == [True, True]


def test_a_mean_equal_to_the_threshold_is_not_below_it() -> None:
    assert kept([0.0, 0.5], 0.25) == [True, False]


def test_equal_squares_leave_together() -> None:
    """One of the two 0.25 would pass with two zeros (mean 0.0833); both do not (0.125)."""
    assert kept([0.0, 0.25, 0.25, 0.0], 0.1) == [True, False, False, True]


def test_the_smallest_stay_even_above_the_threshold() -> None:
    assert kept([0.5, 0.3, 0.9], 0.04) == [False, True, False]


def test_each_minibatch_has_a_cut_of_its_own() -> None:
    parts = [torch.tensor([0.0, 1.0]), torch.tensor([0.01, 0.02]), torch.zeros(0)]
    cuts = m2po.cuts(parts, 0.04, total=list, largest=list)
    assert [(part.double() <= cut).tolist() for part, cut in zip(parts, cuts, strict=True)] == [
        [True, False],
        [True, True],
        [],
    ]


def test_log_ratios_that_are_not_finite_count_as_zero() -> None:
    found = m2po.squares(torch.tensor([-1.0, float("-inf")]), torch.tensor([-1.5, -1.0]))
    assert found.tolist() == [0.25, 0.0]


squares = st.lists(st.sampled_from([0.0, 0.015625, 0.0625, 0.25, 1.0, 4.0]), min_size=1, max_size=12)


@settings(deadline=None)
@given(made=squares, threshold=st.sampled_from([0.01, 0.05, 0.3, 2.0]))
def test_what_stays_is_what_dropping_whole_values_one_after_another_leaves(made: list[float], threshold: float) -> None:
    left = sorted(made)
    while sum(left) / len(left) >= threshold and left[0] < left[-1]:
        left = [value for value in left if value < left[-1]]
    assert kept(made, threshold) == [value <= left[-1] for value in made]


@pytest.mark.covers("algorithms 6.4")
@settings(deadline=None)
@given(mine=squares, theirs=squares, threshold=st.sampled_from([0.01, 0.05, 0.3, 2.0]))
def test_the_cut_is_that_of_all_ranks_together(mine: list[float], theirs: list[float], threshold: float) -> None:
    (expected,) = m2po.cuts([torch.tensor(mine + theirs)], threshold, total=list, largest=list)
    other = torch.tensor(theirs, dtype=torch.float64)
    # The other rank answers for its own tokens at the cut that both try: the kept are the k smallest of it.
    queue = _answers(torch.tensor(mine), other, threshold)
    (found,) = m2po.cuts(
        [torch.tensor(mine)],
        threshold,
        total=lambda values: [own + more for own, more in zip(values, queue.pop(0), strict=True)],
        largest=lambda values: [max(values[0], -min(theirs))],
    )
    assert found == expected


def _answers(mine: torch.Tensor, other: torch.Tensor, threshold: float) -> list[list[float]]:
    """Return what the other rank adds to each reduction, by running it alongside the union."""
    asked: list[list[float]] = []
    union = torch.cat([mine.double(), other])

    def total(values: Sequence[float]) -> list[float]:
        mean_count = int(values[1])
        cut = float(union.sort().values[mean_count - 1]) if mean_count else -1.0
        part = other[other <= cut]
        asked.append([float(part.sum()), float(len(part))])
        return list(values)

    m2po.cuts([union.float()], threshold, total=total, largest=list)
    return asked


def test_a_rank_without_tokens_of_the_minibatch_takes_part() -> None:
    """The other rank has one token, whose square 0.01 stays."""
    (cut,) = m2po.cuts(
        [torch.zeros(0)],
        0.04,
        total=lambda values: [values[0] + 0.01, values[1] + 1.0],
        largest=lambda _values: [-0.01],
    )
    assert cut >= 0.01
