import concurrent.futures
import os
import threading

import pytest

from rljob_api import enums, errors, types
from rljob_workers.weights import frames, pieces, shelf

DATA = os.urandom(4000)
ARTIFACT = pieces.describe(memoryview(DATA), enums.Encoding.DELTA, piece_bytes=1000)
NAME = ARTIFACT.artifact_id


@pytest.fixture
def image() -> memoryview:
    return memoryview(bytearray(DATA))


@pytest.fixture
def kept(image: memoryview) -> shelf.Shelf:
    found = shelf.Shelf(most_bytes=10_000)
    found.add(found.hold(ARTIFACT, image, is_kept=True), pieces.full(4))
    return found


def read(held: shelf.Shelf, start: int, end: int) -> bytes:
    with held.stream(NAME) as holding:
        _, offset, payload = frames.unpack(held.frame(holding, start, end))
    assert offset == start
    return bytes(payload)


def test_what_was_verified_is_served(kept: shelf.Shelf) -> None:
    assert kept.whole() == (NAME,)
    assert read(kept, 0, 4000) == DATA
    assert read(kept, 999, 1001) == DATA[999:1001]


def test_what_was_not_verified_is_not_served_although_its_bytes_are_there(image: memoryview) -> None:
    held = shelf.Shelf()
    held.add(held.hold(ARTIFACT, image, is_kept=False), 0b0010)
    assert held.whole() == ()
    assert read(held, 1000, 2000) == DATA[1000:2000]
    for start, end in ((0, 1000), (1500, 2001), (0, 4000)):
        with pytest.raises(errors.MovedError, match=f"bytes {start} to {end}"):
            read(held, start, end)


def test_what_was_verified_by_other_means_is_verified_by_piece_before_it_is_sent(image: memoryview) -> None:
    held = shelf.Shelf()
    held.add(held.hold(ARTIFACT, image, is_kept=False), pieces.full(4), is_checked=False)
    image[2500] ^= 1
    assert read(held, 1000, 2000) == DATA[1000:2000]
    with pytest.raises(errors.MovedError, match="piece 2 of"):
        read(held, 1500, 2500)
    # It is not offered as whole from then on.
    assert held.whole() == ()
    assert read(held, 3000, 4000) == DATA[3000:]


def test_an_artifact_that_is_not_held_has_moved(kept: shelf.Shelf) -> None:
    with pytest.raises(errors.MovedError, match="not held here"), kept.stream("other"):
        pass


def test_the_oldest_changes_go_when_they_are_too_many() -> None:
    held, names = shelf.Shelf(most_bytes=7000), []
    for number in range(3):
        data = memoryview(bytearray([number]) * 3000)
        artifact = pieces.describe(data, enums.Encoding.DELTA, piece_bytes=1000)
        held.add(held.hold(artifact, data, is_kept=True), pieces.full(3))
        held.trim()
        names.append(artifact.artifact_id)
    assert held.whole() == (names[2], names[1])


def test_changes_that_broke_off_are_not_kept(image: memoryview) -> None:
    held = shelf.Shelf(most_bytes=10_000)
    held.hold(ARTIFACT, image, is_kept=True)
    held.trim()
    with pytest.raises(errors.MovedError), held.stream(NAME):
        pass


def test_a_process_that_serves_nobody_keeps_nothing(image: memoryview) -> None:
    held = shelf.Shelf()
    held.add(held.hold(ARTIFACT, image, is_kept=True), pieces.full(4))
    held.trim()
    assert held.whole() == ()


def test_memory_of_others_is_not_trimmed(image: memoryview) -> None:
    held = shelf.Shelf()
    held.add(held.hold(ARTIFACT, image, is_kept=False), pieces.full(4))
    held.trim()
    assert held.whole() == (NAME,)


def test_a_stream_that_is_in_the_way_for_too_long_ends_with_moved(kept: shelf.Shelf, image: memoryview) -> None:
    with kept.stream(NAME) as holding:
        kept.frame(holding, 0, 1000)
        kept.grace_s = 0.0
        kept.withdraw(image)
        with pytest.raises(errors.MovedError, match="moved"):
            kept.frame(holding, 1000, 2000)
    assert kept.whole() == ()


def test_a_stream_may_end_before_its_bytes_are_overwritten_and_no_other_one_begins(
    kept: shelf.Shelf, image: memoryview
) -> None:
    opened, close = threading.Event(), threading.Event()

    def stream() -> bytes:
        with kept.stream(NAME) as holding:
            opened.set()
            assert close.wait(30)
            return kept.frame(holding, 0, 4000)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        streamed = pool.submit(stream)
        assert opened.wait(30)
        kept.grace_s = 30.0
        overwritten = pool.submit(kept.withdraw, image)
        while kept.whole():
            pass
        with pytest.raises(errors.MovedError), kept.stream(NAME):
            pass
        assert not overwritten.done()
        close.set()
        overwritten.result(30)
        image[:] = bytes(4000)
        assert bytes(frames.unpack(streamed.result(30))[2]) == DATA


def test_a_piece_that_is_verified_while_its_memory_is_withdrawn_is_not_served(image: memoryview) -> None:
    """A stream of before the withdrawal must not read what is written there afterwards."""
    held = shelf.Shelf(grace_s=0.0)
    holding = held.hold(ARTIFACT, image, is_kept=False)
    with held.stream(NAME) as seen:
        held.withdraw(image)
        held.add(holding, pieces.full(4))
        with pytest.raises(errors.MovedError):
            held.frame(seen, 0, 1000)


def test_other_memory_stays_when_an_image_is_overwritten(kept: shelf.Shelf) -> None:
    kept.withdraw(memoryview(bytearray(4000)))
    assert kept.whole() == (NAME,)


def test_an_artifact_that_is_fetched_again_is_held_in_its_new_memory(kept: shelf.Shelf) -> None:
    again = types.Artifact(artifact_id=NAME, encoding=ARTIFACT.encoding, num_bytes=4000)
    kept.hold(again, memoryview(bytearray(4000)), is_kept=True)
    assert kept.whole() == ()
