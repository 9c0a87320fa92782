"""In which order prompts are drawn. Pure in (seed, epoch): a resumed run, given its cursor, sees the same sequence.

An epoch of a source with weight w holds every record floor(w) times, and once more for a share of w - floor(w) of its
records, chosen anew each epoch; weight 1 is each record once. All sources are then permuted together by
hash(seed, epoch, source, prompt, copy). Without shuffling the order is that of the files, source after source.
"""

import dataclasses
import math
from collections.abc import Sequence

from rljob_api import errors
from rljob_workers.coordinator import seeds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceIndex:
    """What the order depends on: a source's name, weight and prompt ids in file order."""

    name: str
    prompt_ids: tuple[str, ...]
    weight: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptRef:
    """One use of one prompt. `index` is its place in the source, `copy` tells repetitions within an epoch apart."""

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


class TaskOrder:
    """The endless (or `epochs` long) sequence of prompts. Holds the permutation of the epoch asked for last."""

    def __init__(self, sources: Sequence[SourceIndex], *, seed: int, shuffle: bool = True, epochs: int = 0) -> None:
        """`epochs` 0 is without end. Raises DataError if an epoch would hold no prompt."""
        self._sources, self._seed, self._shuffle, self._epochs = tuple(sources), seed, shuffle, epochs
        self._epoch, self._order = 0, self.order(0)
        if not self._order:
            raise errors.DataError("the training sources hold no prompt; data.train needs records and positive weights")

    @property
    def num_prompts(self) -> int:
        """Return how many prompts are drawn sooner or later: those of a source whose share rounds to none never are."""
        return sum(len(source.prompt_ids) for source in self._sources if math.floor(source.weight) + _num_extra(source))

    def take(self, cursor: Cursor, count: int) -> tuple[list[PromptRef], Cursor]:
        """Return the next prompts from `cursor`, fewer than `count` only at the end of the last epoch, and the new
        cursor.
        """
        taken: list[PromptRef] = []
        while len(taken) < count and not (self._epochs and cursor.epoch >= self._epochs):
            order = self._cached(cursor.epoch)
            part = order[cursor.position : cursor.position + count - len(taken)]
            taken += part
            end = cursor.position + len(part)
            cursor = Cursor(cursor.epoch + 1, 0) if end >= len(order) else Cursor(cursor.epoch, end)
        return taken, cursor

    def order(self, epoch: int) -> list[PromptRef]:
        """Return all prompts of an epoch in order."""
        drawn = [ref for source in self._sources for ref in self._copies(source, epoch)]
        if self._shuffle:
            drawn.sort(key=lambda ref: (self._key(ref, epoch), ref.source, ref.index, ref.copy))
        return [dataclasses.replace(ref, epoch=epoch, position=position) for position, ref in enumerate(drawn)]

    def _cached(self, epoch: int) -> list[PromptRef]:
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.order(epoch)
        return self._order

    def _key(self, ref: PromptRef, epoch: int) -> int:
        return seeds.derive(self._seed, epoch, ref.source, ref.prompt_id, ref.copy)

    def _copies(self, source: SourceIndex, epoch: int) -> list[PromptRef]:
        whole = math.floor(source.weight)
        extra = _num_extra(source)
        by_chance = sorted(
            range(len(source.prompt_ids)) if extra else (),
            key=lambda index: seeds.derive("share", self._seed, epoch, source.name, source.prompt_ids[index]),
        )[:extra]
        chosen = [(index, copy) for copy in range(whole) for index in range(len(source.prompt_ids))]
        chosen += [(index, whole) for index in sorted(by_chance)]
        return [
            PromptRef(source=source.name, index=index, prompt_id=source.prompt_ids[index], copy=copy)
            for index, copy in chosen
        ]


def _num_extra(source: SourceIndex) -> int:
    """Return how many records an epoch holds once more than the others."""
    return round((source.weight - math.floor(source.weight)) * len(source.prompt_ids))


def group_seed(*, seed: int, ref: PromptRef, attempt: int) -> int:
    """Return the base seed of a lease: hash(seed, prompt, epoch, attempt). Member i uses a hash of (this, i)."""
    return seeds.derive(seed, ref.source, ref.prompt_id, ref.epoch, ref.copy, attempt)


def digest(sources: Sequence[SourceIndex]) -> str:
    """Return a hash of names, weights and prompt ids: what a resumed run must find unchanged."""
    parts: list[str | int] = []
    for source in sources:
        parts += [source.name, repr(source.weight), len(source.prompt_ids), *source.prompt_ids]
    return f"{seeds.derive(*parts):016x}"
