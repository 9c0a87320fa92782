"""docs/design/algorithms.md#s-6-3: statistics, weights, rejections, bounds."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.manifest.loss import CorrectionSpec, RejectSpec
from rljob_testing.sections import section
from rljob_workers.trainer.algorithms import correction, kl
from rljob_workers.trainer.algorithms.rows import Rows


def rows_of(index: Sequence[int]) -> Rows:
    where = torch.tensor(index)
    return Rows(where, torch.bincount(where).float())


def corrected(
    importance_weights: Sequence[float],
    config: CorrectionSpec | None,
    index: Sequence[int] | None = None,
    advantages: Sequence[float] | None = None,
) -> correction.Correction:
    """The behavior policy at probability 1, so that `proximal` is the log of the importance weight."""
    proximal = torch.tensor([math.log(value) for value in importance_weights])
    zeros, rows = torch.zeros(len(importance_weights)), rows_of(index or [0] * len(importance_weights))
    return correction.correct(proximal, zeros, torch.tensor(advantages or zeros.tolist()), rows, config)


IMPORTANCE_WEIGHTS = [0.4, 1.0, 3.0]


@pytest.mark.covers("algorithms 6.3", "algorithms 15")
def test_tis_clamps_weights_above_and_drops_nothing() -> None:
    found = corrected(IMPORTANCE_WEIGHTS, section(CorrectionSpec, mode="Truncate", high=2.0))
    assert found.weights.tolist() == pytest.approx([0.4, 1.0, 2.0])
    assert found.keep_mask.all()


@pytest.mark.covers("algorithms 6.3", "algorithms 15")
def test_icepop_rejects_out_of_bounds_tokens() -> None:
    found = corrected(IMPORTANCE_WEIGHTS, section(CorrectionSpec, mode="Mask", low=0.5, high=2.0))
    assert found.weights.tolist() == pytest.approx([0.0, 1.0, 0.0])
    assert found.keep_mask.tolist() == [False, True, False]


def test_truncate_has_zero_as_lower_bound_unless_one_is_given() -> None:
    assert corrected(
        IMPORTANCE_WEIGHTS, section(CorrectionSpec, mode="Truncate", low=0.5, high=2.0)
    ).weights.tolist() == pytest.approx([0.5, 1.0, 2.0])


@pytest.mark.covers("algorithms 6.3")
def test_a_statistic_equal_to_its_bound_is_kept() -> None:
    found = corrected([1.0, 1.0], section(CorrectionSpec, mode="Mask", low=1.0, high=1.0))
    assert found.keep_mask.all()


@pytest.mark.covers("algorithms 6.3")
def test_mode_none_keeps_the_full_ratio() -> None:
    assert corrected(IMPORTANCE_WEIGHTS, None).weights.tolist() == pytest.approx(IMPORTANCE_WEIGHTS)


@pytest.mark.covers("algorithms 6.3")
def test_weighting_none_gives_weight_one_to_what_is_kept() -> None:
    found = corrected(IMPORTANCE_WEIGHTS, section(CorrectionSpec, mode="Mask", high=2.0, weighting="None"))
    assert found.weights.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.covers("algorithms 6.3", "algorithms 15")
@pytest.mark.parametrize(("agg", "expected"), [("Mean", 1.0627), ("Sum", 1.2), ("Max", 3.0)])
def test_sequence_weight_is_the_geometric_mean_product_or_largest_ratio(agg: str, expected: float) -> None:
    config = section(CorrectionSpec, level="Sequence", mode="None", agg=agg, high=None)
    assert corrected(IMPORTANCE_WEIGHTS, config).weights.tolist() == pytest.approx([expected] * 3, rel=1e-4)


@pytest.mark.covers("algorithms 6.3", "algorithms 15")
@pytest.mark.parametrize(("length", "product"), [(10, 2.5937), (100, 13780.6)])
def test_products_punish_length_and_geometric_means_do_not(length: int, product: float) -> None:
    importance_weights = [1.1] * length
    total = section(CorrectionSpec, level="Sequence", mode="None", agg="Sum", high=None)
    mean = section(CorrectionSpec, level="Sequence", mode="None", agg="Mean", high=None)
    assert float(corrected(importance_weights, total).weights[0]) == pytest.approx(product, rel=1e-4)
    assert float(corrected(importance_weights, mean).weights[0]) == pytest.approx(1.1, rel=1e-4)


@pytest.mark.covers("algorithms 6.3")
def test_sequence_masking_drops_whole_rows_and_leaves_others() -> None:
    config = section(CorrectionSpec, level="Sequence", mode="Mask", agg="Sum", high=2.0)
    found = corrected([1.5, 1.5, 1.1, 1.1], config, [0, 0, 1, 1])
    assert found.keep_mask.tolist() == [False, False, True, True]
    assert found.weights.tolist() == pytest.approx([0.0, 0.0, 1.21, 1.21])


@pytest.mark.covers("algorithms 6.3")
def test_k_statistics_at_sequence_level_weigh_each_token_by_its_own_ratio() -> None:
    config = section(CorrectionSpec, level="Sequence", mode="Mask", metric="K3", agg="Mean", high=1.0)
    assert corrected([0.9, 1.2], config).weights.tolist() == pytest.approx([0.9, 1.2])


@pytest.mark.covers("algorithms 6.3", "algorithms 15")
def test_k_estimators_of_ratio_three() -> None:
    log_importance = torch.tensor([math.log(3.0)])
    assert float(kl.k1(log_importance)) == pytest.approx(-1.0986, abs=1e-4)
    assert float(kl.k2(log_importance)) == pytest.approx(0.6035, abs=1e-4)
    assert float(kl.k3(log_importance)) == pytest.approx(0.9014, abs=1e-4)


@pytest.mark.covers("algorithms 6.3", "algorithms 15")
def test_binary_kl_is_the_larger_direction() -> None:
    p, q = torch.tensor([math.log(0.6)]), torch.tensor([math.log(0.2)])
    assert float(kl.binary_kl(p, q)) == pytest.approx(0.3819, abs=1e-4)
    assert float(kl.binary_kl(q, p)) == pytest.approx(0.3819, abs=1e-4)


def test_binary_kl_of_certain_tokens_is_finite() -> None:
    assert math.isfinite(float(kl.binary_kl(torch.tensor([0.0]), torch.tensor([-30.0]))))


@pytest.mark.covers("algorithms 6.3")
def test_kpop_masks_by_binary_kl() -> None:
    config = section(CorrectionSpec, mode="Mask", metric="BinaryKL", high=0.38)
    proximal, behavior = torch.tensor([math.log(0.6), math.log(0.5)]), torch.tensor([math.log(0.2), math.log(0.5)])
    assert correction.correct(proximal, behavior, torch.zeros(2), rows_of([0, 0]), config).keep_mask.tolist() == [
        False,
        True,
    ]


@pytest.mark.covers("algorithms 6.3")
def test_mean_weight_is_over_tokens_or_over_rows() -> None:
    rows = rows_of([0, 0, 0, 1])
    kept = torch.ones(4, dtype=torch.bool)
    found = correction.Correction(torch.tensor([1.0, 1.0, 1.0, 3.0]), kept, kept)
    assert correction.mean_weight_terms(found, rows, CorrectionSpec()) == (6.0, 4.0)
    assert correction.mean_weight_terms(found, rows, section(CorrectionSpec, level="Sequence")) == (4.0, 2.0)


@settings(deadline=None)
@given(st.lists(st.floats(-25.0, 25.0), min_size=1, max_size=20), st.floats(0.1, 0.9), st.floats(1.1, 9.0))
def test_truncated_weights_never_leave_their_bounds(log_importance: list[float], low: float, high: float) -> None:
    config = section(CorrectionSpec, mode="Truncate", low=low, high=high)
    rows, zeros = rows_of([0] * len(log_importance)), torch.zeros(len(log_importance))
    found = correction.correct(torch.tensor(log_importance), zeros, zeros, rows, config)
    assert float(found.weights.min()) >= low * (1 - 1e-6)
    assert float(found.weights.max()) <= high * (1 + 1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=12))
def test_k3_is_never_negative(log_importance: list[float]) -> None:
    assert float(kl.k3(torch.tensor(log_importance, dtype=torch.float64)).min()) >= -1e-12


@pytest.mark.covers("algorithms 6.3")
@pytest.mark.parametrize(("advantages", "expected"), [("All", [False, False, True]), ("Negative", [False, True, True])])
def test_the_second_filter_may_spare_what_is_pushed_towards(advantages: str, expected: list[bool]) -> None:
    """Two rows have become half as likely, k1 = log 2 on average: one with an advantage below 0 and one above."""
    reject = section(RejectSpec, level="Sequence", metric="K1", agg="Mean", high=0.5, advantages=advantages)
    config = section(CorrectionSpec, mode="None", high=None, reject=reject)
    found = corrected([0.25, 1.0, 0.25, 1.0, 1.0], config, [0, 0, 1, 1, 2], [-1.0, -1.0, 2.0, 2.0, -1.0])
    assert found.keep_mask.tolist() == [
        keep for keep, count in zip(expected, (2, 2, 1), strict=True) for _ in range(count)
    ]
    assert found.weights.tolist() == pytest.approx([0.0, 0.0, *([0.25, 1.0] if expected[1] else [0.0, 0.0]), 1.0])


@pytest.mark.covers("algorithms 6.3")
def test_the_second_filter_masks_rows_and_leaves_the_first_ones_weights_to_the_rest() -> None:
    # Geometric means of the rows: sqrt(3) = 1.732 is out of 0.5 .. 1.7, sqrt(0.4 * 2.5) = 1 is in.
    reject = section(RejectSpec, level="Sequence", agg="Mean", low=0.5, high=1.7)
    config = section(CorrectionSpec, mode="Truncate", high=2.0, reject=reject)
    found = corrected([1.0, 3.0, 0.4, 2.5], config, index=[0, 0, 1, 1])
    assert found.keep_mask.tolist() == [False, False, True, True]
    assert found.weights.tolist() == pytest.approx([0.0, 0.0, 0.4, 2.0])


def test_a_token_stays_only_if_both_filters_keep_it() -> None:
    config = section(CorrectionSpec, mode="Mask", low=0.5, high=None, reject=section(RejectSpec, metric="K3", high=0.5))
    # k3 of 3 is 0.9014 and of 1.5 is 0.0945.
    assert corrected([0.4, 1.5, 3.0], config).keep_mask.tolist() == [False, True, False]
