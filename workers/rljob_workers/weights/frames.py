"""Raw frames for bulk bytes: a fixed header and the payload, no protobuf around megabytes.

Header, little-endian: magic u32, kind u8, 3 pad bytes, offset u64, length u64, xxh3-64 of the payload u64.
Python's grpcio takes only `bytes` from a serialiser, so a chunk is joined with its header once: that is the one copy.
"""

import enum
import struct
from collections.abc import Iterator

import xxhash

from rljob_api import enums, errors

_HEADER = struct.Struct("<IB3xQQQ")
_MAGIC = 0x31574C52  # "RLW1"


class FrameKind(enum.IntEnum):
    """What a frame is."""

    CHUNK = 1
    COMMIT = 2


def pack(kind: FrameKind, offset: int, payload: memoryview | bytes) -> bytes:
    """Return one frame. `offset` is the payload's place in the artifact, bytes."""
    header = _HEADER.pack(_MAGIC, kind, offset, len(payload), xxhash.xxh3_64_intdigest(payload))
    return b"".join((header, payload))


def unpack(frame: bytes) -> tuple[FrameKind, int, memoryview]:
    """Return kind, offset and payload (a view). Raises WireError for a foreign frame, DigestError for a damaged one."""
    if len(frame) < _HEADER.size:
        raise errors.WireError(f"a frame of {len(frame)} bytes is shorter than its header")
    magic, kind, offset, length, digest = _HEADER.unpack_from(frame)
    payload = memoryview(frame)[_HEADER.size :]
    if magic != _MAGIC or length != len(payload):
        raise errors.WireError("not a weight frame, or cut short")
    if xxhash.xxh3_64_intdigest(payload) != digest:
        raise errors.DigestError(f"chunk at offset {offset} does not match its checksum")
    return FrameKind(kind), offset, payload


def chunks(data: memoryview, *, offset: int = 0, chunk_bytes: int = enums.CHUNK_BYTES) -> Iterator[bytes]:
    """Yield CHUNK frames for `data`, whose first byte stands at `offset` of the artifact."""
    for start in range(0, len(data), chunk_bytes):
        yield pack(FrameKind.CHUNK, offset + start, data[start : start + chunk_bytes])
