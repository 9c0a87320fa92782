"""The frame protocol between supervisor and worker."""

import io

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_api import errors
from rljob_workers.verifier import frames

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PAYLOADS = st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=5)
BOUND = 1 << 20


@hypothesis.given(payloads=PAYLOADS, data=st.data())
def test_frames_survive_any_cut_of_the_stream(payloads: list[dict[str, object]], data: st.DataObject) -> None:
    stream = b"".join(frames.encode(payload, max_bytes=BOUND) for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder, received = frames.Decoder(max_bytes=BOUND), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += list(decoder.feed(stream[start:end]))
    assert received == payloads


@hypothesis.given(payloads=PAYLOADS)
def test_blocking_reader_returns_what_was_written_and_then_the_end(payloads: list[dict[str, object]]) -> None:
    stream = io.BytesIO(b"".join(frames.encode(payload, max_bytes=BOUND) for payload in payloads))
    assert [frames.read(stream, max_bytes=BOUND) for _ in payloads] == payloads
    assert frames.read(stream, max_bytes=BOUND) is None


@hypothesis.given(noise=st.binary(max_size=64))
def test_noise_is_refused_or_awaited_but_never_anything_else(noise: bytes) -> None:
    decoder = frames.Decoder(max_bytes=32)
    try:
        payloads = list(decoder.feed(noise))
    except errors.WireError:
        return
    assert all(isinstance(payload, dict) for payload in payloads)


def test_lone_surrogate_survives() -> None:
    data = frames.encode({"text": "\udc80"}, max_bytes=BOUND)
    assert list(frames.Decoder(max_bytes=BOUND).feed(data)) == [{"text": "\udc80"}]


def test_frame_over_the_bound_is_refused_by_its_length_alone() -> None:
    with pytest.raises(errors.WireError, match="exceeds 10"):
        list(frames.Decoder(max_bytes=10).feed(b"\x0b\x00\x00\x00"))


def test_payload_over_the_bound_is_not_encoded() -> None:
    with pytest.raises(errors.WireError, match="exceeds 10"):
        frames.encode({"text": "twelve chars"}, max_bytes=10)


@pytest.mark.parametrize("body", [b"[1]", b"nope", b"\xff", b"1"], ids=["a list", "no JSON", "no UTF-8", "a number"])
def test_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(errors.WireError):
        frames.decode_body(body)


@pytest.mark.parametrize("stream", [b"\x05\x00", b"\x05\x00\x00\x00{}"], ids=["in the header", "in the body"])
def test_stream_that_ends_within_a_frame_is_refused(stream: bytes) -> None:
    with pytest.raises(errors.WireError, match="ended within a frame"):
        frames.read(io.BytesIO(stream), max_bytes=BOUND)
