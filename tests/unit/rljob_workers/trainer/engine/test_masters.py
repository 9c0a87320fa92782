"""Where masters begin: they round to their weights, and a small update has its effect in the mean."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.trainer.engine import masters

SIZE = 1 << 16


def spread(values: torch.Tensor, *, key: int = 7, start: int = 0) -> torch.Tensor:
    moved = values.clone()
    masters.spread(moved, key=key, start=start)
    return moved


def all_bf16() -> torch.Tensor:
    """Return every value of bf16, NaN and infinities among them."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()


def test_every_value_of_bf16_is_rounded_to_from_where_its_master_begins() -> None:
    values = all_bf16()
    for key in range(8):
        rounded = spread(values, key=key).bfloat16().float()
        assert torch.equal(torch.nan_to_num(rounded, nan=0.5), torch.nan_to_num(values, nan=0.5))


@settings(max_examples=50, deadline=None)
@given(key=st.integers(0, (1 << 32) - 1), cut=st.integers(0, 1000), start=st.integers(0, 1 << 33))
def test_parts_of_a_tensor_begin_where_the_whole_would(key: int, cut: int, start: int) -> None:
    values = torch.linspace(-2, 2, 1000).bfloat16().float()
    whole = spread(values, key=key, start=start)
    parts = [spread(values[:cut], key=key, start=start), spread(values[cut:], key=key, start=start + cut)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("share", [0.003, 0.02, 0.2, -0.02, -0.2])
@pytest.mark.parametrize("value", [0.75, -0.01171875, 1.0])
def test_an_update_keeps_its_effect_in_the_mean_however_small(value: float, share: float) -> None:
    """Four standard errors of a share of 65,536 draws; masters that are copies of the weights would not move."""
    values = torch.full((SIZE,), value)
    step = torch.finfo(torch.bfloat16).eps * 2.0 ** torch.floor(torch.log2(values.abs()))[0]
    moved = spread(values) + share * step
    effect = float((moved.bfloat16().float() - values).mean() / step)
    assert effect == pytest.approx(share, abs=4 * (abs(share) / SIZE) ** 0.5 + 2e-4)
    assert torch.equal((values + share * step).bfloat16().float(), values)


def test_tensors_and_seeds_have_places_of_their_own() -> None:
    values = torch.full((SIZE,), 0.75)
    keys = [masters.key_of(0, "a"), masters.key_of(0, "b"), masters.key_of(1, "a")]
    offsets = torch.stack([spread(values, key=key) - values for key in keys])
    assert torch.corrcoef(offsets).fill_diagonal_(0.0).abs().max() < 0.02
    assert masters.key_of(0, "a") == keys[0]


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40, float("inf")])
def test_values_without_coarse_steps_stay(value: float) -> None:
    assert torch.equal(spread(torch.full((8,), value)), torch.full((8,), value))
