import blake3
import hypothesis
import pytest
import xxhash
from hypothesis import strategies

from rljob_api import enums, errors, types
from rljob_api.wire import codec
from rljob_workers.weights import pieces

SETS = strategies.sets(strategies.integers(0, 200))


def as_int(members: set[int]) -> int:
    return sum(1 << piece for piece in members)


def test_an_artifact_names_its_bytes_and_each_of_its_pieces() -> None:
    data = bytes(range(256)) * 10
    artifact = pieces.describe(memoryview(data), enums.Encoding.DELTA, piece_bytes=1000)
    assert artifact.artifact_id == blake3.blake3(data).hexdigest()
    parts = [data[:1000], data[1000:2000], data[2000:]]
    assert artifact.pieces == b"".join(map(xxhash.xxh3_128_digest, parts))
    assert [pieces.matches(artifact, piece, xxhash.xxh3_128_digest(part)) for piece, part in enumerate(parts)] == [
        True
    ] * 3
    assert not pieces.matches(artifact, 0, xxhash.xxh3_128_digest(parts[1]))
    assert codec.decode(types.Artifact, codec.encode(artifact)) == artifact


@pytest.mark.parametrize(("num_bytes", "count", "last"), [(0, 0, 0), (1, 1, 1), (1000, 1, 1000), (2560, 3, 560)])
def test_the_last_piece_is_what_is_left(num_bytes: int, count: int, last: int) -> None:
    artifact = pieces.describe(memoryview(bytes(num_bytes)), enums.Encoding.WHOLE, piece_bytes=1000)
    assert pieces.count(artifact) == count
    start, end = pieces.bounds(artifact, max(0, count - 1), count)
    assert end - start == last


def test_bytes_are_covered_by_every_piece_that_they_touch() -> None:
    artifact = pieces.describe(memoryview(bytes(4000)), enums.Encoding.WHOLE, piece_bytes=1000)
    assert pieces.covering(artifact, 999, 1001) == 0b0011
    assert pieces.covering(artifact, 1000, 2000) == 0b0010
    assert pieces.covering(artifact, 0, 4000) == pieces.full(4)


def test_an_artifact_without_known_pieces_matches_whatever_comes() -> None:
    artifact = types.Artifact(artifact_id="a", encoding=enums.Encoding.WHOLE, num_bytes=enums.PIECE_BYTES + 1)
    assert pieces.count(artifact) == 2
    assert pieces.matches(artifact, 1, b"anything")


@pytest.mark.parametrize(("piece_bytes", "digests"), [(1000, bytes(16)), (1000, bytes(47)), (0, bytes(16))])
def test_digests_of_another_number_of_pieces_are_refused(piece_bytes: int, digests: bytes) -> None:
    with pytest.raises(errors.WireError, match=rf"artifact a has {len(digests)} bytes of digests for \d pieces"):
        types.Artifact(
            artifact_id="a", encoding=enums.Encoding.WHOLE, num_bytes=2001, piece_bytes=piece_bytes, pieces=digests
        )


@hypothesis.given(SETS)
def test_a_set_comes_back_from_the_wire(members: set[int]) -> None:
    found = as_int(members)
    assert set(pieces.members(found)) == members
    assert pieces.from_wire(pieces.to_wire(found), 201) == found


@hypothesis.given(SETS.filter(bool), strategies.integers(1, 300))
def test_the_first_pieces_and_the_first_run_are_the_lowest(members: set[int], most: int) -> None:
    found = as_int(members)
    assert list(pieces.members(pieces.lowest(found, most))) == sorted(members)[:most]
    first, after = pieces.first_run(found)
    assert first == min(members)
    assert set(range(first, after)) <= members
    assert after not in members


def test_a_set_with_a_piece_beyond_the_last_is_refused() -> None:
    with pytest.raises(errors.WireError, match="piece 8 of 8"):
        pieces.from_wire(pieces.to_wire(1 << 8), 8)


def test_140_gigabytes_have_280_kilobytes_of_digests() -> None:
    num_pieces = -(-140_000_000_000 // enums.PIECE_BYTES)
    assert num_pieces * enums.PIECE_DIGEST_BYTES < 280_000 < enums.MAX_BATCH_PART_BYTES
