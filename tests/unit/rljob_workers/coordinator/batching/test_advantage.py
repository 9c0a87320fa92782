"""Worked numbers of docs/design/algorithms.md#s-5-1 and #s-15; eps is 0 there, so it is tiny here."""

import math
import statistics
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.manifest.algorithm import NormalizeSpec
from rljob_testing.sections import section
from rljob_workers.coordinator.batching import advantage

TINY = 1e-15
GRPO = section(NormalizeSpec, mean="Group", std="Group", eps=TINY)
DRGRPO = section(NormalizeSpec, mean="Group", std="None")
RLOO = section(NormalizeSpec, mean="Group", std="None", leave_one_out=True)
LITEPPO = section(NormalizeSpec, mean="Group", std="Batch", std_center="Own", eps=TINY)


def biased(config: NormalizeSpec) -> NormalizeSpec:
    return config.model_copy(update={"unbiased": False})


@pytest.mark.covers("algorithms 5", "algorithms 5.1", "algorithms 15", "workflows 6.3")
@pytest.mark.parametrize(
    ("config", "rewards", "sizes", "expected"),
    [
        pytest.param(GRPO, [1, 0, 0, 0], [4], [1.5, -0.5, -0.5, -0.5], id="grpo, unbiased"),
        pytest.param(biased(GRPO), [1, 0, 0, 0], [4], [1.7321, -0.5774, -0.5774, -0.5774], id="grpo, biased"),
        pytest.param(DRGRPO, [1, 1, 0, 0, 0], [5], [0.6, 0.6, -0.4, -0.4, -0.4], id="drgrpo"),
        pytest.param(RLOO, [1, 1, 0, 0, 0], [5], [0.75, 0.75, -0.5, -0.5, -0.5], id="rloo"),
        pytest.param(
            biased(GRPO), [1, 3, 0, 0, 6], [2, 3], [-1, 1, -0.7071, -0.7071, 1.4142], id="groups of their true sizes"
        ),
        pytest.param(LITEPPO, [1, 0, 1, 1], [2, 2], [1, -1, 0, 0], id="liteppo around the batch's own mean"),
        pytest.param(
            LITEPPO.model_copy(update={"std_center": "Subtracted"}), [1, 0, 1, 1], [2, 2], [1.2247, -1.2247, 0, 0],
            id="batch std around what was subtracted",
        ),
    ],
)  # fmt: skip
def test_advantages_are_those_of_the_worked_examples(
    config: NormalizeSpec, rewards: list[float], sizes: list[int], expected: list[float]
) -> None:
    assert advantage.normalize(config, rewards, sizes) == pytest.approx(expected, abs=5e-5)


@pytest.mark.covers("algorithms 5.1", "workflows 6.3")
@pytest.mark.parametrize("config", [GRPO, DRGRPO, RLOO, LITEPPO])
def test_a_singleton_and_a_group_of_equals_give_exactly_zero(config: NormalizeSpec) -> None:
    third = 1 / 3  # a value whose sums are not exact
    found = advantage.normalize(config, [5.0, third, third, third, 1.0, 0.0], [1, 3, 2])
    assert found[:4] == [0.0, 0.0, 0.0, 0.0]
    assert found[4] > 0 > found[5]


@pytest.mark.covers("algorithms 5.1")
def test_without_mean_and_std_rewards_pass_unchanged() -> None:
    none = section(NormalizeSpec, mean="None", std="None")
    assert advantage.normalize(none, [2.0, 2.0, -1.0], [2, 1]) == [2.0, 2.0, -1.0]


@pytest.mark.covers("algorithms 5.1")
def test_eps_is_added_to_the_deviation() -> None:
    config = GRPO.model_copy(update={"eps": 0.5})
    assert advantage.normalize(config, [1, 0, 0, 0], [4])[0] == pytest.approx(0.75)  # 0.75 / (0.5 + 0.5)


