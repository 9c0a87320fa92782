"""Who may write which piece into an artifact's memory: one stream at a time, and nobody after its piece was verified.

A stream that begins with a piece owns its place and writes chunks there as they come, unverified. Another one that
fetches the same piece gathers it beside, and takes the place over once it has verified it. A stream that is given up,
or whose place was taken over, writes no more, however late it comes back. Thread-safe.
"""

import threading
from typing import Final

_DONE: Final = object()


class Places:
    """The places in `into`. A stream is whatever is told from others by identity."""

    def __init__(self, into: memoryview) -> None:
        self._into = into
        self._changed = threading.Condition()
        self._owners: dict[int, object] = {}
        # Pieces of which bytes are being copied now.
        self._busy: set[int] = set()
        self._is_closed = False

    def claim(self, piece: int, stream: object) -> bool:
        """Return whether the stream owns the place from now on: nobody did, and it is not done."""
        with self._changed:
            return self._owners.setdefault(piece, stream) is stream

    def take_over(self, piece: int, stream: object) -> bool:
        """Make the stream the owner once nobody writes there; False if the piece is done."""
        with self._changed:
            if self._owners.get(piece) is _DONE:
                return False
            self._owners[piece] = stream
            self._changed.wait_for(lambda: piece not in self._busy)
            return self._owners[piece] is stream

    def write(self, piece: int, stream: object, start: int, data: memoryview) -> bool:
        """Copy bytes to `start` of the artifact; False, and nothing is written, if the place is not the stream's."""
        with self._changed:
            if self._is_closed or self._owners.get(piece) is not stream:
                return False
            self._busy.add(piece)
        try:
            self._into[start : start + len(data)] = data
        finally:
            with self._changed:
                self._busy.discard(piece)
                self._changed.notify_all()
        return True

    def done(self, piece: int, stream: object) -> bool:
        """Say that the stream has verified what it wrote; False if the place is not, or no longer, its own."""
        with self._changed:
            if self._is_closed or self._owners.get(piece) is not stream:
                return False
            self._owners[piece] = _DONE
            return True

    def release(self, stream: object) -> None:
        """The stream writes no more; its places that are not done may be claimed."""
        with self._changed:
            for piece in [piece for piece, owner in self._owners.items() if owner is stream]:
                del self._owners[piece]
            self._changed.notify_all()

    def close(self) -> None:
        """Return once nothing is written any more, for good."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._busy)
