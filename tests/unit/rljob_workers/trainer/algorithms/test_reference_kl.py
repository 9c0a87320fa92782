"""KL to the reference, docs/design/algorithms.md#s-6-7: worked numbers, the loss term, the reward term."""

import pytest
import torch

from rljob_api import types
from rljob_api.manifest.loss import CorrectionSpec, LossSpec
from rljob_testing.sections import section
from rljob_workers.trainer.algorithms import kl, loss, statistics


@pytest.mark.covers("algorithms 6.7", "algorithms 15")
@pytest.mark.parametrize(("estimator", "expected"), [("K1", 0.5), ("K2", 0.125), ("K3", 0.1065)])
def test_estimators_of_a_distance_of_one_half(estimator: str, expected: float) -> None:
    k = kl.estimate(torch.tensor([-1.0]), torch.tensor([-1.5]), estimator)
    assert float(k) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("estimator", "slope"), [("K2", 0.5), ("K3", 1 - 0.60653)])
def test_gradient_pulls_towards_the_reference(estimator: str, slope: float) -> None:
    """dk2/dd = d; dk3/dd = 1 - exp(-d)."""
    theta = torch.tensor([-1.0], requires_grad=True)
    kl.estimate(theta, torch.tensor([-1.5]), estimator).sum().backward()
    assert theta.grad is not None
    assert float(theta.grad) == pytest.approx(slope, abs=1e-5)


def test_an_enormous_distance_is_clamped_and_one_that_is_not_finite_counts_as_zero() -> None:
    k = kl.estimate(torch.tensor([0.0, 0.0]), torch.tensor([-50.0, float("-inf")]), "K1")
    assert k.tolist() == [20.0, 0.0]


@pytest.mark.covers("algorithms 6.7")
def test_what_a_reward_loses_is_bounded_by_ten_times_the_coefficient() -> None:
    lost = kl.penalty(torch.tensor([-1.0, 0.0, -15.0]), torch.tensor([-1.5, -15.0, 0.0]), coef=0.1, estimator="K1")
    assert lost.tolist() == pytest.approx([0.05, 1.0, -1.0])


def losses(*, coef: float, placement: str = "Loss", aggregation: str = "TokenMean") -> loss.LossOutputs:
    """Two tokens at d = 0.5 in row 0, one at d = 1 in the masked row 1; every token is rejected by the correction."""
    theta = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    config = section(
        LossSpec,
        constant_denominator=4.0,
        aggregation=aggregation,
        kl_coef=coef,
        kl_placement=placement,
        kl_estimator="K3",
        rollout_correction=section(CorrectionSpec, mode="Mask", high=2.0),
    )
    return loss.policy_loss(
        loss.LossInputs(
            logprobs=theta,
            entropies=torch.zeros(3),
            behavior=torch.tensor([-4.0, -4.0, -4.0]),
            advantages=torch.ones(3),
            version_steps=torch.zeros(3, dtype=torch.int32),
            row_index=torch.tensor([0, 0, 1]),
            row_tokens=torch.tensor([2.0, 1.0]),
            row_masked=torch.tensor([False, True]),
            minibatch=types.Minibatch(num_tokens=3, num_rows=2),
            trainer_version=0,
            reference=torch.tensor([-1.5, -1.5, -2.0]),
        ),
        config,
    )


@pytest.mark.covers("algorithms 6.7", "algorithms 11")
@pytest.mark.parametrize(
    ("aggregation", "expected"),
    # k3(0.5) = 0.106531: two tokens over 3 tokens; their row's mean over 2 rows; their sum over 2 rows of 4.
    [("TokenMean", 2 * 0.106531 / 3), ("SequenceMean", 0.106531 / 2), ("Constant", 2 * 0.106531 / 8)],
)
def test_the_loss_term_is_aggregated_over_trained_rows_whatever_the_correction_rejects(
    aggregation: str, expected: float
) -> None:
    made = losses(coef=0.5, aggregation=aggregation)
    assert float(made.loss.detach()) == pytest.approx(0.5 * expected, rel=1e-4)
    assert float(made.tally.sums[statistics.Sum.KL_LOSS]) == pytest.approx(0.5 * expected, rel=1e-4)


@pytest.mark.covers("algorithms 11")
def test_with_the_term_in_the_reward_the_loss_has_none_and_the_distance_is_still_reported() -> None:
    made = losses(coef=0.5, placement="Reward")
    assert float(made.loss.detach()) == 0.0
    assert float(made.tally.sums[statistics.Sum.KL_LOSS]) == 0.0
    assert float(made.tally.sums[statistics.Sum.REF_TOKENS]) == 2.0
    assert float(made.tally.sums[statistics.Sum.REF_KL]) == pytest.approx(2 * 0.106531, rel=1e-4)
