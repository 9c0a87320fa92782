"""What is known of one artifact on its way here: pieces that are missing or under way, sources, and who failed.

No threads, no clock and no network: `fetch.py` has those, and holds its lock around every call.
"""

import dataclasses
import math
import random
from collections.abc import Sequence

from rljob_api import enums, errors, types
from rljob_workers.runtime import retry
from rljob_workers.weights import piece_choice, pieces

# How long a rollout that failed is left alone here, and one that no longer held what it was asked for.
FAILED_S, MOVED_S = 30.0, 1.0
# How long one may say that it is busy, or that pieces moved, and give none, until it counts as failed. Longer than the
# coordinator believes that it holds what it held once (coordinator/weights/tracker.py).
REFUSING_S = 15.0
# Chunks that may have been damaged on their way from a store, before its own bytes must be.
_MOST_DAMAGED = 2


@dataclasses.dataclass(slots=True)
class _Source:
    """A source: which pieces it may be asked for, and until when it is left out, monotonic seconds."""

    source: types.WeightSource
    may_take: int = 0
    out_until: float = 0.0
    num_streams: int = 0
    num_damaged: int = 0
    # A rollout that gave nothing, and was not only busy, since it gave a piece last.
    has_failed: bool = False
    # Since when it gave nothing but refusals.
    refuses_since: float | None = None
    backoff: retry.Backoff = dataclasses.field(default_factory=lambda: retry.Backoff(first_s=0.1, most_s=2.0))

    @property
    def is_peer(self) -> bool:
        return self.source.kind is enums.SourceKind.PEER

    def refused(self, now: float) -> bool:
        """Note that it is busy, or that pieces moved; return whether it gave nothing else for too long."""
        self.refuses_since = now if self.refuses_since is None else self.refuses_since
        return self.is_peer and now - self.refuses_since > REFUSING_S


class FetchState:
    """One artifact's. Times are monotonic seconds."""

    def __init__(self, artifact: types.Artifact, sources: Sequence[types.WeightSource], rng: random.Random) -> None:
        """sources: those known before the coordinator is asked, of which an artifact without known pieces is had."""
        self.artifact, self._rng = artifact, rng
        self._whole = pieces.full(pieces.count(artifact))
        self.missing = self._whole
        self._under_way, self._twice = 0, 0
        at_first = 0 if artifact.pieces else self._whole
        self._sources = {source.address: _Source(source, at_first) for source in sources}
        self._is_answered = False
        # Addresses of rollouts that the coordinator was not told of yet.
        self.failed: list[str] = []
        self.failure: errors.RLJobError | None = None
        # Sources that gave a piece.
        self.used: set[str] = set()

    @property
    def have(self) -> int:
        return self._whole & ~self.missing

    @property
    def has_share(self) -> bool:
        """Return whether pieces are missing that are to come from the store."""
        return any(entry.may_take & self.missing for entry in self._sources.values() if not entry.is_peer)

    @property
    def is_hopeless(self) -> bool:
        """Return whether a store has refused for good, and nothing that is missing can be had elsewhere; of an image
        that no store has, whether no rollout that was named gives it any more.
        """
        if self.artifact.encoding is enums.Encoding.IMAGE:
            named = [entry for entry in self._sources.values() if entry.may_take & self.missing]
            return self._is_answered and not self._under_way and all(entry.has_failed for entry in named)
        refused = [entry for entry in self._sources.values() if entry.out_until == math.inf]
        offered = [entry for entry in self._sources.values() if entry.may_take & self.missing and entry not in refused]
        return bool(refused) and not offered and not self._under_way

    def source(self, address: str) -> types.WeightSource:
        return self._sources[address].source

    def next_job(self, now: float) -> piece_choice.Job | None:
        """Return what to fetch next, and count it as under way until `ended`; None if there is nothing now."""
        sources = [
            piece_choice.Source(
                address=address,
                kind=entry.source.kind,
                may_take=entry.may_take if entry.out_until <= now else 0,
                num_streams=entry.num_streams,
            )
            for address, entry in self._sources.items()
        ]
        job = piece_choice.choose(
            sources, missing=self.missing, under_way=self._under_way, twice=self._twice, rng=self._rng
        )
        if job is not None:
            self._twice |= self._under_way & job.pieces
            self._under_way |= job.pieces
            self._sources[job.address].num_streams += 1
        return job

    def ended(self, job: piece_choice.Job) -> None:
        """A job is no longer under way, whether it brought its pieces or not."""
        self._under_way = self._under_way & ~job.pieces | self._twice & job.pieces
        self._twice &= ~job.pieces
        self._sources[job.address].num_streams -= 1

    def had(self, piece: int, address: str) -> None:
        """A piece is in its place."""
        self.missing &= ~(1 << piece)
        self.used.add(address)
        self._sources[address].backoff.reset()
        self._sources[address].refuses_since, self._sources[address].has_failed = None, False

    def note_failure(self, address: str, error: errors.RLJobError, now: float) -> None:
        """Leave a source out for a while after it failed, a store that will never give it for good."""
        entry = self._sources[address]
        self.failure = error
        is_refusal = isinstance(error, errors.BusyError | errors.MovedError)
        entry.has_failed = not isinstance(error, errors.BusyError)
        if entry.is_peer and (not is_refusal or entry.refused(now)):
            entry.out_until = now + FAILED_S
            self.failed.append(address)
        elif isinstance(error, errors.BusyError):
            entry.out_until = now + self._rng.uniform(0.5, 1.0) * error.again_s
        elif entry.is_peer:
            entry.out_until = now + MOVED_S
        elif self._is_worth_another(entry, error):
            entry.out_until = now + entry.backoff.next_delay_s()
        else:
            entry.out_until = math.inf

    @staticmethod
    def _is_worth_another(store: _Source, error: errors.RLJobError) -> bool:
        is_damaged = isinstance(error, errors.DigestError)
        store.num_damaged += is_damaged
        return isinstance(error, errors.UnavailableError) or (is_damaged and store.num_damaged <= _MOST_DAMAGED)

    def answered(self, answer: types.PieceSources, *, num_told: int) -> None:
        """Take what the coordinator says, which was told the first `num_told` of `failed`.

        Raises WireError, and takes nothing, if it names pieces that the artifact does not have.
        """
        num_pieces = pieces.count(self.artifact)
        share = pieces.from_wire(answer.share, num_pieces)
        may_take = {
            source.address: pieces.from_wire(source.have, num_pieces) if source.kind is enums.SourceKind.PEER else share
            for source in answer.sources
        }
        self._is_answered = True
        del self.failed[:num_told]
        for source in answer.sources:
            self._sources.setdefault(source.address, _Source(source))
        for address, entry in self._sources.items():
            entry.may_take = may_take.get(address, 0)

    def unanswered(self, now: float) -> None:
        """Continue without the coordinator: what no rollout is known to have and gives may be asked of the store."""
        on_peers = pieces.union(
            entry.may_take for entry in self._sources.values() if entry.is_peer and entry.out_until <= now
        )
        for entry in self._sources.values():
            if not entry.is_peer:
                entry.may_take = self.missing & ~on_peers
