"""What a receiver fetches next, and from which source. Pure; who may take what from the store: policy/piece_plan.py.

1. its share of the store, in runs: nobody else takes these, and others wait for them
2. the rarest of the pieces that rollouts have, from the one that is asked for the least
3. at the end, of what is on its way from one source already, the same from another one: whoever is first
"""

import dataclasses
import random
from collections.abc import Sequence

from rljob_api import enums
from rljob_workers.weights import pieces

# Two connections to a store that is the only source, as one is bound to about a core; else one.
_STORE_STREAMS = 2
_PEER_STREAMS = 2
# Of a source that is the only one as well: a longer run would be fetched twice where other rollouts come.
_LONGEST_RUN = 8
_LAST = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source as this receiver sees it. may_take: pieces that it has and may be asked for, none while it is left out.

    num_streams: how many streams from it are open here.
    """

    address: str
    kind: enums.SourceKind
    may_take: int
    num_streams: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Pieces [first, after) from a source."""

    address: str
    first: int
    after: int

    @property
    def pieces(self) -> int:
        """The set of them."""
        return pieces.between(self.first, self.after)


def choose(sources: Sequence[Source], *, missing: int, under_way: int, twice: int, rng: random.Random) -> Job | None:
    """Return the next job, None if there is nothing to do now.

    missing: pieces that are not verified yet; under_way: those of them that a stream is to bring; twice: that two are.
    """
    peers = [source for source in sources if source.kind is enums.SourceKind.PEER and source.may_take & missing]
    stores = [source for source in sources if source.kind is not enums.SourceKind.PEER]
    most = 1 if peers else _STORE_STREAMS
    for store in stores:
        eligible = store.may_take & missing & ~under_way
        if eligible and store.num_streams < most:
            first, after = pieces.first_run(eligible)
            longest = min(_LONGEST_RUN, -(-eligible.bit_count() // most))
            return Job(address=store.address, first=first, after=min(after, first + longest))
    free = [peer for peer in peers if peer.num_streams < _PEER_STREAMS]
    if job := _rarest(free, missing & ~under_way, rng):
        return job
    if missing.bit_count() > _LAST or missing & ~under_way:
        return None
    return _rarest([peer for peer in free if not peer.num_streams], missing & ~twice, rng)


def _rarest(peers: Sequence[Source], eligible: int, rng: random.Random) -> Job | None:
    once, several = 0, 0
    for peer in peers:
        several |= once & peer.may_take
        once |= peer.may_take
    candidates = (once & ~several & eligible) or (once & eligible)
    if not candidates:
        return None
    piece = _any(candidates, rng)
    having = [peer for peer in peers if peer.may_take >> piece & 1]
    least = min(peer.num_streams for peer in having)
    chosen = rng.choice([peer for peer in having if peer.num_streams == least])
    return Job(address=chosen.address, first=piece, after=piece + 1)


def _any(piece_set: int, rng: random.Random) -> int:
    """Return a piece of a set: the next one from a place drawn at random, so that receivers differ."""
    place = rng.randrange(piece_set.bit_length())
    rest = piece_set >> place << place
    return pieces.first_run(rest or piece_set)[0]
