"""Worked numbers of docs/design/algorithms.md#s-6-1, #s-6-2, #s-6-3 (whole token) and #s-6-5, and invariants."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from rljob_api import types
from rljob_api.manifest.loss import CorrectionSpec, LossSpec, RejectSpec
from rljob_testing.sections import section
from rljob_workers.trainer.algorithms import loss, statistics

UNWEIGHTED = section(CorrectionSpec, mode="None", high=None, weighting="None")


def config(
    *,
    proximal: str = "Recompute",
    aggregation: str = "TokenMean",
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    rollout_correction: CorrectionSpec | None = UNWEIGHTED,
    entropy_coef: float = 0.0,
    constant: float = 8.0,
) -> LossSpec:
    return section(
        LossSpec,
        proximal=proximal,
        aggregation=aggregation,
        clip_high=clip_high,
        dual_clip=dual_clip,
        rollout_correction=rollout_correction,
        entropy_coef=entropy_coef,
        constant_denominator=constant,
    )


def inputs(
    *,
    theta: Sequence[float],
    behavior: Sequence[float] | None = None,
    advantages: Sequence[float],
    proximal: Sequence[float] | None = None,
    versions: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    masked: Sequence[bool] | None = None,
    entropies: Sequence[float] | None = None,
    trainer_version: int = 0,
    oldest_step: int = 0,
    minibatch: types.Minibatch | None = None,
    entropy_mask: Sequence[bool] | None = None,
    entropy_coef: float | None = None,
) -> loss.LossInputs:
    """`rows` lists the row of each token; sum(m) of each row is counted from it."""
    index = torch.tensor(rows or [0] * len(theta))
    num_rows = int(index.max()) + 1
    tokens = torch.bincount(index, minlength=num_rows).float()
    return loss.LossInputs(
        logprobs=torch.tensor(theta, requires_grad=True),
        entropies=torch.tensor(entropies or [0.0] * len(theta), requires_grad=True),
        behavior=torch.tensor(behavior if behavior is not None else theta),
        advantages=torch.tensor(advantages),
        version_steps=torch.tensor(versions or [0] * len(theta), dtype=torch.int32),
        row_index=index,
        row_tokens=tokens,
        row_masked=torch.tensor(masked or [False] * num_rows),
        minibatch=minibatch or types.Minibatch(num_tokens=len(theta), num_rows=num_rows),
        trainer_version=trainer_version,
        oldest_step=oldest_step,
        proximal=None if proximal is None else torch.tensor(proximal),
        entropy_mask=None if entropy_mask is None else torch.tensor(entropy_mask),
        entropy_coef=entropy_coef,
    )


def single(advantage: float, ratio: float, chosen: LossSpec) -> float:
    made = inputs(theta=[-1.0 + math.log(ratio)], behavior=[-1.0], proximal=[-1.0], advantages=[advantage])
    return float(loss.policy_loss(made, chosen).loss.detach())


@pytest.mark.covers("algorithms 6.2", "algorithms 15")
@pytest.mark.parametrize(
    ("advantage", "ratio", "clip_high", "expected"),
    [(1.0, 1.25, 0.2, -1.2), (-1.0, 0.7, 0.2, 0.8), (-1.0, 5.0, 0.2, 5.0), (1.0, 1.24, 0.28, -1.24)],
)
def test_clipped_surrogate_gives_the_worked_numbers(
    advantage: float, ratio: float, clip_high: float, expected: float
) -> None:
    assert single(advantage, ratio, config(clip_high=clip_high)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.covers("algorithms 6.2", "algorithms 15")
@pytest.mark.parametrize(("advantage", "expected"), [(-1.0, 3.0), (1.0, -1.2)])
def test_dual_clip_caps_negative_advantages_only(advantage: float, expected: float) -> None:
    assert single(advantage, 5.0, config(dual_clip=3.0)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.covers("algorithms 6.2", "algorithms 15")
def test_whole_token_carries_the_uncapped_weight_under_mode_none() -> None:
    made = inputs(theta=[math.log(0.5)], proximal=[math.log(0.4)], behavior=[math.log(0.2)], advantages=[1.0])
    uncapped = section(CorrectionSpec, mode="None", high=None)
    assert float(loss.policy_loss(made, config(rollout_correction=uncapped)).loss.detach()) == pytest.approx(
        -2.4, rel=1e-5
    )


def test_a_clipped_token_has_no_gradient_and_an_unclipped_one_has_minus_a_r() -> None:
    made = inputs(
        theta=[math.log(1.25), math.log(1.1)], proximal=[0.0, 0.0], behavior=[0.0, 0.0], advantages=[1.0, 1.0]
    )
    loss.policy_loss(made, config()).loss.backward()
    assert made.logprobs.grad is not None
    assert made.logprobs.grad.tolist() == pytest.approx([0.0, -1.1 / 2], rel=1e-5)


@pytest.mark.covers("algorithms 6.1", "algorithms 15")
@pytest.mark.parametrize(("version", "expected"), [(1, -1.7), (4, -2.0)])
def test_loglinear_places_the_proximal_policy_between_behavior_and_theta_by_age(version: int, expected: float) -> None:
    made = inputs(theta=[-1.6], behavior=[-2.0], advantages=[1.0], versions=[version], trainer_version=4)
    proximal = loss.proximal_logprobs(made, config(proximal="LogLinear"))
    assert float(proximal) == pytest.approx(expected, rel=1e-5)


@pytest.mark.covers("algorithms 6.1")
def test_loglinear_keeps_behavior_for_tokens_without_a_version_or_from_the_future() -> None:
    made = inputs(theta=[-1.0, -1.0], behavior=[-2.0, -2.0], advantages=[1.0, 1.0], versions=[-1, 9], trainer_version=4)
    assert loss.proximal_logprobs(made, config(proximal="LogLinear")).tolist() == [-2.0, -2.0]


@pytest.mark.covers("algorithms 6.1")
def test_behavior_takes_the_engine_as_the_proximal_policy_so_that_weights_are_one() -> None:
    made = inputs(theta=[-1.0], behavior=[-1.0 - math.log(1.1)], advantages=[1.0])
    outputs = loss.policy_loss(made, config(proximal="Behavior", rollout_correction=None))
    assert float(outputs.loss.detach()) == pytest.approx(-1.1, rel=1e-5)
    assert float(outputs.tally.sums[statistics.Sum.WEIGHT]) == 1.0


@pytest.mark.covers("algorithms 6.1")
def test_stop_gradient_proximal_policy_equals_a_recomputed_one_in_value_and_gradient() -> None:
    theta, behavior, advantages = [-1.0, -2.5, -0.3], [-1.2, -2.0, -0.3], [1.0, -2.0, 0.5]
    found = []
    for proximal in (None, theta):
        made = inputs(theta=theta, behavior=behavior, advantages=advantages, proximal=proximal)
        outputs = loss.policy_loss(made, config(rollout_correction=CorrectionSpec()))
        outputs.loss.backward()
        assert made.logprobs.grad is not None
        found.append((float(outputs.loss.detach()), made.logprobs.grad.tolist()))
    assert found[0] == found[1]


# Rows: 2 tokens with x = 1, 6 tokens with x = 0.5; A = -x and r = 1 make l = x.
TWO_ROWS = ([-1.0] * 8, [-1.0, -1.0] + [-0.5] * 6, [0, 0] + [1] * 6)


@pytest.mark.covers("algorithms 6.5", "algorithms 15")
@pytest.mark.parametrize(
    ("aggregation", "expected"), [("TokenMean", 0.625), ("SequenceMean", 0.75), ("Constant", 0.3125)]
)
def test_aggregations_give_the_worked_numbers(aggregation: str, expected: float) -> None:
    theta, advantages, rows = TWO_ROWS
    made = inputs(theta=theta, advantages=advantages, rows=rows)
    assert float(loss.policy_loss(made, config(aggregation=aggregation)).loss.detach()) == pytest.approx(expected)


@pytest.mark.covers("algorithms 6.5", "algorithms 15")
@pytest.mark.parametrize(
    ("aggregation", "expected"), [("TokenMean", 0.4375), ("SequenceMean", 0.625), ("Constant", 0.21875)]
)
def test_rejected_tokens_stay_in_every_denominator(aggregation: str, expected: float) -> None:
    theta, advantages, rows = TWO_ROWS
    # The last three tokens have importance weight e^2 and leave; the others have 1.
    made = inputs(theta=theta, behavior=[-1.0] * 5 + [-3.0] * 3, advantages=advantages, rows=rows)
    reject = section(CorrectionSpec, mode="Mask", high=5.0)
    outputs = loss.policy_loss(made, config(aggregation=aggregation, rollout_correction=reject))
    assert float(outputs.loss.detach()) == pytest.approx(expected)
    assert float(outputs.tally.sums[statistics.Sum.CORRECTION_MASKED]) == 3.0


@pytest.mark.covers("algorithms 6.5", "algorithms 15")
def test_drgrpo_scale_does_not_depend_on_the_answer_length_of_others() -> None:
    made = inputs(theta=[-1.0] * 150, advantages=[-0.6] * 150, minibatch=types.Minibatch(num_tokens=10_000, num_rows=1))
    outputs = loss.policy_loss(made, config(aggregation="Constant", constant=3000.0))
    assert float(outputs.loss.detach()) == pytest.approx(0.03, rel=1e-5)


@pytest.mark.covers("algorithms 3")
@pytest.mark.parametrize("aggregation", ["TokenMean", "SequenceMean", "Constant"])
def test_a_truncated_row_is_masked_and_still_counts_in_denominators(aggregation: str) -> None:
    theta, advantages, rows = TWO_ROWS
    kept = inputs(theta=theta, advantages=advantages[:2] + [0.0] * 6, rows=rows)
    masked = inputs(theta=theta, advantages=advantages, rows=rows, masked=[False, True])
    chosen = config(aggregation=aggregation)
    expected = float(loss.policy_loss(kept, chosen).loss.detach())
    assert float(loss.policy_loss(masked, chosen).loss.detach()) == pytest.approx(expected)
    assert float(loss.policy_loss(masked, chosen).tally.sums[statistics.Sum.TRUNCATED_MASKED]) == 6.0


@pytest.mark.covers("algorithms 6.6")
def test_entropy_is_subtracted_over_all_tokens_but_those_of_truncated_rows() -> None:
    made = inputs(
        theta=[-1.0] * 4, advantages=[0.0] * 4, rows=[0, 0, 1, 1], entropies=[1.0, 2.0, 5.0, 5.0], masked=[False, True]
    )
    outputs = loss.policy_loss(made, config(entropy_coef=0.1))
    assert float(outputs.loss.detach()) == pytest.approx(-0.1 * 3.0 / 4)
    assert float(outputs.tally.sums[statistics.Sum.ENTROPY_LOSS]) == pytest.approx(-0.1 * 3.0 / 4)
    outputs.loss.backward()
    assert made.entropies.grad is not None
    assert made.entropies.grad.tolist() == pytest.approx([-0.025, -0.025, 0.0, 0.0])


def test_the_coefficient_of_a_step_takes_the_place_of_the_manifests() -> None:
    made = inputs(theta=[-1.0] * 2, advantages=[0.0] * 2, entropies=[1.0, 3.0], entropy_coef=0.05)
    assert float(loss.policy_loss(made, config(entropy_coef=0.1)).loss.detach()) == pytest.approx(-0.05 * 2.0)
    rests = dataclasses.replace(made, entropy_coef=0.0)
    assert float(loss.policy_loss(rests, config(entropy_coef=0.1)).loss.detach()) == 0.0


@pytest.mark.covers("algorithms 6.6")
def test_tokens_of_low_entropy_have_no_gradient_and_stay_in_the_denominator() -> None:
    """Against the clipped loss of the chosen tokens in plain torch, over the number of all tokens."""
    theta, proximal = [-0.5, -1.0, -2.0, -0.7], [-0.6, -1.3, -1.5, -0.7]
    advantages, mask = [1.0, -2.0, 0.5, 3.0], [True, False, True, False]
    made = inputs(theta=theta, proximal=proximal, advantages=advantages, entropy_mask=mask)
    outputs = loss.policy_loss(made, config())
    outputs.loss.backward()

    logprobs = torch.tensor(theta, requires_grad=True)
    ratio, signs = (logprobs - torch.tensor(proximal)).exp(), torch.tensor(advantages)
    terms = torch.maximum(-signs * ratio, -signs * ratio.clamp(0.8, 1.2))
    expected = terms[torch.tensor(mask)].sum() / len(theta)
    expected.backward()
    assert float(outputs.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
    assert made.logprobs.grad is not None
    assert logprobs.grad is not None
    assert made.logprobs.grad.tolist() == pytest.approx(logprobs.grad.tolist(), abs=1e-6)
    assert float(outputs.tally.sums[statistics.Sum.ENTROPY_MASKED]) == 2.0


@pytest.mark.covers("algorithms 6")
def test_a_non_finite_log_ratio_counts_as_zero_and_is_reported() -> None:
    made = inputs(theta=[-1.0, -1.0], behavior=[float("-inf"), -1.0], advantages=[1.0, 1.0])
    outputs = loss.policy_loss(made, config(rollout_correction=section(CorrectionSpec, mode="None", high=None)))
    assert float(outputs.loss.detach()) == pytest.approx(-1.0)
    assert float(outputs.tally.sums[statistics.Sum.NONFINITE]) == 1.0
    assert float(outputs.tally.sums[statistics.Sum.NONFINITE_LOSS]) == 0.0


def test_a_loss_that_is_not_finite_is_counted() -> None:
    made = inputs(theta=[-1.0, -1.0], advantages=[float("nan"), 1.0])
    assert float(loss.policy_loss(made, config()).tally.sums[statistics.Sum.NONFINITE_LOSS]) == 1.0


@pytest.mark.covers("algorithms 6")
def test_an_enormous_log_ratio_is_clamped_to_twenty() -> None:
    made = inputs(theta=[0.0], proximal=[-100.0], behavior=[-100.0], advantages=[-1.0])
    assert float(loss.policy_loss(made, config()).loss.detach()) == pytest.approx(math.exp(20.0), rel=1e-5)


@pytest.mark.covers("algorithms 11")
@pytest.mark.parametrize(
    ("advantage", "ratio", "low", "high", "dual"),
    [(1.0, 1.3, 0, 1, 0), (-1.0, 0.7, 1, 0, 0), (-1.0, 1.3, 0, 0, 0), (1.0, 0.7, 0, 0, 0), (-1.0, 4.0, 0, 0, 1)],
)
def test_clip_shares_count_where_the_bound_changed_the_loss(
    advantage: float, ratio: float, low: int, high: int, dual: int
) -> None:
    made = inputs(theta=[math.log(ratio)], proximal=[0.0], behavior=[0.0], advantages=[advantage])
    sums = loss.policy_loss(made, config(dual_clip=3.0)).tally.sums
    assert [
        int(sums[index]) for index in (statistics.Sum.CLIP_LOW, statistics.Sum.CLIP_HIGH, statistics.Sum.CLIP_DUAL)
    ] == [
        low,
        high,
        dual,
    ]


@pytest.mark.covers("algorithms 11")
def test_engine_trainer_and_cache_are_told_apart_by_what_sampled_the_row() -> None:
    """Row 0 is version 4's own; row 1 was begun by version 3, whose keys its token of version 4 saw; row 2 is of 3."""
    made = inputs(
        theta=[-1.0] * 6,
        behavior=[-1.5, -0.75, -9.0, -1.125, -1.25, -1.25],
        advantages=[0.0] * 6,
        versions=[4, 4, 3, 4, 3, 3],
        rows=[0, 0, 1, 1, 2, 2],
        trainer_version=4,
    )
    sums = loss.policy_loss(made, config()).tally.sums
    assert float(sums[statistics.Sum.MISMATCH_TOKENS]) == 2
    assert float(sums[statistics.Sum.MISMATCH_ABS]) == pytest.approx(0.5 + 0.25)
    assert float(sums[statistics.Sum.MISMATCH_EXP_ABS]) == pytest.approx(math.exp(0.5) + math.exp(0.25))
    assert float(sums[statistics.Sum.STALE_TOKENS]) == 1
    assert float(sums[statistics.Sum.STALE_ABS]) == pytest.approx(0.125)
    assert float(sums[statistics.Sum.GAP_TOKENS]) == 6
    assert float(sums[statistics.Sum.GAP_ABS]) == pytest.approx(0.5 + 0.25 + 8.0 + 0.125 + 0.25 + 0.25)


