"""What an engine's prefix cache could hold: how much of each prompt earlier requests began with. Pure.

A cache of unlimited size that is filled by whatever is asked first. What an engine reports to have found, over that, is
1 unless blocks were evicted before they were needed again. Counted in whole blocks, as caches hold them; the last token
of a prompt is always computed, since the first token of the answer is sampled from it.
"""

from collections.abc import Iterable, Iterator, Sequence

from rljob_api import types

# 16 million tokens in blocks of 16, some 100 MB. Beyond that it forgets everything, and so reports too little.
MOST_BLOCKS = 1 << 20


class Prefixes:
    """The blocks that requests of one version of the weights have begun with: another finds nothing of them."""

    def __init__(self, *, block_tokens: int, most_blocks: int = MOST_BLOCKS) -> None:
        self._block_tokens, self._most_blocks = block_tokens, most_blocks
        self._version = types.VersionId(types.NO_VERSION)
        # A block is named by the hash of all tokens up to its end.
        self._blocks: set[int] = set()

    def ask(self, ids: Sequence[int], *, version: types.VersionId) -> int:
        """Return how many tokens of a prompt were there before, and remember all of it."""
        if version != self._version:
            self._version = version
            self._blocks.clear()
        names = list(self._blocks_of(ids))
        whole = names[: (len(ids) - 1) // self._block_tokens]
        num_repeated = next((place for place, name in enumerate(whole) if name not in self._blocks), len(whole))
        self._remember(names)
        return num_repeated * self._block_tokens

    def add(self, ids: Sequence[int], *, version: types.VersionId) -> None:
        """Remember what was computed. What an update overtook is of no use to who asks after it."""
        if version == self._version:
            self._remember(self._blocks_of(ids))

    def _remember(self, names: Iterable[int]) -> None:
        if len(self._blocks) >= self._most_blocks:
            self._blocks.clear()
        self._blocks.update(names)

    def _blocks_of(self, ids: Sequence[int]) -> Iterator[int]:
        size, name = self._block_tokens, 0
        for end in range(size, len(ids) + 1, size):
            name = hash((name, *ids[end - size : end]))
            yield name
