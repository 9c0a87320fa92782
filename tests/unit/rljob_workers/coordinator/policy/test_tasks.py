import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import errors
from rljob_workers.coordinator.policy import prompts


def index(name: str = "a", size: int = 10, weight: float = 1.0) -> prompts.SourceIndex:
    return prompts.SourceIndex(name=name, prompt_ids=tuple(f"{name}{i}" for i in range(size)), weight=weight)


def ids(refs: list[prompts.PromptRef]) -> list[str]:
    return [ref.prompt_id for ref in refs]


@given(st.integers(0, 2**31), st.lists(st.integers(1, 7), min_size=1, max_size=8))
def test_a_resumed_cursor_continues_the_same_sequence(seed: int, cuts: list[int]) -> None:
    whole = prompts.TaskOrder([index()], seed=seed).take(prompts.Cursor(), sum(cuts))[0]
    cursor, parts = prompts.Cursor(), []
    for count in cuts:
        # A new object each time: nothing but the cursor is carried over.
        taken, cursor = prompts.TaskOrder([index()], seed=seed).take(cursor, count)
        parts += taken
    assert parts == whole


def test_prompts_that_are_drawn_sooner_or_later_are_counted() -> None:
    sources = [index("a", 10), index("b", 4, weight=0.5), index("c", 4, weight=0.1), index("d", 3, weight=2.0)]
    # A tenth of four records rounds to none.
    assert prompts.TaskOrder(sources, seed=1).num_prompts == 10 + 4 + 3


@pytest.mark.covers("algorithms 8")
def test_each_epoch_holds_every_prompt_once_in_another_order() -> None:
    order = prompts.TaskOrder([index("a", 20), index("b", 10)], seed=3)
    first, second = ids(order.order(0)), ids(order.order(1))
    assert sorted(first) == sorted(second) == sorted([*index("a", 20).prompt_ids, *index("b", 10).prompt_ids])
    assert first != second


def test_another_seed_gives_another_order() -> None:
    assert ids(prompts.TaskOrder([index()], seed=1).order(0)) != ids(prompts.TaskOrder([index()], seed=2).order(0))


def test_without_shuffling_the_order_is_that_of_the_files() -> None:
    order = prompts.TaskOrder([index("b", 2), index("a", 2)], seed=3, shuffle=False)
    assert ids(order.order(5)) == ["b0", "b1", "a0", "a1"]


def test_a_weight_says_how_often_an_epoch_holds_a_source() -> None:
    order = prompts.TaskOrder([index("a", 10, 2.5), index("b", 10, 0.3)], seed=3)
    drawn = ids(order.order(0))
    assert sum(name.startswith("a") for name in drawn) == 25
    assert sum(name.startswith("b") for name in drawn) == 3
    assert {drawn.count(f"a{i}") for i in range(10)} == {2, 3}


def test_the_share_of_a_source_is_drawn_anew_each_epoch() -> None:
    order = prompts.TaskOrder([index("a", 100, 0.1)], seed=3)
    assert set(ids(order.order(0))) != set(ids(order.order(1)))


def test_the_sequence_ends_with_the_last_epoch() -> None:
    order = prompts.TaskOrder([index("a", 3)], seed=3, epochs=2)
    taken, cursor = order.take(prompts.Cursor(), 100)
    assert len(taken) == 6
    assert order.take(cursor, 1)[0] == []
    assert (order.ended(prompts.Cursor(1, 2)), order.ended(cursor)) == (False, True)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000])
def test_a_permutation_of_any_size_is_one(size: int) -> None:
    places = prompts.permuted(np.arange(size), size=size, key=("k",))
    assert sorted(places) == list(range(size))


def test_a_place_of_a_permutation_does_not_depend_on_which_others_are_asked_for() -> None:
    whole = prompts.permuted(np.arange(1000), size=1000, key=("k", 1))
    assert [int(prompts.permuted(np.array([place]), size=1000, key=("k", 1))[0]) for place in (0, 7, 999)] == [
        int(whole[place]) for place in (0, 7, 999)
    ]