def test_a_row_that_is_only_looked_at_counts_for_others_in_the_batch_and_not_in_the_update() -> None:
    """Row 1 has no advantage and stands for 3 tokens and 2 rows each: entropy (2 x 1 + 3 x 5) / (2 + 3)."""
    values: dict[str, Any] = {
        "theta": [-1.0, -1.0, -1.0],
        "behavior": [-1.5, -1.0, -1.25],
        "advantages": [1.0, 1.0, 0.0],
        "entropies": [1.0, 1.0, 5.0],
        "rows": [0, 0, 1],
        "minibatch": types.Minibatch(num_tokens=5, num_rows=3),
    }
    without = loss.policy_loss(inputs(**values), config())
    made = dataclasses.replace(
        inputs(**values),
        row_observed=torch.tensor([False, True]),
        observed=statistics.Observed(tokens=3.0, rows=2.0),
    )
    found = loss.policy_loss(made, config())
    sums = found.tally.sums
    assert float(found.loss.detach()) == pytest.approx(float(without.loss.detach()))
    found.loss.backward()
    assert made.logprobs.grad is not None
    assert made.logprobs.grad[2] == 0.0
    told = statistics.report(sums.tolist(), found.tally.peaks.tolist(), [made.minibatch])
    assert told[statistics.Stat.ENTROPY] == pytest.approx(17 / 5)
    assert told[statistics.Stat.LOGPROB_ABS_DIFF] == pytest.approx((0.5 + 0.0 + 3 * 0.25) / 5)
    assert float(sums[statistics.Sum.ROWS]) == 3
    assert float(sums[statistics.Sum.UPDATE_TOKENS]) == 2


