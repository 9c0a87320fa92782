"""One artifact on its way into memory, piece by piece, from several sources at once. Blocking, with threads of its own.

    asking thread     what I have, who failed -> coordinator -> sources, my share of the store      every again_s
    streams (4)       choose (fetch_state.py) -> pull, write (places.py) -> verify a piece, tell the shelf
    the caller        waits until all is here, replaces streams that hang; BLAKE3 of the whole

A piece counts, and may be served, once it was verified in its place, where no one writes from then on. A source that
fails, is slow or sends other bytes loses the piece to another one. With the coordinator gone it goes on with the
sources that it knows.
"""

import dataclasses
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import blake3
import xxhash

from rljob_api import enums, errors, types
from rljob_workers.weights import deadlines, frames, piece_choice, pieces, shelf, transfers
from rljob_workers.weights.backends import fetch_state, places

logger = logging.getLogger(__name__)

NUM_STREAMS = 4
_LOOK_S = 0.2
# Between questions that are not answered.
_UNANSWERED_S = 1.0
# How long after its call has ended a stream may still have frames to hand out.
_HANGING_S = 1.0


class Call(Protocol):
    """A call that is under way, as gRPC has it."""

    def cancel(self) -> object: ...

    def is_active(self) -> bool: ...


Opened = Callable[[Call], None]


class Remote(Protocol):
    """What a fetch needs of the network. Both tell `opened` of the call that they make."""

    def ask(self, artifact: types.Artifact, *, have: int, failed: Sequence[str], opened: Opened) -> types.PieceSources:
        """Tell the coordinator and ask it. Raises UnavailableError."""

    def stream(
        self, source: types.WeightSource, artifact: types.Artifact, start: int, end: int, opened: Opened
    ) -> Iterator[bytes]:
        """Yield the frames of bytes [start, end). Raises errors of the tree."""


@dataclasses.dataclass(eq=False, slots=True)
class _Stream:
    """A job and its call. ended_at: when the call was first seen to have ended while its thread waits for frames.

    is_given_up: another thread has taken its place, and what it still brings is not taken.
    """

    job: piece_choice.Job
    source: types.WeightSource
    call: Call | None = None
    ended_at: float | None = None
    is_given_up: bool = False


class _Piece:
    """A piece on its way: bytes [start, end) of the artifact. gathered: its parts, unless they go to their place."""

    def __init__(self, artifact: types.Artifact, number: int, *, is_own: bool) -> None:
        self.number, self.is_own = number, is_own
        self.start, self.end = pieces.bounds(artifact, number, number + 1)
        self.digest = xxhash.xxh3_128()
        self.gathered: list[memoryview] = []


