"""Worked numbers of docs/design/algorithms.md#s-6-4 and #s-15, and gradients against autograd of the equation."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.manifest.loss import LossSpec
from rljob_testing.sections import section
from rljob_workers.trainer.algorithms import policy_losses
from rljob_workers.trainer.algorithms.rows import Rows


def config(loss_type: str, *, low: float = 0.2, high: float = 0.2) -> LossSpec:
    return section(LossSpec, type=loss_type, clip_low=low, clip_high=high, constant_denominator=8.0)


def rows_of(sizes: Sequence[int]) -> Rows:
    index = torch.tensor([row for row, size in enumerate(sizes) for _ in range(size)])
    return Rows(index, torch.tensor(sizes, dtype=torch.float32))


def token(advantage: float, ratio: float, chosen: LossSpec) -> tuple[float, float]:
    """Return l and dl/dlogp of one token with the proximal policy at -5."""
    logprobs = torch.tensor([-5.0 + math.log(ratio)], requires_grad=True)
    made = policy_losses.compute(logprobs, torch.tensor([-5.0]), torch.tensor([advantage]), rows_of([1]), chosen)
    made.losses.sum().backward()
    assert logprobs.grad is not None
    return float(made.losses.detach()), float(logprobs.grad)


@pytest.mark.covers("algorithms 6.4", "algorithms 15")
def test_gspo_clips_the_geometric_mean_of_the_row_and_stops_its_gradient() -> None:
    logprobs = torch.tensor([0.1, -0.05, 0.1], requires_grad=True)
    made = policy_losses.compute(
        logprobs, torch.zeros(3), torch.ones(3), rows_of([3]), config("gspo", low=3e-4, high=4e-4)
    )
    assert float(rows_of([3]).mean(logprobs.detach()).exp()) == pytest.approx(1.0513, abs=5e-5)
    assert made.losses.tolist() == pytest.approx([-1.0004] * 3, abs=1e-6)
    made.losses.mean().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0, 0.0]


def test_gspo_averages_the_advantage_over_the_row_and_shares_the_gradient_of_s_among_its_tokens() -> None:
    logprobs = torch.tensor([0.0, 0.0, 0.0, 0.0], requires_grad=True)
    advantages = torch.tensor([1.0, 3.0, -1.0, -1.0])
    made = policy_losses.compute(logprobs, torch.zeros(4), advantages, rows_of([2, 2]), config("gspo"))
    assert made.losses.tolist() == [-2.0, -2.0, 1.0, 1.0]
    # Row means, then the mean of rows: d(-2 s)/dlogp = -2 / 2 tokens / 2 rows.
    (made.losses / 2 / 2).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-0.5, -0.5, 0.25, 0.25])


@pytest.mark.parametrize("advantage", [-1.0, 2.0])
@pytest.mark.parametrize("loss_type", ["ppo", "gspo", "cispo"])
def test_a_band_does_nothing_at_the_policy_that_it_is_centred_on(loss_type: str, advantage: float) -> None:
    """What `rljob plan` warns of where a step makes one update. Off the centre the two bands differ."""
    narrow, wide = (config(loss_type, low=width, high=width) for width in (0.01, 0.9))
    assert token(advantage, 1.0, narrow) == token(advantage, 1.0, wide)
    off_centre = 1.5 if advantage > 0 or loss_type == "cispo" else 0.5
    assert token(advantage, off_centre, narrow) != token(advantage, off_centre, wide)


@pytest.mark.covers("algorithms 6.4", "algorithms 15")
@pytest.mark.parametrize(
    ("advantage", "ratio", "slope"), [(2.0, 6.0, -10.0), (-1.0, 3.0, 3.0), (1.0, 0.5, -0.5), (0.0, 2.0, 0.0)]
)
def test_cispo_passes_minus_the_clamped_ratio_times_advantage_and_nothing_through_r(
    advantage: float, ratio: float, slope: float
) -> None:
    assert token(advantage, ratio, config("cispo", low=1.0, high=4.0))[1] == pytest.approx(slope, rel=1e-5)


def test_cispo_counts_tokens_outside_the_band_on_either_side() -> None:
    logprobs = torch.tensor([0.1, 1.0, 6.0]).log()
    made = policy_losses.compute(
        logprobs, torch.zeros(3), torch.ones(3), rows_of([3]), config("cispo", low=0.5, high=4.0)
    )
    assert (made.low.tolist(), made.high.tolist()) == ([True, False, False], [False, False, True])


@pytest.mark.covers("algorithms 6.4", "algorithms 15")
@pytest.mark.parametrize(
    ("advantage", "ratio", "expected"), [(1.0, 1.0, -2.0), (1.0, 1.2, -2.1993), (-1.0, 1.2, 2.1040)]
)
def test_sapo_gives_the_worked_numbers(advantage: float, ratio: float, expected: float) -> None:
    assert token(advantage, ratio, config("sapo"))[0] == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.5])
def test_sapo_has_slope_minus_a_at_the_proximal_policy(advantage: float) -> None:
    assert token(advantage, 1.0, config("sapo"))[1] == pytest.approx(-advantage, rel=1e-5)


@pytest.mark.covers("algorithms 6.4")
def test_reinforce_is_minus_a_times_the_log_probability() -> None:
    assert token(2.0, 3.0, config("reinforce")) == pytest.approx((-2.0 * (-5.0 + math.log(3.0)), -2.0), rel=1e-6)


def _sapo(theta: torch.Tensor, advantage: float) -> torch.Tensor:
    tau = 1.0 if advantage > 0 else 1.05
    return -advantage * 4 / tau / (1 + torch.exp(-tau * (torch.exp(theta + 5.0) - 1)))


def _ppo(theta: torch.Tensor, advantage: float) -> torch.Tensor:
    ratio = torch.exp(theta + 5.0)
    return torch.max(-advantage * ratio, -advantage * torch.clip(ratio, 0.8, 1.2))


@pytest.mark.parametrize(("loss_type", "equation"), [("sapo", _sapo), ("ppo", _ppo)])
@settings(max_examples=30, deadline=None)
@given(advantage=st.floats(-3, 3), ratio=st.floats(0.3, 3.0).filter(lambda r: min(abs(r - 0.8), abs(r - 1.2)) > 1e-3))
def test_value_and_gradient_are_those_of_the_equation(
    loss_type: str, equation: Callable[[torch.Tensor, float], torch.Tensor], advantage: float, ratio: float
) -> None:
    theta = torch.tensor(-5.0 + math.log(ratio), dtype=torch.float64, requires_grad=True)
    expected = equation(theta, advantage)
    expected.backward()
    assert theta.grad is not None
    value, slope = token(advantage, ratio, config(loss_type))
    assert value == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-5)
    assert slope == pytest.approx(float(theta.grad), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("loss_type", ["ppo", "gspo", "cispo", "sapo", "reinforce"])
def test_rows_without_advantage_lose_nothing_and_pull_nowhere(loss_type: str) -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    made = policy_losses.compute(logprobs, torch.full((3,), -1.5), torch.zeros(3), rows_of([2, 1]), config(loss_type))
    made.losses.sum().backward()
    assert logprobs.grad is not None
    assert [abs(value) for value in made.losses.tolist() + logprobs.grad.tolist()] == [0.0] * 6


@pytest.mark.parametrize("loss_type", ["ppo", "gspo", "cispo", "sapo", "reinforce"])
@given(seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_a_row_alone_has_the_losses_that_it_has_beside_others(loss_type: str, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    theta, proximal, advantages = torch.randn(3, 7, generator=random).unbind()
    whole = policy_losses.compute(theta, proximal, advantages, rows_of([3, 4]), config(loss_type)).losses
    parts = [
        policy_losses.compute(theta[part], proximal[part], advantages[part], rows_of([size]), config(loss_type)).losses
        for part, size in ((slice(0, 3), 3), (slice(3, 7), 4))
    ]
    torch.testing.assert_close(whole, torch.cat(parts), rtol=1e-5, atol=1e-6)