def test_a_row_that_is_only_looked_at_poisons_nothing() -> None:
    made = dataclasses.replace(
        inputs(theta=[-1.0, -math.inf], behavior=[-1.0, -1.0], advantages=[1.0, 0.0], rows=[0, 1]),
        row_observed=torch.tensor([False, True]),
    )
    found = loss.policy_loss(made, config())
    found.loss.backward()
    assert made.logprobs.grad is not None
    assert math.isfinite(float(found.loss.detach()))
    assert math.isfinite(float(made.logprobs.grad[0]))


@pytest.mark.covers("algorithms 11")
def test_mismatch_and_distance_under_behavior_compare_the_engine_with_theta() -> None:
    """The weight is 1 there, and yet samples are old: k3 of a log-ratio of a half."""
    made = inputs(theta=[-1.0], behavior=[-1.5], advantages=[0.0])
    sums = loss.policy_loss(made, config(proximal="Behavior", rollout_correction=None)).tally.sums
    assert float(sums[statistics.Sum.MISMATCH_ABS]) == pytest.approx(0.5)
    assert float(sums[statistics.Sum.BEHAVIOR_K3]) == pytest.approx(math.exp(0.5) - 1.0 - 0.5)


@pytest.mark.covers("algorithms 11")
def test_row_statistics_of_the_worked_ratios() -> None:
    """Importance weights .4, 1, 3 in one row: product 1.2, chi2 of it 1.2^2 - 1, geometric mean 1.0627 inverted."""
    made = inputs(
        theta=[0.0] * 3, proximal=[math.log(0.4), 0.0, math.log(3.0)], behavior=[0.0] * 3, advantages=[0.0] * 3
    )
    sums = loss.policy_loss(made, config()).tally.sums
    assert float(sums[statistics.Sum.ROW_CHI2]) == pytest.approx(0.44, rel=1e-5)
    assert float(sums[statistics.Sum.ROW_PPL]) == pytest.approx(1.2 ** (-1 / 3), rel=1e-5)


