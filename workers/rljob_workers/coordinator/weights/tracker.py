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
        """Note what a rollout serves, and that it is there. It has taken the place of what served at its address."""
        for other in [other for other, rollout in self._rollouts.items() if rollout.address == offer.address != ""]:
            del self._rollouts[other]
        self._rollouts[token] = _Rollout(offer.address, frozenset(offer.artifact_ids[:_MOST_WHOLE]), now)
        for artifact_id, fetches in self._fetches.items():
            fetch = fetches.get(token)
            # It may hold no longer what it fetched once; what it fetches now it says itself.
            is_gone = fetch is not None and fetch.is_whole and artifact_id not in offer.artifact_ids
            if fetch is not None and (is_gone or now - fetch.heard_at > SILENT_S):
                del fetches[token]

    def has_source(self, token: str, artifact_id: str, *, now: float) -> bool:
        """Return whether a rollout may be asked for a whole artifact by the one with `token`."""
        self._forget(now)
        told_on_by = self._told_on_by()
        return any(
            rollout.address and artifact_id in rollout.whole and not _is_left_out(told_on_by[rollout.address], token)
            for rollout in self._rollouts.values()
        )

    def ask(
        self,
        token: str,
        *,
        artifact_id: str,
        num_pieces: int,
        have: int,
        failed: Collection[str],
        now: float,
        is_stored: bool = True,
    ) -> types.PieceSources:
        """Note what a receiver has of an artifact and which sources failed it; return where it may fetch the rest.

        is_stored: the store has it, too.
        """
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
        mine.granted = _granted(mine.granted, plan.share, now) if is_stored else ()
        mine.sources = plan.sources
        named = {other.token: other.have for other in others}
        return types.PieceSources(
            sources=(
                *((self._store,) if is_stored else ()),
                *(
                    types.WeightSource(
                        address=self._rollouts[source].address,
                        kind=enums.SourceKind.PEER,
                        have=pieces.to_wire(named[source] & ~have),
                    )
                    for source in plan.sources
                ),
            ),
            share=pieces.to_wire(plan.share if is_stored else 0),
            again_s=self._rest_s if num_rollouts > 1 else _ALONE_AGAIN_S,
        )

    def _others(self, asker: str, artifact_id: str, *, whole: int, now: float) -> list[piece_plan.Receiver]:
        """Return all rollouts but the asker."""
        fetches, receivers = self._fetches[artifact_id], []
        absent_s = max(_ABSENT_RESTS * self._rest_s, _ABSENT_LEAST_RESTS * self._least_again_s)
        named = Counter(source for token, fetch in fetches.items() if token != asker for source in fetch.sources)
        told_on_by = self._told_on_by()
        for token in sorted({*fetches, *self._rollouts} - {asker}):
            rollout, fetch = self._rollouts.get(token, _Rollout()), fetches.get(token, _Fetch())
            failed = told_on_by[rollout.address]
            receivers.append(
                piece_plan.Receiver(
                    token=token,
                    have=whole if artifact_id in rollout.whole else fetch.have,
                    granted=() if failed or now - fetch.heard_at > absent_s else fetch.granted,
                    serves=bool(rollout.address) and not _is_left_out(failed, asker),
                    named=named[token],
                )
            )
        return receivers

    def _told_on_by(self) -> defaultdict[str, set[str]]:
        """Return whom the source at an address has failed lately."""
        told_on_by: defaultdict[str, set[str]] = defaultdict(set)
        for address, receiver in self._failures:
            told_on_by[address].add(receiver)
        return told_on_by

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


def _is_left_out(failed: Collection[str], asker: str) -> bool:
    """failed: whom the source has failed lately."""
    return asker in failed or len(failed) >= _FAILED_FOR_ALL


def _granted(before: tuple[piece_plan.Grant, ...], share: int, now: float) -> tuple[piece_plan.Grant, ...]:
    """Return what is granted now, each piece since it was granted first."""
    remaining = tuple(
        dataclasses.replace(grant, pieces=grant.pieces & share) for grant in before if grant.pieces & share
    )
    fresh = share & ~pieces.union(grant.pieces for grant in remaining)
    return (*remaining, piece_plan.Grant(pieces=fresh, at=now)) if fresh else remaining