@pytest.mark.covers("algorithms 4", "workflows 6.3")
@pytest.mark.parametrize("sizes", [[2, 2], [3, 0], [4]])
def test_sizes_that_do_not_partition_the_rows_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="partition"):
        advantage.normalize(GRPO, [1.0, 0.0, 1.0], sizes)


rewards_of_groups = st.lists(
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0]), min_size=1, max_size=6), min_size=1, max_size=5
)


@pytest.mark.covers("workflows 6.3", "workflows 12")
@given(rewards_of_groups)
def test_grpo_centres_and_scales_each_group_alone(groups: list[list[float]]) -> None:
    flat, sizes = [reward for group in groups for reward in group], [len(group) for group in groups]
    found = advantage.normalize(GRPO, flat, sizes)
    for start, group in zip([sum(sizes[:i]) for i in range(len(sizes))], groups, strict=True):
        block = found[start : start + len(group)]
        if len(set(group)) == 1:
            assert block == [0.0] * len(group)
        else:
            assert statistics.fmean(block) == pytest.approx(0, abs=1e-9)
            assert statistics.stdev(block) == pytest.approx(1, rel=1e-9)


@pytest.mark.covers("algorithms 5.1")
@pytest.mark.parametrize("config", [GRPO, DRGRPO, RLOO])
@given(group=st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0]), min_size=2, max_size=6), random=st.randoms())
def test_the_order_of_the_members_of_a_group_does_not_matter(
    config: NormalizeSpec, group: list[float], random: "object"
) -> None:
    order = list(range(len(group)))
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    straight = advantage.normalize(config, group, [len(group)])
    shuffled = advantage.normalize(config, [group[index] for index in order], [len(group)])
    assert shuffled == pytest.approx([straight[index] for index in order], rel=1e-12, abs=1e-12)


@pytest.mark.covers("algorithms 5.1")
@pytest.mark.parametrize("config", [GRPO, DRGRPO, RLOO])
@given(
    group=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]), min_size=2, max_size=6),
    more=st.sampled_from([-8.0, 0.5, 64.0]),
)
def test_what_all_members_of_a_group_earn_more_changes_no_advantage(
    config: NormalizeSpec, group: list[float], more: float
) -> None:
    found = advantage.normalize(config, [reward + more for reward in group], [len(group)])
    assert found == pytest.approx(advantage.normalize(config, group, [len(group)]), rel=1e-9, abs=1e-9)


@pytest.mark.covers("algorithms 5.1")
@pytest.mark.parametrize("config", [GRPO, DRGRPO, RLOO, LITEPPO])
@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 9))
def test_equal_rewards_of_any_value_give_exactly_zero(config: NormalizeSpec, reward: float, size: int) -> None:
    assert advantage.normalize(config, [reward] * size + [1.0, 0.0], [size, 2])[:size] == [0.0] * size


@given(rewards_of_groups, st.randoms())
def test_the_order_of_groups_does_not_matter(groups: list[list[float]], random: "object") -> None:
    order = list(range(len(groups)))
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    shuffled = [groups[index] for index in order]
    straight = _blocks(groups)
    assert all(
        math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12)
        for index, block in zip(order, _blocks(shuffled), strict=True)
        for a, b in zip(block, straight[index], strict=True)
    )


def _blocks(groups: list[list[float]]) -> list[list[float]]:
    sizes = [len(group) for group in groups]
    found = advantage.normalize(LITEPPO, [reward for group in groups for reward in group], sizes)
    return [found[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]


class _CountedSizes(list[int]):
    """Group sizes that count how many of them are read."""

    num_read = 0

    def __iter__(self) -> Iterator[int]:
        for size in super().__iter__():
            self.num_read += 1
            yield size

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.num_read += len(found) if isinstance(found, list) else 1
        return found


def test_a_step_of_many_groups_costs_as_much_a_group_as_one_of_few() -> None:
    """65,536 groups are allowed: reading all sizes before each of them would take half a minute."""
    sizes = _CountedSizes([1] * 4096)
    advantage.normalize(GRPO, [1.0] * 4096, sizes)
    assert sizes.num_read <= 10 * len(sizes)
