"""Lines of a file that someone else writes, in bounded memory: one at a time, and of a long one only its start."""

import dataclasses
from collections.abc import Iterator
from typing import IO


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RawLine:
    """One line without its end. `cut`: the line is longer; `complete`: its line feed is there."""

    data: bytes
    cut: bool
    complete: bool


def read(stream: IO[bytes], *, max_bytes: int) -> Iterator[RawLine]:
    """Yield lines of at most `max_bytes` each; the rest of a longer one is skipped."""
    while first := stream.readline(max_bytes):
        piece, num_skipped = first, 0
        while not piece.endswith(b"\n") and (piece := stream.readline(max_bytes)):
            num_skipped += len(piece.rstrip(b"\n"))
        yield RawLine(data=first.rstrip(b"\r\n"), cut=num_skipped > 0, complete=piece.endswith(b"\n"))
