"""Blocks: rows that are laid out as one tree, what they begin with once. The unit that packing moves around. Pure.

Rows in the order of their ids, a row behind those that it is a prefix of, and how many tokens each has in common with
the one before it: that is their radix tree in two flat lists. A row adds the tokens that it has not in common. Any of
the rows, in this order, are a tree again: what two of them have in common is the least of what lies between.

    rows                common          tree
    1 2 3 4 5           0               1 2 3 --- 4 5
    1 2 3 6 7 8         3                   `---- 6 --- 7 8
    1 2 3 6 9           4                         `---- 9
    1 2 3 6             4
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from rljob_api import types

# Groups that begin with as many equal tokens are one tree: with the same system prompt, tools or worked examples. Fewer
# save little, and a device without `flex` computes small trees faster than a large one.
SHARED_TOKENS = 16
# Above any token, so that a row is sorted behind those that it is a prefix of.
_END = b"\xff\xff\xff\xff"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Rows in the order of their tree. common [rows]: tokens that each begins with as the one before it does, 0 for the
    first.
    """

    rows: tuple[types.TrainSample, ...]
    common: tuple[int, ...]

    @functools.cached_property
    def num_tokens(self) -> int:
        """Return how many tokens the block takes in a micro-batch."""
        return sum(len(row.tokens) for row in self.rows) - sum(self.common)

    @property
    def picture_bytes(self) -> int:
        """Return the bytes of the pictures that its rows begin with."""
        return sum(len(picture.data) for picture in self.rows[0].pictures)

    @functools.cached_property
    def first_row(self) -> int:
        """Return the smallest row index; ties are broken by it."""
        return min(row.row for row in self.rows)

    def part(self, chosen: Sequence[int]) -> "Block":
        """Return the block of some of the rows, given their places in ascending order."""
        between = (min(self.common[before + 1 : after + 1]) for before, after in itertools.pairwise(chosen))
        return Block(rows=tuple(self.rows[place] for place in chosen), common=(0, *between))


def trees(rows: Iterable[types.TrainSample]) -> list[Block]:
    """Return the rows of each group that begin with the same token as one block, in the order of their first rows."""
    groups: dict[str, list[types.TrainSample]] = {}
    for row in sorted(rows, key=lambda row: row.row):
        groups.setdefault(row.group_id, []).append(row)
    of_groups = [tree for members in groups.values() for tree in _trees(members)]
    return sorted(of_groups, key=lambda block: block.first_row)


def merged(among: Iterable[Block]) -> list[Block]:
    """Return blocks that begin with the same `SHARED_TOKENS` as one, whatever their groups; order of first rows."""
    alike: dict[object, list[Block]] = {}
    for place, block in enumerate(among):
        alike.setdefault(_beginning(block.rows[0]) or place, []).append(block)
    ones = (same[0] if len(same) == 1 else _one_tree(same) for same in alike.values())
    return sorted(ones, key=lambda block: block.first_row)


def _beginning(row: types.TrainSample) -> bytes | None:
    """Return what blocks are compared by; None for too short a row, and with pictures, which are equal in tokens."""
    return row.tokens[:SHARED_TOKENS].tobytes() if len(row.tokens) >= SHARED_TOKENS and not row.pictures else None


def _one_tree(alike: Sequence[Block]) -> Block:
    (tree,) = _trees([row for block in alike for row in block.rows])
    return tree


def _trees(members: Sequence[types.TrainSample]) -> list[Block]:
    ordered = sorted(members, key=lambda row: row.tokens.tobytes() + _END)
    tokens = [ints(row.tokens) for row in ordered]
    common = [0, *itertools.starmap(_common, itertools.pairwise(tokens))]
    starts = [place for place, count in enumerate(common) if not count]
    bounds = itertools.pairwise([*starts, len(ordered)])
    return [Block(rows=tuple(ordered[start:end]), common=tuple(common[start:end])) for start, end in bounds]


