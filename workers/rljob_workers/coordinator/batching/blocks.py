"""Blocks: the rows that share one prompt, laid out once, or a single row. The unit that packing moves around. Pure.

Rows of a group whose whole prompt is equal and which are single-turn (prompt, then only sampled tokens) become one
block: the prompt as root segment, each completion as its child. Any other row is a block of its own.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from rljob_api import types


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Rows laid out together. `prompt_len` is the length of the shared root segment, 0 for a row on its own."""

    rows: tuple[types.TrainSample, ...]
    prompt_len: int = 0

    @functools.cached_property
    def num_tokens(self) -> int:
        """Return how many tokens the block takes in a micro-batch."""
        return self.prompt_len + sum(len(row.tokens) - self.prompt_len for row in self.rows)

    @property
    def first_row(self) -> int:
        """Return the smallest row index; ties are broken by it."""
        return self.rows[0].row


def single_turn_prompt(row: types.TrainSample) -> bytes | None:
    """Return the prompt's token bytes if the row is a prompt followed by sampled tokens only, else None."""
    flags = row.loss_mask.tobytes()
    prompt_len = flags.index(1)
    return None if flags.find(b"\x00", prompt_len) >= 0 else row.tokens[:prompt_len].tobytes()


def make_blocks(rows: Iterable[types.TrainSample], *, max_tokens: int) -> list[Block]:
    """Return the blocks of `rows`, in the order of their first rows. A shared block over `max_tokens` is split, its
    prompt repeated; a single row over it stays whole, since rows are never split.
    """
    families: dict[tuple[str, bytes], list[types.TrainSample]] = {}
    blocks: list[Block] = []
    for row in sorted(rows, key=lambda row: row.row):
        prompt = single_turn_prompt(row)
        if prompt is None:
            blocks.append(Block(rows=(row,)))
        else:
            families.setdefault((row.group_id, prompt), []).append(row)
    for (_, prompt), members in families.items():
        blocks += split(members, prompt_len=len(prompt) // 4, max_tokens=max_tokens)
    return sorted(blocks, key=lambda block: block.first_row)


def split(rows: Sequence[types.TrainSample], *, prompt_len: int, max_tokens: int) -> list[Block]:
    """Return the rows of one prompt as blocks of at most `max_tokens`, first-fit-decreasing on their completions."""
    bins: list[list[types.TrainSample]] = []
    used: list[int] = []
    for row in sorted(rows, key=lambda row: (-len(row.tokens), row.row)):
        completion = len(row.tokens) - prompt_len
        place = next((i for i, tokens in enumerate(used) if tokens + completion <= max_tokens), len(bins))
        if place == len(bins):
            bins.append([])
            used.append(prompt_len)
        bins[place].append(row)
        used[place] += completion
    ordered = (tuple(sorted(members, key=lambda row: row.row)) for members in bins)
    return [Block(rows=members, prompt_len=prompt_len if len(members) > 1 else 0) for members in ordered]


def halve(block: Block) -> tuple[Block, Block]:
    """Return a shared block as two of about equal completions, the prompt repeated, so that another rank can take part.

    Needs two rows; their order stays.
    """
    lengths = [len(row.tokens) - block.prompt_len for row in block.rows]
    before = list(itertools.accumulate(lengths))[:-1]
    middle = 1 + min(range(len(before)), key=lambda cut: (abs(2 * before[cut] - sum(lengths)), cut))
    first, second = block.rows[:middle], block.rows[middle:]
    return (
        Block(rows=first, prompt_len=block.prompt_len if len(first) > 1 else 0),
        Block(rows=second, prompt_len=block.prompt_len if len(second) > 1 else 0),
    )


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
