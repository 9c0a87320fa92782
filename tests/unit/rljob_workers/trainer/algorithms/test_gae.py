"""Worked numbers of docs/design/algorithms.md#s-5-2 and #s-5-3, and invariants of the recursion."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.trainer.algorithms import advantages
from rljob_workers.trainer.algorithms.rows import Rows


def rows_of(*lengths: int) -> Rows:
    index = [row for row, length in enumerate(lengths) for _ in range(length)]
    return Rows(torch.tensor(index), torch.tensor(lengths, dtype=torch.float32))


def tokens(
    rewards: Sequence[float],
    values: Sequence[float],
    rows: Rows,
    *,
    gamma: float = 1.0,
    decay: float = 1.0,
    bootstrap: float = 0.0,
) -> advantages.Estimated:
    ones = torch.ones(len(rows.tokens), dtype=torch.float64)
    return advantages.over_tokens(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(values, dtype=torch.float64),
        rows,
        gamma=gamma,
        decay=decay * ones,
        bootstrap=bootstrap * ones,
    )


@pytest.mark.covers("algorithms 5.2", "algorithms 15")
def test_tokens_give_the_worked_numbers() -> None:
    made = tokens([0, 0, 1], [0.5, 0.6, 0.7], rows_of(3), decay=0.5)
    assert made.advantages.tolist() == pytest.approx([0.225, 0.25, 0.3])
    assert made.returns.tolist() == pytest.approx([0.725, 0.85, 1.0])


@pytest.mark.covers("algorithms 5.2", "algorithms 15")
def test_a_cut_answer_goes_on_with_the_value_after_its_last_token() -> None:
    made = tokens([0, 0, 0], [0.5, 0.6, 0.7], rows_of(3), decay=0.5, bootstrap=0.8)
    assert made.advantages.tolist() == pytest.approx([0.175, 0.15, 0.1])


def turns(
    rewards: Sequence[float], ids: Sequence[int], *, gamma: float, decay: float, values: Sequence[float] | None = None
) -> list[float]:
    made = advantages.over_turns(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(values or [0.0] * len(rewards), dtype=torch.float64),
        torch.tensor(ids),
        rows_of(len(rewards)),
        gamma=gamma,
        decay=torch.tensor([decay]),
        bootstrap=torch.zeros(1),
    )
    found: list[float] = made.advantages.tolist()
    return found


@pytest.mark.covers("algorithms 5.3", "algorithms 15")
def test_turns_give_the_worked_numbers() -> None:
    assert turns([0, 1, 0, 2], [0, 0, 1, 1], gamma=1.0, decay=0.0) == pytest.approx([1, 1, 2, 2])
    assert turns([1, 4], [0, 1], gamma=0.5, decay=1.0) == pytest.approx([3, 4])


@pytest.mark.covers("algorithms 5.3")
def test_an_unused_turn_takes_no_step_of_time() -> None:
    assert turns([1, 4], [0, 7], gamma=0.5, decay=1.0) == turns([1, 4], [0, 1], gamma=0.5, decay=1.0)


@pytest.mark.covers("algorithms 5.3")
def test_the_value_of_a_turn_is_that_of_its_first_token() -> None:
    """A = 1 - 0.25 for both tokens; the 9 of the second is never read."""
    assert turns([0, 1], [0, 0], gamma=1.0, decay=1.0, values=[0.25, 9.0]) == pytest.approx([0.75, 0.75])


def test_equal_turn_ids_of_neighbouring_rows_are_two_turns() -> None:
    made = advantages.over_turns(
        torch.tensor([1.0, 2.0]),
        torch.zeros(2),
        torch.tensor([0, 0]),
        rows_of(1, 1),
        gamma=1.0,
        decay=torch.ones(2),
        bootstrap=torch.zeros(2),
    )
    assert made.advantages.tolist() == [1.0, 2.0]


@pytest.mark.covers("algorithms 5.3", "algorithms 15")
@pytest.mark.parametrize(("length", "expected"), [(100, 0.8), (10, 0.0), (0, 0.0)])
def test_vapo_decay_rises_with_length(length: int, expected: float) -> None:
    assert float(advantages.vapo(torch.tensor([length]), alpha=0.05)) == pytest.approx(expected)


@pytest.mark.covers("algorithms 5.3", "algorithms 15")
@pytest.mark.parametrize(("length", "expected"), [(3, 0.5), (1, 1.0), (0, 0.0)])
def test_relative_position_decay(length: int, expected: float) -> None:
    assert float(advantages.relative_position(torch.tensor([length]), q=0.25)) == pytest.approx(expected)


numbers = st.floats(-5, 5, width=32)
ragged = st.lists(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), min_size=1, max_size=4)


@settings(deadline=None)
@given(made=ragged, gamma=st.floats(0, 1), decay=st.floats(0, 1))
def test_rows_of_any_length_side_by_side_equal_the_recursion_of_each(
    made: list[list[tuple[float, float]]], gamma: float, decay: float
) -> None:
    expected: list[float] = []
    for row in made:
        after, ahead, backwards = 0.0, 0.0, []
        for reward, value in reversed(row):
            after = reward + gamma * ahead - value + gamma * decay * after
            ahead = value
            backwards.append(after)
        expected += reversed(backwards)
    flat = [pair for row in made for pair in row]
    found = tokens(
        [pair[0] for pair in flat], [pair[1] for pair in flat], rows_of(*map(len, made)), gamma=gamma, decay=decay
    )
    assert found.advantages.tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.covers("algorithms 5.2")
@settings(deadline=None)
@given(rewards=st.lists(numbers, min_size=1, max_size=8))
def test_without_discount_decay_or_critic_every_token_gets_what_is_still_to_come(rewards: list[float]) -> None:
    found = tokens(rewards, [0.0] * len(rewards), rows_of(len(rewards))).advantages.tolist()
    assert found == pytest.approx([sum(rewards[at:]) for at in range(len(rewards))], abs=1e-9)


def test_turns_of_a_row_are_those_that_hold_tokens() -> None:
    rows = rows_of(3, 2)
    assert advantages.num_turns(torch.tensor([0, 2, 2, 2, 2]), rows).tolist() == [2, 1]
