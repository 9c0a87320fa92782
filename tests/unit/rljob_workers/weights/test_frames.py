import hypothesis
import hypothesis.strategies as st
import pytest

from rljob_api import errors
from rljob_workers.weights import frames


@pytest.mark.covers("weights W-10")
@hypothesis.given(st.binary(max_size=200), st.integers(0, 2**40), st.integers(1, 64))
def test_chunks_put_together_give_the_data(data: bytes, offset: int, chunk_bytes: int) -> None:
    into = bytearray(len(data))
    for frame in frames.chunks(memoryview(data), offset=offset, chunk_bytes=chunk_bytes):
        kind, at, payload = frames.unpack(frame)
        assert kind is frames.FrameKind.CHUNK
        into[at - offset : at - offset + len(payload)] = payload
    assert bytes(into) == data


@pytest.mark.covers("weights W-10")
@hypothesis.given(st.binary(min_size=1, max_size=64), st.data())
def test_flipped_bit_in_a_payload_is_refused(payload: bytes, data: st.DataObject) -> None:
    frame = bytearray(frames.pack(frames.FrameKind.CHUNK, 0, payload))
    position = data.draw(st.integers(len(frame) - len(payload), len(frame) - 1))
    frame[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(errors.DigestError, match="does not match its checksum"):
        frames.unpack(bytes(frame))


@pytest.mark.covers("weights W-10")
@pytest.mark.parametrize("frame", [b"", b"short", b"x" * 64, frames.pack(frames.FrameKind.CHUNK, 0, b"abc")[:-1]])
def test_foreign_or_cut_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(errors.WireError):
        frames.unpack(frame)
