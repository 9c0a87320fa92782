"""Normalisation over tokens, algorithms reference 5.1."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import roles
from rljob_workers.trainer import whitening

PRESET = roles.NormalizeConfig(mean="batch", std="batch", eps=0.0)


def normalize(parts: Sequence[Sequence[float]], config: roles.NormalizeConfig) -> list[float]:
    tensors = [torch.tensor(part, dtype=torch.float64) for part in parts]
    found = whitening.normalize(tensors, tensors, config, total=list, largest=list)
    return [value for part in found for value in part.tolist()]


def test_long_rows_weigh_more() -> None:
    assert normalize([[1.0], [-1.0, -1.0, -1.0]], PRESET) == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_biased_statistics_divide_by_the_number_of_tokens() -> None:
    """Squares 2.25 + 3 x 0.25 = 3 over 4: sigma 0.8660."""
    found = normalize([[1.0], [-1.0, -1.0, -1.0]], PRESET.model_copy(update={"unbiased": False}))
    assert found == pytest.approx([1.7321, -0.5774, -0.5774, -0.5774], abs=5e-5)


def test_leaving_one_out_subtracts_the_mean_of_the_others() -> None:
    config = roles.NormalizeConfig(mean="batch", std="none", leave_one_out=True)
    assert normalize([[1.0, 1.0], [0.0, 0.0, 0.0]], config) == pytest.approx([0.75, 0.75, -0.5, -0.5, -0.5])


@pytest.mark.parametrize(("center", "expected"), [("subtracted", math.sqrt(5.0)), ("own", 1.0)])
def test_without_a_mean_the_squares_are_around_zero_or_around_their_own(center: str, expected: float) -> None:
    """[1, 3] biased: around 0 (1 + 9) / 2 = 5; around 2 it is 1."""
    config = roles.NormalizeConfig.model_validate(
        {"mean": "none", "std": "batch", "unbiased": False, "eps": 0.0, "std_center": center}
    )
    assert normalize([[1.0, 3.0]], config) == pytest.approx([1 / expected, 3 / expected])


def test_equal_values_give_exactly_zero_and_one_token_too() -> None:
    assert normalize([[0.3, 0.3], [0.3]], roles.NormalizeConfig(mean="batch", std="batch")) == [0.0, 0.0, 0.0]
    assert normalize([[0.7]], PRESET) == [0.0]


def test_a_step_of_one_token_divides_by_one() -> None:
    config = roles.NormalizeConfig(mean="none", std="batch", eps=0.0)
    assert normalize([[0.7]], config) == [0.7]


def test_repeated_tokens_of_later_epochs_are_normalised_and_not_counted() -> None:
    once = [torch.tensor([1.0]), torch.tensor([-1.0, -1.0, -1.0])]
    found = whitening.normalize([*once, once[0]], once, PRESET, total=list, largest=list)
    assert float(found[2]) == float(found[0]) == pytest.approx(1.5)


def test_statistics_are_those_of_all_ranks() -> None:
    """This rank has [1], the other one [-1, -1, -1]: sums 1 + -3, 1 + 3 tokens, squares 2.25 + 0.75."""
    theirs = iter([[-3.0, 3.0], [0.75]])

    def total(values: Sequence[float]) -> list[float]:
        return [own + other for own, other in zip(values, next(theirs), strict=True)]

    mine = [torch.tensor([1.0])]
    (found,) = whitening.normalize(
        mine, mine, PRESET, total=total, largest=lambda values: [max(values[0], -1.0), max(values[1], 1.0)]
    )
    assert found.tolist() == pytest.approx([1.5])


def test_a_rank_without_tokens_takes_part() -> None:
    assert whitening.normalize([], [], PRESET, total=list, largest=list) == []


values = st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=12)


@settings(deadline=None)
@given(made=values, data=st.data())
def test_neither_order_nor_split_changes_a_token(made: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(made)))
    order = data.draw(st.permutations(range(len(made))))
    config = roles.NormalizeConfig(mean="batch", std="batch")
    whole = normalize([made], config)
    shuffled = [made[at] for at in order]
    split = normalize([shuffled[:cut], shuffled[cut:]], config)
    assert split == pytest.approx([whole[at] for at in order], abs=1e-6)
