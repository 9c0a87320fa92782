"""The coefficient that follows a target and the choice of tokens, docs/design/algorithms.md#s-6-6, by plain torch."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.manifest.algorithm import EntropySpec
from rljob_testing import ranks
from rljob_testing.sections import make_spec, section
from rljob_workers.trainer.algorithms import entropy

TARGET = section(EntropySpec, target=0.2, delta=0.005, max_coef=0.011)


def followed(entropies: Sequence[float | None], spec: EntropySpec, *, first: float = 0.0) -> list[float]:
    """Return the coefficient that is applied in each step, and in the one after the last."""
    adaptive = entropy.AdaptiveCoefficient(first)
    applied = [adaptive.applied(spec)]
    for value in entropies:
        adaptive.follow(value, spec)
        applied.append(adaptive.applied(spec))
    return applied


@pytest.mark.covers("algorithms 6.6")
def test_the_coefficient_rises_below_the_target_up_to_its_bound() -> None:
    assert followed([0.1] * 4, TARGET) == pytest.approx([0.0, 0.005, 0.01, 0.011, 0.011])


@pytest.mark.covers("algorithms 6.6")
def test_above_the_target_there_is_no_bonus_and_the_coefficient_falls_to_zero() -> None:
    # 0.008 falls to 0.003 and 0 while the entropy is high; one low step brings the first 0.005 back.
    assert followed([0.3, 0.3, 0.1], TARGET, first=0.008) == pytest.approx([0.008, 0.0, 0.0, 0.005])


def test_an_entropy_at_the_target_changes_nothing_and_the_bonus_goes_on() -> None:
    assert followed([0.2], TARGET, first=0.004) == [0.004, 0.004]


@pytest.mark.parametrize("unmeasured", [None, math.nan, math.inf])
def test_a_step_in_which_nothing_was_measured_changes_nothing(unmeasured: float | None) -> None:
    assert followed([unmeasured], TARGET, first=0.004) == [0.004, 0.004]


def test_without_a_target_the_coefficient_is_the_manifests() -> None:
    assert followed([0.0, 9.0], EntropySpec(), first=0.01) == [0.01] * 3


@given(st.lists(st.floats(0.0, 1.0), max_size=30), st.floats(0.0, 0.011))
@settings(max_examples=50, deadline=None)
def test_the_coefficients_are_those_of_the_update_in_torch(entropies: list[float], first: float) -> None:
    value, expected = torch.tensor(first, dtype=torch.float64), [first]
    for measured in entropies:
        gap = torch.tensor(0.2 - measured, dtype=torch.float64)
        value = torch.clamp(value + 0.005 * torch.sign(gap), 0.0, 0.011)
        expected.append(float(torch.where(gap < 0, torch.zeros_like(value), value)))
    assert followed(entropies, TARGET, first=first) == pytest.approx(expected, abs=1e-6)


def test_a_run_goes_on_from_a_checkpoint_only_where_there_is_still_a_target() -> None:
    changes = {"algorithm.loss.entropyCoef": "0.001", "algorithm.entropy.target": "0.2"}
    with_target, without = make_spec(changes).algorithm, make_spec({"algorithm.loss.entropyCoef": "0.001"}).algorithm
    of = entropy.AdaptiveCoefficient.of
    assert of(with_target, coef=0.007, entropy=0.1) == entropy.AdaptiveCoefficient(0.007, 0.1)
    assert of(without, coef=0.007, entropy=0.1) == entropy.AdaptiveCoefficient(0.001)
    assert of(with_target) == entropy.AdaptiveCoefficient(0.001)


def chosen(entropies: Sequence[float], top_quantile: float) -> list[bool]:
    part = torch.tensor(entropies, dtype=torch.float32)
    (cut,) = entropy.cuts([part], top_quantile, total=list)
    found: list[bool] = (entropy.comparable(part) >= cut).tolist()
    return found


@pytest.mark.covers("algorithms 6.6")
def test_a_fifth_of_ten_tokens_are_the_two_of_the_highest_entropy() -> None:
    assert chosen([0.1, 0.9, 0.3, 0.8, 0.2, 0.0, 0.5, 0.4, 0.6, 0.7], 0.2) == [
        False, True, False, True, False, False, False, False, False, False,
    ]  # fmt: skip


def test_a_share_that_is_no_whole_number_of_tokens_is_rounded_up() -> None:
    assert chosen([0.1, 0.2, 0.3], 0.34) == [False, True, True]
    assert sum(chosen([float(index) for index in range(30)], 0.1)) == 3, "0.1 times 30 is 3, whatever its last bit"


def test_equal_entropies_stay_together() -> None:
    assert chosen([0.5, 0.5, 0.5, 0.1], 0.25) == [True, True, True, False]


def test_entropies_that_are_not_finite_count_as_the_lowest() -> None:
    assert chosen([math.nan, 0.2, math.inf, 0.1], 0.5) == [False, True, False, True]


def test_each_minibatch_has_a_cut_of_its_own() -> None:
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]), torch.zeros(0)]
    assert entropy.cuts(parts, 0.5, total=list)[:2] == [2.0, 20.0]


@given(
    st.lists(st.floats(0.0, 12.0, width=32), min_size=1, max_size=40),
    st.sampled_from([0.05, 0.2, 0.5, 0.8, 1.0]),
)
@settings(max_examples=50, deadline=None)
def test_the_cut_is_the_entropy_of_the_last_token_that_torch_takes(values: list[float], top_quantile: float) -> None:
    whole = torch.tensor(values, dtype=torch.float32)
    num_chosen = -(-len(values) * round(top_quantile * 100) // 100)
    expected = float(torch.topk(whole, num_chosen).values[-1])
    assert entropy.cuts([whole], top_quantile, total=list) == pytest.approx([expected], abs=1e-6)


def test_two_ranks_find_the_cut_of_all_their_tokens() -> None:
    whole = torch.tensor([0.1, 0.9, 0.3, 0.8, 0.2, 0.0, 0.5, 0.4, 0.6, 0.7])

    def of(part: torch.Tensor) -> Callable[[ranks.Reduce], list[float]]:
        return lambda reduce: entropy.cuts([part], 0.3, total=reduce.total)

    assert ranks.run([of(whole[:3]), of(whole[3:])]) == [entropy.cuts([whole], 0.3, total=list)] * 2
