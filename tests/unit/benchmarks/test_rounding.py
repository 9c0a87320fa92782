"""The parts of tests/bench/rounding.py that need no model."""

import pytest
import torch
from tests.bench import rounding


def test_drawing_anew_is_right_in_the_mean_and_exact_on_values_of_bf16() -> None:
    values = torch.full((1 << 16,), 0.75 + 0.3 * 2**-8)
    rounded = rounding.redrawn("a", values, 1)
    assert sorted(set(rounded.tolist())) == [0.75, 0.75 + 2**-8]
    assert float(rounded.mean()) == pytest.approx(float(values[0]), abs=4 * 2**-8 * (0.21 / (1 << 16)) ** 0.5)
    assert torch.equal(rounding.redrawn("a", torch.full((9,), -0.75), 1), torch.full((9,), -0.75))


@pytest.mark.parametrize(
    ("name", "least", "most"), [("nearest", 0.0, 0.0), ("spread masters", 0.9, 1.1), ("float32 on the wire", 1.0, 1.0)]
)
def test_what_arrives_of_an_update_of_a_fiftieth_of_a_step(name: str, least: float, most: float) -> None:
    """65,536 weights of 0.1, whose step is 2^-11, and a rate of 1e-5."""
    weights = {"w": torch.full((1 << 16,), 0.1).bfloat16().float()}
    first, *_ = rounding.kept(weights, {"w": torch.ones(1 << 16)}, rounding.CHOICES[name])
    assert least - 1e-3 <= first <= most + 1e-3


def test_the_page_has_a_row_for_each_way() -> None:
    measured = rounding.Measured(kept=[0.5, 0.75, 1.0], changed=0.03, num_bytes=2_000_000, right=[0.1, 0.25])
    assert rounding.page({"nearest": measured}).endswith("| nearest | 50% | 75% | 100% | 3.0% | 2.0 | 0.100 0.250 |\n")