@pytest.mark.covers("algorithms 11")
def test_masked_tokens_are_counted_once_by_the_first_reason_that_takes_them() -> None:
    """Importance weights 9, 1, 1, 4 in rows of two: row 1 truncated; then 9 by the cap; its neighbour by the mean."""
    importance_weights = [9.0, 1.0, 1.0, 4.0]
    made = inputs(
        theta=[0.0] * 4,
        proximal=[math.log(value) for value in importance_weights],
        behavior=[0.0] * 4,
        advantages=[1.0] * 4,
        rows=[0, 0, 1, 1],
        masked=[False, True],
    )
    chosen = section(
        CorrectionSpec, mode="Mask", high=5.0, reject=section(RejectSpec, level="Sequence", agg="Mean", high=2.0)
    )
    sums = loss.policy_loss(made, config(rollout_correction=chosen)).tally.sums
    counted = (
        statistics.Sum.TRUNCATED_MASKED,
        statistics.Sum.CORRECTION_MASKED,
        statistics.Sum.REJECT_MASKED,
        statistics.Sum.M2_MASKED,
    )
    assert [int(sums[index]) for index in counted] == [2, 1, 1, 0]


@pytest.mark.covers("algorithms 2.3", "algorithms 6.5")
@pytest.mark.parametrize("aggregation", ["TokenMean", "SequenceMean", "Constant"])
def test_a_token_that_is_too_old_has_no_gradient_and_stays_in_the_denominator(aggregation: str) -> None:
    """Of three tokens the first is of step 3 where 4 is the oldest; the others have the gradient that they had."""
    chosen = config(aggregation=aggregation)
    gradients = []
    for oldest_step in (3, 4):
        made = inputs(theta=[-1.0, -1.0, -1.0], advantages=[1.0, 1.0, 1.0], versions=[3, 4, 5], oldest_step=oldest_step)
        outputs = loss.policy_loss(made, chosen)
        outputs.loss.backward()
        assert made.logprobs.grad is not None
        gradients.append(made.logprobs.grad.tolist())
    assert gradients[1] == [0.0, *gradients[0][1:]]
    assert gradients[0][0] != 0.0
    assert float(outputs.tally.sums[statistics.Sum.STALE_MASKED]) == 1.0
