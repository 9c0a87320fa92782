"""In which order prompts are drawn. Pure in (seed, epoch): a resumed run, given its cursor, sees the same sequence.

An epoch of a source with weight w holds every record floor(w) times, and once more for a share of w - floor(w) of its
records, chosen again each epoch; weight 1 is each record once. All of them together are permuted by a keyed permutation
that is computed place by place: an epoch of ten million prompts costs no more to begin than one of ten. Without
shuffling the order is that of the files, source after source.

That is version 2. In version 1, which ledgers keep that were made with it, an epoch was sorted by hash(seed, epoch,
source, prompt, copy), all of it when its first prompt was drawn.
"""

import dataclasses
import hashlib
import math
from collections.abc import Sequence

import numpy as np

from rljob_api import errors
from rljob_workers.coordinator.batching import blocks

_MASK = (1 << 63) - 1


def derive(*parts: str | int) -> int:
    """Return 63 bits that depend on `parts`, their order and where one ends and the next begins."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = str(part).encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return int.from_bytes(digest.digest(), "little") & _MASK


# What new ledgers are made with.
VERSION = 2
_ROUNDS = 6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceIndex:
    """What the order depends on: a source's name, weight and prompt ids in file order."""

    name: str
    prompt_ids: tuple[str, ...]
    weight: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptRef:
    """One use of one prompt. `index` is its place in the source, `copy` distinguishes repetitions within an epoch."""

    source: str
    index: int
    prompt_id: str
    epoch: int = 0
    position: int = 0
    copy: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Cursor:
    """The next prompt to be drawn."""

    epoch: int = 0
    position: int = 0


