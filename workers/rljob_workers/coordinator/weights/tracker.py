"""Which rollouts have which artifacts and pieces, from what they say. In memory: after a restart they say it again.

A rollout's heartbeat says where it serves weights and which artifacts it holds whole; a receiver says while it fetches
which pieces it has verified. `policy/piece_plan.py` decides; nothing here waits.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection

from rljob_api import enums, types
from rljob_workers.coordinator.policy import piece_plan
from rljob_workers.weights import pieces

# A rollout that said nothing for this long is named to no one.
SILENT_S = 10.0
# What a receiver was given of the store is not waited for once it failed someone, or has not asked for this many times
# of what it rests between questions, and of the shortest rest that there is.
_ABSENT_RESTS, _ABSENT_LEAST_RESTS = 4.0, 20.0
# A source that failed a receiver is not named to it for this long, and to no one if it failed two of them.
LEFT_OUT_S = 30.0
_FAILED_FOR_ALL = 2
# Artifacts that are noted of one rollout: more than it can hold of changes and its image.
_MOST_WHOLE = 64
# All receivers together ask this often a second at most, and each at most every tenth of a second.
_ASKS_PER_S = 200.0
_LEAST_AGAIN_S = 0.1
_ALONE_AGAIN_S = 5.0


@dataclasses.dataclass(slots=True)
class _Rollout:
    address: str = ""
    whole: frozenset[str] = frozenset()
    heard_at: float = 0.0


@dataclasses.dataclass(slots=True)
class _Fetch:
    have: int = 0
    is_whole: bool = False
    granted: tuple[piece_plan.Grant, ...] = ()
    sources: tuple[str, ...] = ()
    heard_at: float = 0.0


class Tracker:
    """All rollouts of the job. Tokens are those of sessions; times are monotonic seconds."""

    def __init__(self, *, store_address: str, least_again_s: float = _LEAST_AGAIN_S) -> None:
        self._least_again_s = least_again_s
        self._store = types.WeightSource(address=store_address, kind=enums.SourceKind.STORE)
        self._rollouts: dict[str, _Rollout] = {}
        # By artifact, then by token.
        self._fetches: dict[str, dict[str, _Fetch]] = {}
        # When a receiver said so, by address of the source and token of the receiver.
        self._failures: dict[tuple[str, str], float] = {}

    def offers(self, token: str, offer: types.WeightOffer, *, now: float) -> None:
        """Note what a rollout serves, and that it is there."""
        self._rollouts[token] = _Rollout(offer.address, frozenset(offer.artifact_ids[:_MOST_WHOLE]), now)
        for artifact_id, fetches in self._fetches.items():
            fetch = fetches.get(token)
            # It may hold no longer what it fetched once; what it fetches now it says itself.
            is_gone = fetch is not None and fetch.is_whole and artifact_id not in offer.artifact_ids
            if fetch is not None and (is_gone or now - fetch.heard_at > SILENT_S):
                del fetches[token]

    def ask(
        self, token: str, *, artifact_id: str, num_pieces: int, have: int, failed: Collection[str], now: float
    ) -> types.PieceSources:
        """Note what a receiver has of an artifact and which sources failed it; return where it may fetch the rest."""
        self._forget(now)
        addresses = {rollout.address for rollout in self._rollouts.values()}
        self._failures |= {(address, token): now for address in failed if address in addresses}
        fetches = self._fetches.setdefault(artifact_id, {})
        mine = fetches.setdefault(token, _Fetch())
        whole = pieces.full(num_pieces)
        mine.have, mine.is_whole, mine.heard_at = have, have == whole, now
        # One that was not heard of otherwise asks a coordinator that has just started, and others will.
        num_rollouts = max(len({*self._rollouts, *fetches}), 1 + (token not in self._rollouts))
        others = self._others(token, artifact_id, whole=whole, now=now)
        plan = piece_plan.plan(
            piece_plan.Receiver(token=token, have=have, granted=mine.granted),
            others,
            num_pieces=num_pieces,
            num_rollouts=num_rollouts,
            now=now,
        )
        mine.granted = _granted(mine.granted, plan.share, now)
        mine.sources = plan.sources
        named = {other.token: other.have for other in others}
        return types.PieceSources(
            sources=(
                self._store,
                *(
                    types.WeightSource(
                        address=self._rollouts[source].address,
                        kind=enums.SourceKind.PEER,
                        have=pieces.to_wire(named[source] & ~have),
                    )
                    for source in plan.sources
                ),
            ),
            share=pieces.to_wire(plan.share),
            again_s=self._rest_s if num_rollouts > 1 else _ALONE_AGAIN_S,
        )

    def _others(self, asker: str, artifact_id: str, *, whole: int, now: float) -> list[piece_plan.Receiver]:
        """Return all rollouts but the asker."""
        fetches, receivers = self._fetches[artifact_id], []
        absent_s = max(_ABSENT_RESTS * self._rest_s, _ABSENT_LEAST_RESTS * self._least_again_s)
        named = Counter(source for token, fetch in fetches.items() if token != asker for source in fetch.sources)
        told_on_by: defaultdict[str, set[str]] = defaultdict(set)
        for address, receiver in self._failures:
            told_on_by[address].add(receiver)
        for token in sorted({*fetches, *self._rollouts} - {asker}):
            rollout, fetch = self._rollouts.get(token, _Rollout()), fetches.get(token, _Fetch())
            failed = told_on_by[rollout.address]
            is_left_out = asker in failed or len(failed) >= _FAILED_FOR_ALL
            receivers.append(
                piece_plan.Receiver(
                    token=token,
                    have=whole if artifact_id in rollout.whole else fetch.have,
                    granted=() if failed or now - fetch.heard_at > absent_s else fetch.granted,
                    serves=bool(rollout.address) and not is_left_out,
                    named=named[token],
                )
            )
        return receivers

    @property
    def _rest_s(self) -> float:
        """How long a receiver rests between questions where there are others."""
        return max(self._least_again_s, len(self._rollouts) / _ASKS_PER_S)

    def _forget(self, now: float) -> None:
        self._failures = {key: at for key, at in self._failures.items() if now - at <= LEFT_OUT_S}
        self._rollouts = {
            token: rollout for token, rollout in self._rollouts.items() if now - rollout.heard_at <= SILENT_S
        }
        fetches_by_artifact = {
            artifact_id: {token: fetch for token, fetch in fetches.items() if now - fetch.heard_at <= SILENT_S}
            for artifact_id, fetches in self._fetches.items()
        }
        self._fetches = {artifact_id: fetches for artifact_id, fetches in fetches_by_artifact.items() if fetches}


def _granted(before: tuple[piece_plan.Grant, ...], share: int, now: float) -> tuple[piece_plan.Grant, ...]:
    """Return what is granted now, each piece since it was granted first."""
    remaining = tuple(
        dataclasses.replace(grant, pieces=grant.pieces & share) for grant in before if grant.pieces & share
    )
    fresh = share & ~pieces.union(grant.pieces for grant in remaining)
    return (*remaining, piece_plan.Grant(pieces=fresh, at=now)) if fresh else remaining
