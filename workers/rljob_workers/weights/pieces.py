"""The pieces of an artifact: what is verified, had and asked for by itself. Pure.

A set of pieces is an `int` whose bit i says that piece i is in it: 17,500 pieces are 2 kB, and what one source has
that another lacks is one operation on them. On the wire it is little-endian bytes.

xxh3-128 finds damage and says which source it came from; that the whole is what the publisher made is said by the
BLAKE3 that names an artifact, and of an image that is not stored by its tensors' digests and the state hash over them.
"""

from collections.abc import Iterable, Iterator

import blake3
import xxhash

from rljob_api import enums, errors, types


def describe(data: memoryview, encoding: enums.Encoding, *, piece_bytes: int = enums.PIECE_BYTES) -> types.Artifact:
    """Return the artifact that `data` are, with the digests of its pieces."""
    return _described(data, encoding, blake3.blake3(data, max_threads=2).hexdigest(), piece_bytes)


def describe_image(data: memoryview, state_hash: str, *, piece_bytes: int = enums.PIECE_BYTES) -> types.Artifact:
    """Return the image `data` of a version as rollouts serve it to one another without that anyone has stored it."""
    return _described(data, enums.Encoding.IMAGE, state_hash, piece_bytes)


def _described(data: memoryview, encoding: enums.Encoding, name: str, piece_bytes: int) -> types.Artifact:
    starts = range(0, len(data), piece_bytes)
    digests = b"".join(xxhash.xxh3_128_digest(data[start : start + piece_bytes]) for start in starts)
    return types.Artifact(
        artifact_id=name, encoding=encoding, num_bytes=len(data), piece_bytes=piece_bytes, pieces=digests
    )


def count(artifact: types.Artifact) -> int:
    """Return how many pieces an artifact has; one whose pieces are not known is fetched in pieces all the same."""
    return -(-artifact.num_bytes // _size(artifact))


def bounds(artifact: types.Artifact, first: int, after: int) -> tuple[int, int]:
    """Return the bytes [start, end) of pieces [first, after)."""
    return first * _size(artifact), min(after * _size(artifact), artifact.num_bytes)


def covering(artifact: types.Artifact, start: int, end: int) -> int:
    """Return the pieces that hold bytes [start, end)."""
    first, after = start // _size(artifact), -(-end // _size(artifact))
    return between(first, after)


def matches(artifact: types.Artifact, piece: int, digest: bytes) -> bool:
    """Return whether xxh3-128 `digest` is that of a piece, or the piece's is not known."""
    place = piece * enums.PIECE_DIGEST_BYTES
    return not artifact.pieces or artifact.pieces[place : place + enums.PIECE_DIGEST_BYTES] == digest


def full(num_pieces: int) -> int:
    """Return the set of all of so many pieces."""
    return (1 << num_pieces) - 1


def between(first: int, after: int) -> int:
    """Return the set of pieces [first, after)."""
    return full(after) & ~full(first)


def union(piece_sets: Iterable[int]) -> int:
    """Return the set of what is in any of them."""
    in_any = 0
    for piece_set in piece_sets:
        in_any |= piece_set
    return in_any


def members(piece_set: int) -> Iterator[int]:
    """Yield the pieces of a set, ascending."""
    while piece_set:
        lowest = piece_set & -piece_set
        yield lowest.bit_length() - 1
        piece_set ^= lowest


def lowest(piece_set: int, most: int) -> int:
    """Return the first `most` pieces of a set."""
    taken = 0
    for _ in range(most):
        taken |= (piece_set ^ taken) & -(piece_set ^ taken)
    return taken


def first_run(piece_set: int) -> tuple[int, int]:
    """Return [first, after) of the lowest pieces of a set that follow each other; the set is not empty."""
    first = (piece_set & -piece_set).bit_length() - 1
    rest = ~(piece_set >> first)
    return first, first + (rest & -rest).bit_length() - 1


def to_wire(piece_set: int) -> bytes:
    return piece_set.to_bytes(-(-piece_set.bit_length() // 8), "little")


def from_wire(data: bytes, num_pieces: int) -> int:
    """Raises WireError for a piece beyond the last."""
    piece_set = int.from_bytes(data, "little")
    if piece_set >> num_pieces:
        raise errors.WireError(f"a set of pieces names piece {piece_set.bit_length() - 1} of {num_pieces}")
    return piece_set


def _size(artifact: types.Artifact) -> int:
    return artifact.piece_bytes or enums.PIECE_BYTES