class Fetch:
    """Fills `into` with an artifact. `run` once."""

    def __init__(
        self,
        artifact: types.Artifact,
        sources: Sequence[types.WeightSource],
        into: memoryview,
        *,
        remote: Remote,
        shelf: shelf.Shelf,
        counts: transfers.Transfers,
        now: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """sources: of what is stored, those known before the coordinator is asked. Raises WeightsError if there are
        none.
        """
        if not sources and artifact.encoding is not enums.Encoding.IMAGE:
            raise errors.WeightsError(f"no source for artifact {artifact.artifact_id}")
        self._artifact, self._into, self._remote = artifact, into[: artifact.num_bytes], remote
        self._shelf, self._counts, self._now = shelf, counts, now
        # The memory of changes is there for the shelf; an image's is the receiver's, which overwrites it.
        self._holding = shelf.hold(artifact, self._into, is_kept=artifact.encoding is enums.Encoding.DELTA)
        self._changed = threading.Condition()
        self._state = fetch_state.FetchState(artifact, sources, rng or random.Random())
        self._streams: set[_Stream] = set()
        self._asking: Call | None = None
        self._places = places.Places(self._into)
        self._is_over, self._fault = False, list[BaseException]()
        self._moved_at = now()

    def run(self) -> None:
        """Return when the artifact is whole and verified, one that is not stored by piece alone. Raises WeightsError,
        UnavailableError or another WireError: what the last source failed with, or that it was stopped.
        """
        for _ in range(min(NUM_STREAMS, max(1, pieces.count(self._artifact)))):
            self._start(self._work)
        if self._artifact.pieces:
            self._start(self._follow)
        try:
            self._wait()
        finally:
            self.stop()
            self._places.close()
        if self._state.missing:
            raise errors.UnavailableError(f"fetching artifact {self._artifact.artifact_id} was stopped")
        if not self._is_what_it_is_named():
            self._shelf.withdraw(self._into)
            raise errors.DigestError(
                f"artifact {self._artifact.artifact_id} from {', '.join(sorted(self._state.used))} does not match its"
                " digest"
            )
        self._tell()

    def _is_what_it_is_named(self) -> bool:
        # The name of an image that is not stored follows from its tensors' digests: the receiver's concern.
        return (
            self._artifact.encoding is enums.Encoding.IMAGE
            or blake3.blake3(self._into, max_threads=2).hexdigest() == self._artifact.artifact_id
        )

    def stop(self) -> None:
        """End what is under way, from any thread: nothing is written any more once `run` has returned."""
        with self._changed:
            self._is_over = True
            calls = [*(stream.call for stream in self._streams), self._asking]
            self._changed.notify_all()
        for call in calls:
            if call is not None:
                call.cancel()

    # The caller's thread

    def _wait(self) -> None:
        idle_s = deadlines.idle_deadline_s(self._artifact.num_bytes)
        with self._changed:
            while self._state.missing and not self._is_over:
                self._changed.wait(_LOOK_S)
                if self._fault:
                    raise self._fault[0]
                for stream in [stream for stream in self._streams if self._hangs(stream)]:
                    self._give_up(stream)
                if not self._state.missing or self._is_over:
                    break
                if self._state.is_hopeless:
                    raise self._state.failure or errors.MovedError(f"no rollout has {self._artifact.artifact_id}")
                if self._now() - self._moved_at > idle_s:
                    raise self._state.failure or errors.UnavailableError(
                        f"no source sent a byte of artifact {self._artifact.artifact_id} for {idle_s:.0f} s"
                    )

    def _hangs(self, stream: _Stream) -> bool:
        """Return whether a stream's call has ended and its thread has not noticed.

        Where a server ends all calls at once, grpcio 1.85 may know the status of a call and wait for its next message
        for ever, whatever is cancelled.
        """
        if stream.call is None or stream.call.is_active():
            return False
        stream.ended_at = self._now() if stream.ended_at is None else stream.ended_at
        return self._now() - stream.ended_at > _HANGING_S

    def _give_up(self, stream: _Stream) -> None:
        stream.is_given_up = True
        self._places.release(stream)
        self._note_failure(stream, errors.UnavailableError(f"{stream.source.address} ended without a word"))
        self._close(stream)
        self._start(self._work)

    def _start(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # the caller's thread raises it
                with self._changed:
                    self._fault.append(error)
                    self._changed.notify_all()

        # Daemons: one that hangs in a call must not hold up the end of the process.
        threading.Thread(target=guarded, name="fetch", daemon=True).start()

    # The asking thread

    def _follow(self) -> None:
        while not self._is_over:
            with self._changed:
                have, failed = self._state.have, tuple(self._state.failed)
            try:
                answer = self._remote.ask(self._artifact, have=have, failed=failed, opened=self._opened)
                with self._changed:
                    self._state.answered(answer, num_told=len(failed))
                    self._changed.notify_all()
                again_s = answer.again_s
            except errors.RLJobError as error:
                logger.debug("the coordinator did not say who has pieces: %s", error)
                with self._changed:
                    self._state.unanswered(self._now())
                    self._changed.notify_all()
                again_s = _UNANSWERED_S
            self._rest(again_s)

    def _opened(self, call: Call) -> None:
        self._asking = call

    def _rest(self, seconds: float) -> None:
        """Wait for `seconds`, or half of them if the share of the store is here before."""
        began = self._now()
        with self._changed:
            while not self._is_over:
                left = began + (seconds if self._state.has_share else seconds / 2) - self._now()
                if left <= 0:
                    return
                self._changed.wait(min(_LOOK_S, left))

    def _tell(self) -> None:
        """Say that all pieces are here: a heartbeat would say it later."""
        if not self._artifact.pieces:
            return
        try:
            self._remote.ask(self._artifact, have=self._state.have, failed=self._state.failed, opened=self._opened)
        except errors.RLJobError as error:
            logger.debug("the coordinator did not take the report of pieces: %s", error)

    # The streams

    def _work(self) -> None:
        while (stream := self._next()) is not None:
            failure: errors.RLJobError | None = None
            try:
                self._receive(stream)
            except errors.RLJobError as error:
                failure = error
            self._places.release(stream)
            with self._changed:
                if stream.is_given_up:
                    return
                if failure is not None:
                    self._note_failure(stream, failure)
                self._close(stream)

    def _next(self) -> _Stream | None:
        with self._changed:
            while not self._is_over:
                job = self._state.next_job(self._now())
                if job is not None:
                    stream = _Stream(job, self._state.source(job.address))
                    self._streams.add(stream)
                    return stream
                self._changed.wait(_LOOK_S)
        return None

    def _close(self, stream: _Stream) -> None:
        self._streams.discard(stream)
        self._state.ended(stream.job)
        self._changed.notify_all()

    def _note_failure(self, stream: _Stream, error: errors.RLJobError) -> None:
        if self._is_over:
            return
        self._state.note_failure(stream.job.address, error, self._now())
        self._counts.failed(error)
        level = logging.DEBUG if isinstance(error, errors.BusyError) else logging.WARNING
        logger.log(
            level, "weight source %s failed: %s", stream.source.address, error, extra={"error_class": error.name}
        )

    def _receive(self, stream: _Stream) -> None:
        """Take pieces as they come; of one that another stream writes already they are gathered beside its place."""
        position, end = pieces.bounds(self._artifact, stream.job.first, stream.job.after)

        def opened(call: Call) -> None:
            stream.call = call
            # `stop` cancels what it sees; this one it may not have seen.
            if self._is_over:
                call.cancel()

        piece = _Piece(self._artifact, stream.job.first, is_own=self._places.claim(stream.job.first, stream))
        for frame in self._remote.stream(stream.source, self._artifact, position, end, opened):
            _, offset, payload = frames.unpack(frame)
            if offset != position or offset + len(payload) > end:
                raise errors.WireError(f"chunk at {offset} where {position} was expected")
            while payload:
                part, payload = payload[: piece.end - position], payload[piece.end - position :]
                piece.digest.update(part)
                if piece.is_own:
                    self._places.write(piece.number, stream, position, part)
                else:
                    piece.gathered.append(part)
                position += len(part)
                if position == piece.end:
                    self._keep(piece, stream)
                    following = piece.number + 1
                    is_own = position < end and self._places.claim(following, stream)
                    piece = _Piece(self._artifact, following, is_own=is_own)
        if position < end:
            raise errors.UnavailableError(f"{stream.source.address} ended the stream at byte {position} of {end}")

    def _keep(self, piece: _Piece, stream: _Stream) -> None:
        if not pieces.matches(self._artifact, piece.number, piece.digest.digest()):
            raise errors.DigestError(
                f"piece {piece.number} of artifact {self._artifact.artifact_id} from {stream.source.address} does not"
                " match its digest"
            )
        if not piece.is_own and self._places.take_over(piece.number, stream):
            place = piece.start
            for part in piece.gathered:
                self._places.write(piece.number, stream, place, part)
                place += len(part)
        # Together: a piece that is done and still counts as missing would be fetched again.
        with self._changed:
            if not self._places.done(piece.number, stream):
                return
            if self._artifact.pieces:
                self._shelf.add(self._holding, 1 << piece.number)
            self._counts.fetched(stream.source.kind, piece.end - piece.start)
            self._state.had(piece.number, stream.job.address)
            self._moved_at = self._now()
            self._changed.notify_all()