def _common(first: "Array", second: "Array") -> int:
    """Return how many tokens both begin with."""
    length = min(len(first), len(second))
    differ = first[:length] != second[:length]
    place = int(differ.argmax())
    return place if differ[place] else length


@dataclasses.dataclass(slots=True)
class _Part:
    """Places of rows in their block, and the tokens that they take together."""

    places: list[int]
    num_tokens: int


def split(block: Block, *, max_tokens: int) -> list[Block]:
    """Return the block as parts of at most `max_tokens`, cut where it forks; what they begin with is repeated in each.

    From the deepest fork up, what hangs on a fork fills parts first-fit-decreasing; parts that hang on the same fork
    have the path to it in common. A single row over `max_tokens` stays whole, since rows are never split.
    """
    if block.num_tokens <= max_tokens:
        return [block]
    # The forks on the path to the row, by the tokens before them, and what was found behind each.
    forks: list[tuple[int, list[_Part]]] = [(0, [])]
    for place, (row, common) in enumerate(zip(block.rows, (*block.common[1:], 0), strict=True)):
        parts = [_Part([place], len(row.tokens))]
        while forks[-1][0] > common:
            depth, earlier = forks.pop()
            parts = _filled(block, [*earlier, *parts], depth, max_tokens)
        if forks[-1][0] < common:
            forks.append((common, []))
        forks[-1][1].extend(parts)
    parts_of_block = (block.part(sorted(part.places)) for part in forks[0][1])
    return sorted(parts_of_block, key=lambda block: block.first_row)


def _filled(block: Block, parts: Sequence[_Part], depth: int, max_tokens: int) -> list[_Part]:
    """Return the parts put together as far as they fit: any two have `depth` tokens in common."""
    filled: list[_Part] = []
    for part in sorted(parts, key=lambda part: (-part.num_tokens, min(block.rows[place].row for place in part.places))):
        added = part.num_tokens - depth
        room = next((other for other in filled if other.num_tokens + added <= max_tokens), None)
        if room is None:
            filled.append(part)
        else:
            room.places += part.places
            room.num_tokens += added
    return filled


def halve(block: Block) -> tuple[Block, Block]:
    """Return a block as two of about equal size, what both begin with repeated, so that another rank can take part.

    Needs two rows; their order stays.
    """
    added = (len(row.tokens) - common for row, common in zip(block.rows, block.common, strict=True))
    before = [0, *itertools.accumulate(added)]
    larger = [max(before[cut], block.num_tokens - before[cut] + block.common[cut]) for cut in range(1, len(block.rows))]
    cut = 1 + min(range(len(larger)), key=larger.__getitem__)
    return block.part(range(cut)), block.part(range(cut, len(block.rows)))


def forks(block: Block) -> list[list[int]]:
    """Return, for each row, where others leave what it adds: numbers of tokens from the row's start, ascending."""
    cuts: list[set[int]] = [set() for _ in block.rows]
    # Rows whose added tokens are on the path to the current one.
    path: list[int] = []
    for place, (row, common) in enumerate(zip(block.rows, block.common, strict=True)):
        if common == len(row.tokens):
            continue
        while path and block.common[path[-1]] >= common:
            path.pop()
        if path and common < len(block.rows[path[-1]].tokens):
            cuts[path[-1]].add(common)
        path.append(place)
    return [sorted(places) for places in cuts]


Array: TypeAlias = "np.ndarray[tuple[int], np.dtype[Any]]"


def ints(values: types.Ints) -> Array:
    """Return an int32 array on the memory of a view."""
    return np.frombuffer(values, dtype=np.int32)


def floats(values: types.Floats) -> Array:
    """Return a float32 array on the memory of a view."""
    return np.frombuffer(cast("memoryview[int]", values), dtype=np.float32)


def view(values: Array) -> "memoryview[Any]":
    """Return the flat view of an array: int32 or float32, as the types name it."""
    return memoryview(cast(Any, values))


def joined(parts: Sequence[Array], dtype: type[np.generic]) -> "memoryview[Any]":
    """Return one view of all parts in order; empty where there is none."""
    return view(np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype))