def permuted(places: blocks.Array, *, size: int, key: Sequence[str | int]) -> blocks.Array:
    """Return where the places of 0..size - 1 come from in a permutation that depends on `key` alone.

    A balanced Feistel network on the next even number of bits, walked until it ends below `size` (Black and Rogaway,
    Ciphers with arbitrary finite domains, 2002), with the mixing function of SplitMix64.
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    keys = [np.uint64(derive(*key, number)) for number in range(_ROUNDS)]
    indexes = places.astype(np.uint64)
    walking = np.arange(len(indexes))
    while len(walking):
        left, right = indexes[walking] >> half, indexes[walking] & mask
        for round_key in keys:
            left, right = right, left ^ (_mixed(right ^ round_key) & mask)
        indexes[walking] = (left << half) | right
        walking = walking[indexes[walking] >= size]
    return indexes.astype(np.int64)


def _mixed(values: blocks.Array) -> blocks.Array:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: blocks.Array = values ^ (values >> np.uint64(31))
    return mixed


class TaskOrder:
    """The endless (or `epochs` long) sequence of prompts."""

    def __init__(
        self,
        sources: Sequence[SourceIndex],
        *,
        seed: int,
        shuffle: bool = True,
        epochs: int = 0,
        version: int = VERSION,
    ) -> None:
        """`epochs` 0 is without end. Raises DataError if an epoch would hold no prompt."""
        self._sources, self._seed, self._shuffle, self._epochs = tuple(sources), seed, shuffle, epochs
        self._version = version
        self._size = sum(map(_num_drawn, self._sources))
        # Of version 1: the epoch that was asked for last.
        self._sorted: tuple[int, list[PromptRef]] = (-1, [])
        if not self._size:
            raise errors.DataError("the training sources hold no prompt; data.train needs records and positive weights")

    @property
    def num_prompts(self) -> int:
        """Return how many prompts are drawn sooner or later: those of a source whose share rounds to none never are."""
        return sum(len(source.prompt_ids) for source in self._sources if math.floor(source.weight) + _num_extra(source))

    @property
    def epoch_size(self) -> int:
        """Return how many prompts an epoch draws."""
        return self._size

    def ended(self, cursor: Cursor) -> bool:
        """Return whether there is no prompt behind `cursor`."""
        return bool(self._epochs) and cursor.epoch >= self._epochs

    def take(self, cursor: Cursor, count: int) -> tuple[list[PromptRef], Cursor]:
        """Return the next prompts from `cursor`, fewer than `count` only at the end of the last epoch, and the new
        cursor.
        """
        taken: list[PromptRef] = []
        while len(taken) < count and not self.ended(cursor):
            end = min(self._size, cursor.position + count - len(taken))
            taken += self._part(cursor.epoch, cursor.position, end)
            cursor = Cursor(cursor.epoch + 1, 0) if end >= self._size else Cursor(cursor.epoch, end)
        return taken, cursor

    def order(self, epoch: int) -> list[PromptRef]:
        return self._part(epoch, 0, self._size)

    def _part(self, epoch: int, start: int, end: int) -> list[PromptRef]:
        if self._version == 1:
            if self._sorted[0] != epoch:
                self._sorted = (epoch, self._by_hash(epoch))
            return self._sorted[1][start:end]
        places = np.arange(start, end)
        if self._shuffle:
            places = permuted(places, size=self._size, key=("order", self._seed, epoch))
        return [
            self._ref(int(place), epoch=epoch, position=position) for position, place in enumerate(places, start=start)
        ]

    def _ref(self, place: int, *, epoch: int, position: int) -> PromptRef:
        """Return the prompt at a place among all that an epoch draws, in the order of the files."""
        for source in self._sources:
            if place < _num_drawn(source):
                break
            place -= _num_drawn(source)
        copy, index = divmod(place, len(source.prompt_ids))
        if copy == math.floor(source.weight):
            index = self._extra(source, epoch, index)
        return PromptRef(
            source=source.name, index=index, prompt_id=source.prompt_ids[index], epoch=epoch, position=position,
            copy=copy,
        )  # fmt: skip

    def _extra(self, source: SourceIndex, epoch: int, number: int) -> int:
        """Return one of the records that an epoch holds once more than the others."""
        size, key = len(source.prompt_ids), ("share", self._seed, epoch, source.name)
        if self._shuffle:
            return int(permuted(np.array([number]), size=size, key=key)[0])
        return int(np.sort(permuted(np.arange(_num_extra(source)), size=size, key=key))[number])

    def _by_hash(self, epoch: int) -> list[PromptRef]:
        drawn = [ref for source in self._sources for ref in self._copies(source, epoch)]
        if self._shuffle:
            drawn.sort(key=lambda ref: (self._key(ref, epoch), ref.source, ref.index, ref.copy))
        return [dataclasses.replace(ref, epoch=epoch, position=position) for position, ref in enumerate(drawn)]

    def _key(self, ref: PromptRef, epoch: int) -> int:
        return derive(self._seed, epoch, ref.source, ref.prompt_id, ref.copy)

    def _copies(self, source: SourceIndex, epoch: int) -> list[PromptRef]:
        whole = math.floor(source.weight)
        extra = _num_extra(source)
        by_chance = sorted(
            range(len(source.prompt_ids)) if extra else (),
            key=lambda index: derive("share", self._seed, epoch, source.name, source.prompt_ids[index]),
        )[:extra]
        chosen = [(index, copy) for copy in range(whole) for index in range(len(source.prompt_ids))]
        chosen += [(index, whole) for index in sorted(by_chance)]
        return [
            PromptRef(source=source.name, index=index, prompt_id=source.prompt_ids[index], copy=copy)
            for index, copy in chosen
        ]


def _num_drawn(source: SourceIndex) -> int:
    return math.floor(source.weight) * len(source.prompt_ids) + _num_extra(source)


def _num_extra(source: SourceIndex) -> int:
    """Return how many records an epoch holds once more than the others."""
    return round((source.weight - math.floor(source.weight)) * len(source.prompt_ids))


def group_seed(*, seed: int, ref: PromptRef, attempt: int) -> int:
    """Return the base seed of a lease: hash(seed, prompt, epoch, attempt). Member i uses a hash of (this, i)."""
    return derive(seed, ref.source, ref.prompt_id, ref.epoch, ref.copy, attempt)


def digest(sources: Sequence[SourceIndex]) -> str:
    """Return a hash of names, weights and prompt ids: what a resumed run must find unchanged."""
    parts: list[str | int] = []
    for source in sources:
        parts += [source.name, repr(source.weight), len(source.prompt_ids), *source.prompt_ids]
    return f"{derive(*parts):016x}"
