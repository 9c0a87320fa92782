"""Normalisation over tokens, docs/design/algorithms.md#s-5-1."""

import functools
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.manifest.algorithm import NormalizeSpec
from rljob_testing import ranks
from rljob_testing.sections import section
from rljob_workers.coordinator.batching import advantage
from rljob_workers.trainer.algorithms import advantages

PRESET = section(NormalizeSpec, mean="Batch", std="Batch", eps=0.0)


def part_of(values: Sequence[float], groups: Sequence[int] | None = None) -> advantages.Part:
    return advantages.Part(
        torch.tensor(values, dtype=torch.float64), torch.tensor(groups or [0] * len(values), dtype=torch.int64)
    )


def normalize(
    parts: Sequence[Sequence[float]], config: NormalizeSpec, groups: Sequence[Sequence[int]] | None = None
) -> list[float]:
    made = [part_of(part, None if groups is None else groups[at]) for at, part in enumerate(parts)]
    found = advantages.normalize(made, config, counted=len(made), total=list, largest=list)
    return [value for part in found for value in part.tolist()]


def test_long_rows_weigh_more() -> None:
    assert normalize([[1.0], [-1.0, -1.0, -1.0]], PRESET) == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_biased_statistics_divide_by_the_number_of_tokens() -> None:
    """Squares 2.25 + 3 x 0.25 = 3 over 4: sigma 0.8660."""
    found = normalize([[1.0], [-1.0, -1.0, -1.0]], PRESET.model_copy(update={"unbiased": False}))
    assert found == pytest.approx([1.7321, -0.5774, -0.5774, -0.5774], abs=5e-5)


def test_leaving_one_out_subtracts_the_mean_of_the_others() -> None:
    config = section(NormalizeSpec, mean="Batch", std="None", leave_one_out=True)
    assert normalize([[1.0, 1.0], [0.0, 0.0, 0.0]], config) == pytest.approx([0.75, 0.75, -0.5, -0.5, -0.5])


@pytest.mark.parametrize(("center", "expected"), [("Subtracted", math.sqrt(5.0)), ("Own", 1.0)])
def test_without_a_mean_the_squares_are_around_zero_or_around_their_own(center: str, expected: float) -> None:
    """[1, 3] biased: around 0 (1 + 9) / 2 = 5; around 2 it is 1."""
    config = section(NormalizeSpec, mean="None", std="Batch", unbiased=False, eps=0.0, std_center=center)
    assert normalize([[1.0, 3.0]], config) == pytest.approx([1 / expected, 3 / expected])


def test_equal_values_give_exactly_zero_and_one_token_too() -> None:
    assert normalize([[0.3, 0.3], [0.3]], section(NormalizeSpec, mean="Batch", std="Batch")) == [0.0, 0.0, 0.0]
    assert normalize([[0.7]], PRESET) == [0.0]


@pytest.mark.covers("algorithms 5.1")
def test_a_step_of_one_token_divides_by_one() -> None:
    config = section(NormalizeSpec, mean="None", std="Batch", eps=0.0)
    assert normalize([[0.7]], config) == [0.7]


def test_repeated_tokens_of_later_epochs_are_normalised_and_not_counted() -> None:
    once = [part_of([1.0]), part_of([-1.0, -1.0, -1.0])]
    found = advantages.normalize([*once, once[0]], PRESET, counted=2, total=list, largest=list)
    assert float(found[2]) == float(found[0]) == pytest.approx(1.5)


@pytest.mark.covers("algorithms 5.1")
def test_each_group_is_normalised_by_its_own_tokens() -> None:
    """[2, 0] around 1 with sigma sqrt 2; [5, 5] are equal and give exactly 0."""
    config = section(NormalizeSpec, mean="Group", std="Group", eps=0.0)
    found = normalize([[2.0, 5.0], [0.0, 5.0]], config, [[0, 1], [0, 1]])
    assert found == pytest.approx([0.7071, 0.0, -0.7071, 0.0], abs=5e-5)
    assert found[1] == found[3] == 0.0


@pytest.mark.covers("algorithms 5.1")
@pytest.mark.parametrize(("center", "sigma"), [("Own", 0.5), ("Subtracted", math.sqrt(0.5 / 3))])
def test_a_group_mean_may_stand_over_the_deviation_of_the_batch(center: str, sigma: float) -> None:
    """liteppo's [1, 0 / 1, 1] over tokens, unbiased: around 0.75 squares 0.75 / 3; around group means 0.5 / 3."""
    config = section(NormalizeSpec, mean="Group", std="Batch", eps=0.0, std_center=center)
    found = normalize([[1.0, 0.0, 1.0, 1.0]], config, [[0, 0, 1, 1]])
    assert found == pytest.approx([0.5 / sigma, -0.5 / sigma, 0.0, 0.0])


