"""Who takes which pieces of an artifact from the store, and from which rollouts the others. Pure.

    store  --- each piece about once, other pieces to each receiver --->  receivers
    receivers  --- what they have, to whoever lacks it --->  receivers

The pieces that no rollout has and none is fetching are the rarest: they are shared out, a few at a time, so that
whoever is fast takes more of them. What another one was given is waited for and then taken from it; it is asked of the
store a second time only by a receiver that has nothing else to fetch, from one that is late. Pieces that a rollout has
are never asked of the store. The rarest-first choice among rollouts is each receiver's own (weights/piece_choice.py).
Source: BitTorrent's tracker and piece selection (Cohen, Incentives Build Robustness in BitTorrent, 2003).
"""

import dataclasses
from collections.abc import Sequence

from rljob_workers.weights import pieces

# One receiver is given an eighth of what would be its share if all were equally fast, until it asks for more; so few at
# least that a fast link is not kept waiting.
_PARTS = 8
_LEAST_GIVEN, _MOST_GIVEN = 2, 64
# Above what a piece takes from a store that serves four receivers over a slow link.
LATE_S = 5.0
# So few pieces are had sooner from the store than from whoever has them first.
_NOT_SHARED = 2
_MOST_SOURCES = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Pieces that a receiver may take from the store, a set as in `rljob_workers.weights.pieces`, and since when."""

    pieces: int
    at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """What is known of one rollout and one artifact. have: the pieces that it has verified.

    granted: what it was given of the store. serves: it may be asked, because it says where and has not failed lately.
    named: to how many other receivers it is named as a source now.
    """

    token: str
    have: int
    granted: tuple[Grant, ...] = ()
    serves: bool = False
    named: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """share: the pieces to take from the store; sources: tokens of rollouts that have some of the others."""

    share: int
    sources: tuple[str, ...]


def plan(asker: Receiver, others: Sequence[Receiver], *, num_pieces: int, num_rollouts: int, now: float) -> Plan:
    """Return what `asker` should fetch from where.

    others: those that have or fetch pieces of it and were heard of lately; num_rollouts: all that may ask for it.
    """
    missing = pieces.full(num_pieces) & ~asker.have
    serving = [other for other in others if other.serves and other.have & missing]
    on_rollouts = pieces.union(other.have for other in serving)
    useful = sorted(serving, key=lambda other: (other.named, -(other.have & missing).bit_count(), other.token))
    sources = tuple(other.token for other in useful[:_MOST_SOURCES])
    on_none = missing & ~on_rollouts
    if num_rollouts <= 1 or num_pieces <= _NOT_SHARED:
        return Plan(share=on_none, sources=sources)
    granted_others = [
        (grant.at, grant.pieces & ~other.have) for other in others if other.serves for grant in other.granted
    ]
    most = min(max(_LEAST_GIVEN, num_pieces // (_PARTS * num_rollouts)), _MOST_GIVEN)
    own = pieces.lowest(pieces.union(grant.pieces for grant in asker.granted) & on_none, most)
    free = on_none & ~own & ~pieces.union(theirs for _, theirs in granted_others)
    share = own | pieces.lowest(free, most - own.bit_count())
    if not share and not missing & on_rollouts:
        share = pieces.lowest(pieces.union(theirs for at, theirs in granted_others if now - at > LATE_S) & on_none, 1)
    return Plan(share=share, sources=sources)
