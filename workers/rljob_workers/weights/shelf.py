"""What a rollout holds of artifacts in memory, and may serve to others: whole ones, and verified pieces of one that is
still being fetched.

    fetch thread    hold(artifact, view) -> add(piece), ...                          withdraw(artifacts), then overwrite
    served streams                       read(artifact, range), chunk by chunk       `MovedError` from then on

Bytes are read by a stream only between the verification of their piece and `withdraw`, which returns once no stream
reads: what is overwritten afterwards cannot get into a frame. No disk, and no copy but the one into the frame.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import xxhash

from rljob_api import errors, types
from rljob_workers.weights import frames, pieces

GRACE_S = 5.0


class Holding:
    """One artifact's bytes in `view`, and which of its pieces are there. Changed under the shelf's lock."""

    def __init__(self, artifact: types.Artifact, view: memoryview, *, is_kept: bool) -> None:
        self.artifact, self.view, self.is_kept = artifact, view, is_kept
        # Of what is there, `unchecked` was verified by other means than by piece.
        self.have, self.unchecked = 0, 0
        self.is_leaving = False
        self.num_streams, self.num_readers = 0, 0

    @property
    def is_whole(self) -> bool:
        return not self.is_leaving and self.have == pieces.full(pieces.count(self.artifact))


class Shelf:
    """The holdings of one process, oldest first. Thread-safe.

    most_bytes: of artifacts whose memory exists for serving alone, the changes; 0: this process serves nobody.
    grace_s: how long streams that are under way may hold up who wants to overwrite their bytes.
    """

    def __init__(
        self, *, most_bytes: int = 0, grace_s: float = GRACE_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.most_bytes, self.grace_s = most_bytes, grace_s
        self._now = now
        self._changed = threading.Condition()
        self._holdings: dict[str, Holding] = {}

    def hold(self, artifact: types.Artifact, view: memoryview, *, is_kept: bool) -> Holding:
        """Announce memory that pieces of an artifact will be in, each from `add` on.

        is_kept: `view` is of memory that is there for this alone and stays until `most_bytes` are exceeded; else it is
        someone else's, who calls `withdraw` before it is overwritten.
        """
        holding = Holding(artifact, view[: artifact.num_bytes], is_kept=is_kept)
        with self._changed:
            # At its end: it is the newest.
            self._holdings.pop(artifact.artifact_id, None)
            self._holdings[artifact.artifact_id] = holding
        return holding

    def add(self, holding: Holding, piece_set: int, *, is_checked: bool = True) -> None:
        """Say that pieces are in their places. is_checked: they were verified; else each is before it is sent first.

        Of an artifact that is held no longer they are not noted: its memory may be overwritten.
        """
        with self._changed:
            if self._holdings.get(holding.artifact.artifact_id) is holding:
                holding.have |= piece_set
                holding.unchecked |= 0 if is_checked else piece_set

    def trim(self) -> None:
        """Drop the oldest artifacts that are kept for serving while they have more than `most_bytes`."""
        with self._changed:
            for_serving = [holding for holding in self._holdings.values() if holding.is_kept]
            num_bytes = sum(holding.artifact.num_bytes for holding in for_serving)
            for holding in for_serving:
                if num_bytes <= self.most_bytes and holding.is_whole:
                    continue
                num_bytes -= holding.artifact.num_bytes
                holding.is_leaving = True
                self._holdings.pop(holding.artifact.artifact_id)

    def withdraw(self, view: memoryview) -> None:
        """Return once nothing reads from artifacts in this memory any more.

        Streams that are under way may go on for `grace_s`; then they end with MovedError, as new ones do at once.
        """
        with self._changed:
            leaving = [holding for holding in self._holdings.values() if holding.view.obj is view.obj]
            for holding in leaving:
                holding.is_leaving = True
            end = self._now() + self.grace_s
            while any(holding.num_streams for holding in leaving) and self._now() < end:
                self._changed.wait(end - self._now())
            for holding in leaving:
                holding.have = 0
                self._holdings.pop(holding.artifact.artifact_id, None)
            while any(holding.num_readers for holding in leaving):
                self._changed.wait()

    def whole(self) -> tuple[str, ...]:
        """Return the ids of the artifacts that can be had here whole, the newest first."""
        with self._changed:
            return tuple(name for name, holding in reversed(self._holdings.items()) if holding.is_whole)

    @contextlib.contextmanager
    def stream(self, artifact_id: str) -> Iterator[Holding]:
        """Keep an artifact from being overwritten for as long as the block runs, within the grace of `withdraw`.

        Raises MovedError for one that is not here, or is about to go.
        """
        with self._changed:
            holding = self._holdings.get(artifact_id)
            if holding is None or holding.is_leaving:
                raise errors.MovedError(f"artifact {artifact_id} is not held here")
            holding.num_streams += 1
        try:
            yield holding
        finally:
            with self._changed:
                holding.num_streams -= 1
                self._changed.notify_all()

    def frame(self, holding: Holding, start: int, end: int) -> bytes:
        """Return bytes [start, end) as a frame. Raises MovedError if they are not verified, or no longer there."""
        covering = pieces.covering(holding.artifact, start, end)
        with self._changed:
            if holding.have & covering != covering:
                raise errors.MovedError(f"bytes {start} to {end} of artifact {holding.artifact.artifact_id} moved")
            holding.num_readers += 1
        try:
            self._check(holding, covering & holding.unchecked)
            return frames.pack(frames.FrameKind.CHUNK, start, holding.view[start:end])
        finally:
            with self._changed:
                holding.num_readers -= 1
                self._changed.notify_all()

    def _check(self, holding: Holding, unchecked: int) -> None:
        for piece in pieces.members(unchecked):
            start, end = pieces.bounds(holding.artifact, piece, piece + 1)
            bit = 1 << piece
            is_right = pieces.matches(holding.artifact, piece, xxhash.xxh3_128_digest(holding.view[start:end]))
            with self._changed:
                holding.unchecked &= ~bit
                holding.have &= ~0 if is_right else ~bit
            if not is_right:
                raise errors.MovedError(f"piece {piece} of artifact {holding.artifact.artifact_id} is not held here")
