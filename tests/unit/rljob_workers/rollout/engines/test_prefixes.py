"""What a prefix cache could hold, in blocks of 4 tokens worked by hand."""

from rljob_api import types
from rljob_workers.rollout.engines import prefixes

V0, V1 = types.VersionId(0), types.VersionId(1)


def test_whole_blocks_that_an_earlier_prompt_began_with_are_repeated() -> None:
    known = prefixes.Prefixes(block_tokens=4)
    assert known.ask(range(10), version=V0) == 0
    assert known.ask([*range(9), 99, 100], version=V0) == 8
    assert known.ask([*range(7), 99, 100, 101], version=V0) == 4
    assert known.ask([5, *range(10)], version=V0) == 0


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    known = prefixes.Prefixes(block_tokens=4)
    known.ask(range(8), version=V0)
    assert known.ask(range(8), version=V0) == 4
    assert known.ask(range(9), version=V0) == 8


def test_an_answer_is_repeated_by_the_next_turn() -> None:
    known = prefixes.Prefixes(block_tokens=4)
    known.ask(range(5), version=V0)
    known.add(range(12), version=V0)
    assert known.ask(range(15), version=V0) == 12


def test_a_later_block_is_not_repeated_where_an_earlier_one_differs() -> None:
    known = prefixes.Prefixes(block_tokens=4)
    known.ask([0, 0, 0, 0, 7, 7, 7, 7], version=V0)
    assert known.ask([1, 1, 1, 1, 7, 7, 7, 7, 9], version=V0) == 0


def test_nothing_of_another_version_is_repeated() -> None:
    known = prefixes.Prefixes(block_tokens=4)
    known.ask(range(9), version=V0)
    assert known.ask(range(9), version=V1) == 0
    # Its answer ends after the update.
    known.add(range(20), version=V0)
    assert known.ask(range(20), version=V1) == 8


def test_memory_is_bounded() -> None:
    known = prefixes.Prefixes(block_tokens=4, most_blocks=10)
    for first in range(50):
        known.ask([first] * 20, version=V0)
        assert len(known._blocks) < 10 + 5
