"""The protocol between the supervisor and a grading worker: 4 bytes of length, little-endian, then a JSON object.

Both sides refuse a frame over their bound before reading it, so that neither can be made to hold arbitrary memory.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from rljob_api import errors

MAX_REQUEST_BYTES = 16 << 20
MAX_REPLY_BYTES = 64 << 10

_HEADER = struct.Struct("<I")


def encode(payload: Mapping[str, object], *, max_bytes: int) -> bytes:
    """Return the frame of a payload. Raises WireError over `max_bytes` of body or if it is not JSON."""
    try:
        # Lone surrogates survive as escapes, so that no completion is impossible to send.
        body = json.dumps(payload, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.WireError(f"payload is not JSON: {error}") from error
    if len(body) > max_bytes:
        raise errors.WireError(f"a frame of {len(body)} bytes exceeds {max_bytes}")
    return _HEADER.pack(len(body)) + body


def decode_body(body: bytes) -> dict[str, object]:
    """Return the payload of a frame's body. Raises WireError if it is not a JSON object."""
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise errors.WireError(f"frame is not JSON: {error}") from error
    if not isinstance(payload, dict):
        raise errors.WireError(f"frame holds a JSON {type(payload).__name__}, not an object")
    return payload


class Decoder:
    """Cuts a byte stream into frames. Raises WireError on a frame over the bound, and then stays unusable."""

    def __init__(self, *, max_bytes: int) -> None:
        """`max_bytes` bounds one frame's body."""
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, object]]:
        """Yield the payloads that `data` completes."""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            end = _HEADER.size + self._length()
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield decode_body(body)

    def _length(self) -> int:
        (length,) = _HEADER.unpack_from(self._buffer)
        if length > self._max_bytes:
            raise errors.WireError(f"a frame of {length} bytes exceeds {self._max_bytes}")
        return int(length)


def write(stream: BinaryIO, payload: Mapping[str, object], *, max_bytes: int) -> None:
    """Write a whole frame to a blocking stream without a buffer. Raises WireError as `encode` does."""
    data = memoryview(encode(payload, max_bytes=max_bytes))
    while data:
        data = data[stream.write(data) or 0 :]


def read(stream: BinaryIO, *, max_bytes: int) -> dict[str, object] | None:
    """Return the next payload of a blocking stream, None at its end. Raises WireError if it ends within a frame."""
    header = stream.read(_HEADER.size)
    if not header:
        return None
    (length,) = _HEADER.unpack(header) if len(header) == _HEADER.size else (max_bytes + 1,)
    body = stream.read(length) if length <= max_bytes else b""
    if len(body) != length:
        raise errors.WireError(f"the stream ended within a frame of {length} bytes, or it exceeds {max_bytes}")
    return decode_body(body)