def test_every_prompt_comes_to_every_place_about_equally_often() -> None:
    """Chi-square of 16 prompts on 16 places over 4,000 seeds; 225 degrees of freedom, so above 320 is one in 10^5."""
    seen = np.zeros((16, 16))
    for seed in range(4000):
        seen[np.arange(16), prompts.permuted(np.arange(16), size=16, key=("order", seed, 0))] += 1
    assert float(((seen - 250) ** 2 / 250).sum()) < 320


def test_neighbours_in_the_file_are_no_neighbours_in_the_epoch() -> None:
    places = prompts.permuted(np.arange(100_000), size=100_000, key=("order", 1, 0))
    steps = np.abs(np.diff(places))
    assert 0.32 < float(steps.mean()) / 100_000 < 0.35, "a third of the size, as of places drawn by chance"


class _Ids(tuple[str, ...]):
    """Prompt ids that count how many of them are read."""

    num_read = 0

    def __getitem__(self, key: Any) -> Any:
        type(self).num_read += 1
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        raise AssertionError("an epoch is not walked through")


@pytest.mark.covers("algorithms 8")
def test_the_first_prompts_of_an_epoch_do_not_cost_the_whole_epoch() -> None:
    """A million and a half of prompts: an epoch that is sorted first would keep the ledger's thread for seconds."""
    source = prompts.SourceIndex(name="a", prompt_ids=_Ids(["p"] * 1_000_000), weight=1.5)
    order = prompts.TaskOrder([source], seed=3)
    taken, _ = order.take(prompts.Cursor(4, 1_400_000), 64)
    assert (len(taken), _Ids.num_read) == (64, 64)


@pytest.mark.covers("algorithms 8")
def test_the_order_of_a_seed_and_epoch_is_the_same_for_ever() -> None:
    """A run that continues with a newer program must see the same sequence: these are of version 2 and of version 1."""
    assert [ref.index for ref in prompts.TaskOrder([index()], seed=7).order(3)] == FIXED
    first = prompts.TaskOrder([index()], seed=7, version=1).order(3)
    by_hash = sorted(range(10), key=lambda place: prompts.derive(7, 3, "a", f"a{place}", 0))
    assert [ref.index for ref in first] == by_hash


def _slowly(size: int, key: tuple[str | int, ...]) -> list[int]:
    """The permutation of version 2, one place and one bit operation at a time."""
    whole = 2**64
    half = max(1, -(-(size - 1).bit_length() // 2))

    def mixed(value: int) -> int:
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % whole
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % whole
        return value ^ (value >> 31)

    def walk(place: int) -> int:
        while True:
            left, right = place >> half, place % 2**half
            for number in range(6):
                left, right = right, left ^ mixed(right ^ prompts.derive(*key, number)) % 2**half
            place = (left << half) + right
            if place < size:
                return place

    return [walk(place) for place in range(size)]


FIXED = _slowly(10, ("order", 7, 3))


def test_sources_without_a_prompt_are_refused() -> None:
    with pytest.raises(errors.DataError, match="hold no prompt"):
        prompts.TaskOrder([index("a", 0)], seed=3)


def test_seeds_differ_by_prompt_epoch_attempt_and_copy() -> None:
    refs = [
        prompts.PromptRef(source="a", index=0, prompt_id=p, epoch=e, copy=c)
        for p in "xy"
        for e in (0, 1)
        for c in (0, 1)
    ]
    found = {prompts.group_seed(seed=1, ref=ref, attempt=attempt) for ref in refs for attempt in (0, 1)}
    assert len(found) == 16


def test_a_hash_knows_where_its_parts_end() -> None:
    assert prompts.derive("ab", "c") != prompts.derive("a", "bc")


def test_a_hash_is_the_same_on_every_machine_and_in_every_process() -> None:
    # BLAKE2b-64 of the parts, each after its length as u32; the upper bit is dropped.
    parts = b"\x01\x00\x00\x001" + b"\x01\x00\x00\x00x"
    whole = int.from_bytes(hashlib.blake2b(parts, digest_size=8).digest(), "little")
    assert prompts.derive(1, "x") == whole % 2**63


def test_the_digest_of_the_data_changes_with_any_id_and_with_the_weights() -> None:
    same = prompts.digest([index()])
    assert prompts.digest([index()]) == same
    assert prompts.digest([index(size=11)]) != same
    assert prompts.digest([index(weight=2.0)]) != same