def test_the_batch_mean_may_stand_over_the_deviation_of_each_group() -> None:
    """Mean 2. Around it group 0 has [-2, 0] / (2 - 1), group 1 [2] alone: sigma 1 by definition."""
    config = section(NormalizeSpec, mean="Batch", std="Group", eps=0.0)
    assert normalize([[0.0, 2.0, 4.0]], config, [[0, 0, 1]]) == pytest.approx([-1.0, 0.0, 2.0])


def test_leaving_one_out_of_its_group_gives_a_lone_token_exactly_zero() -> None:
    config = section(NormalizeSpec, mean="Group", std="None", leave_one_out=True)
    assert normalize([[1.0, 0.0, 0.0, 7.0]], config, [[0, 0, 0, 1]]) == pytest.approx([1.0, -0.5, -0.5, 0.0])


@pytest.mark.covers("algorithms 5.1")
@pytest.mark.parametrize("level", ["Batch", "Group"])
def test_statistics_are_those_of_all_ranks(level: str) -> None:
    """A group may lie on both ranks; what each gets is what one rank with all tokens gives."""
    config = section(NormalizeSpec, mean=level, std=level, eps=0.0)
    mine, theirs = part_of([1.0, 4.0], [0, 1]), part_of([-1.0, -1.0, 2.0, -1.0], [0, 0, 1, 0])
    whole = part_of([1.0, 4.0, -1.0, -1.0, 2.0, -1.0], [0, 1, 0, 0, 1, 0])
    (expected,) = advantages.normalize([whole], config, counted=1, total=list, largest=list)
    found = ranks.run(
        [
            lambda reduce: advantages.normalize([mine], config, counted=1, total=reduce.total, largest=reduce.largest),
            lambda reduce: advantages.normalize(
                [theirs], config, counted=1, total=reduce.total, largest=reduce.largest
            ),
        ]
    )
    assert [value for (part,) in found for value in part.tolist()] == pytest.approx(expected.tolist())


def test_a_rank_without_tokens_takes_part() -> None:
    found = ranks.run(
        [
            lambda reduce: advantages.normalize([], PRESET, counted=0, total=reduce.total, largest=reduce.largest),
            lambda reduce: advantages.normalize(
                [part_of([1.0]), part_of([-1.0] * 3)], PRESET, counted=2, total=reduce.total, largest=reduce.largest
            ),
        ]
    )
    assert found[0] == []
    assert [value for part in found[1] for value in part.tolist()] == pytest.approx([1.5, -0.5, -0.5, -0.5])


values = st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=12)


@settings(deadline=None)
@given(made=values, data=st.data())
def test_neither_order_nor_split_changes_a_token(made: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(made)))
    order = data.draw(st.permutations(range(len(made))))
    config = section(NormalizeSpec, mean="Batch", std="Batch")
    whole = normalize([made], config)
    shuffled = [made[at] for at in order]
    split = normalize([shuffled[:cut], shuffled[cut:]], config)
    assert split == pytest.approx([whole[at] for at in order], abs=1e-6)


normalizations = st.builds(
    functools.partial(section, NormalizeSpec),
    mean=st.sampled_from(["None", "Group", "Batch"]),
    std=st.sampled_from(["None", "Group", "Batch"]),
    leave_one_out=st.booleans(),
    unbiased=st.booleans(),
    std_center=st.sampled_from(["Own", "Subtracted"]),
)


@pytest.mark.covers("algorithms 5.1")
@settings(deadline=None, max_examples=150)
@given(
    groups=st.lists(
        st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=4), min_size=1, max_size=4
    ),
    config=normalizations,
)
def test_rows_of_one_token_are_normalised_as_the_coordinator_normalises_rows(
    groups: list[list[float]], config: NormalizeSpec
) -> None:
    """Two codes for one formula: plain lists there, tensors over ranks here."""
    flat = [value for group in groups for value in group]
    places = [index for index, group in enumerate(groups) for _ in group]
    expected = advantage.normalize(config, flat, [len(group) for group in groups])
    assert normalize([flat], config, [places]) == pytest.approx(expected, rel=1e-9, abs=1e-9)
