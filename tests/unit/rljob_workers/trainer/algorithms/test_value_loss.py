"""The critic's loss, docs/design/algorithms.md#s-7, and its explained variance, #s-11."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.trainer.algorithms import value_loss


def loss_of(
    value: float, old: float, wanted: float, *, clip: float = 0.5, coef: float = 1.0
) -> tuple[value_loss.ValueLoss, float]:
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    made = value_loss.value_loss(
        values,
        torch.tensor([old], dtype=torch.float64),
        torch.tensor([wanted], dtype=torch.float64),
        value_clip=clip,
        coef=coef,
        num_tokens=1,
    )
    made.share.backward()
    assert values.grad is not None
    return made, float(values.grad)


@pytest.mark.covers("algorithms 7", "algorithms 15")
def test_worked_number_takes_the_clipped_square_and_has_no_gradient() -> None:
    """v_old .5, v 1.2, ret 1.5: max(.3^2, (1.0 - 1.5)^2) / 2 = .125; the clipped branch does not move with v."""
    made, slope = loss_of(1.2, 0.5, 1.5)
    assert float(made.share.detach()) == pytest.approx(0.125)
    assert made.clipped.tolist() == [True]
    assert slope == 0.0


def test_inside_the_clip_it_is_the_plain_square_with_slope_v_minus_ret() -> None:
    made, slope = loss_of(0.7, 0.5, 1.5)
    assert float(made.share.detach()) == pytest.approx(0.32)
    assert made.clipped.tolist() == [False]
    assert slope == pytest.approx(-0.8)


def test_the_coefficient_multiplies_value_and_slope() -> None:
    made, slope = loss_of(0.7, 0.5, 1.5, coef=0.1)
    assert float(made.share.detach()) == pytest.approx(0.032)
    assert slope == pytest.approx(-0.08)


@settings(deadline=None)
@given(values=st.lists(st.floats(-3, 3), min_size=2, max_size=10), data=st.data())
def test_shares_of_any_split_add_up_to_the_whole(values: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(values) - 1))
    whole, old, wanted = torch.tensor(values), torch.zeros(len(values)), torch.ones(len(values))
    total, first, second = (
        float(
            value_loss.value_loss(
                whole[part], old[part], wanted[part], value_clip=0.5, coef=1.0, num_tokens=len(values)
            ).share
        )
        for part in (slice(None), slice(cut), slice(cut, None))
    )
    assert first + second == pytest.approx(total, rel=1e-5, abs=1e-6)


@pytest.mark.covers("algorithms 11")
def test_explained_variance_is_one_for_a_critic_that_knew_and_zero_for_a_constant() -> None:
    """Returns [1, 3]: count 2, sum 4, squares 10; residuals [0, 0] or [1, 3] less 2."""
    returns = (2.0, 4.0, 10.0)
    assert value_loss.explained_variance((2.0, 0.0, 0.0), returns) == 1.0
    assert value_loss.explained_variance((2.0, 0.0, 2.0), returns) == 0.0
    assert value_loss.explained_variance((2.0, 0.0, 8.0), returns) == -3.0


def test_explained_variance_of_equal_returns_is_zero() -> None:
    assert value_loss.explained_variance((2.0, 1.0, 1.0), (2.0, 2.0, 2.0)) == 0.0
