import concurrent.futures
import threading

from rljob_workers.weights.backends import places


def make() -> tuple[bytearray, places.Places]:
    into = bytearray(8)
    return into, places.Places(memoryview(into))


def test_the_first_stream_of_a_piece_writes_it_and_no_other_one_does() -> None:
    into, found = make()
    first, second = object(), object()
    assert found.claim(0, first)
    assert not found.claim(0, second)
    assert found.write(0, first, 0, memoryview(b"ab"))
    assert not found.write(0, second, 0, memoryview(b"xy"))
    assert found.done(0, first)
    assert into == b"ab" + bytes(6)


def test_nobody_writes_where_a_piece_is_done() -> None:
    into, found = make()
    first, second = object(), object()
    found.claim(0, first)
    found.write(0, first, 0, memoryview(b"ab"))
    found.done(0, first)
    found.release(first)
    assert not found.claim(0, second)
    assert not found.take_over(0, second)
    for stream in (first, second):
        assert not found.write(0, stream, 0, memoryview(b"xy"))
        assert not found.done(0, stream)
    assert into == b"ab" + bytes(6)


def test_who_is_taken_over_writes_no_more() -> None:
    into, found = make()
    first, second = object(), object()
    found.claim(0, first)
    assert found.take_over(0, second)
    assert not found.write(0, first, 0, memoryview(b"xy"))
    assert not found.done(0, first)
    assert found.write(0, second, 0, memoryview(b"ab"))
    assert found.done(0, second)
    assert into == b"ab" + bytes(6)


def test_what_a_stream_leaves_unfinished_may_be_claimed() -> None:
    _, found = make()
    first, second = object(), object()
    found.claim(0, first)
    found.release(first)
    assert not found.write(0, first, 0, memoryview(b"xy"))
    assert found.claim(0, second)


def test_nothing_is_written_once_they_are_closed() -> None:
    into, found = make()
    stream = object()
    found.claim(0, stream)
    found.close()
    assert not found.write(0, stream, 0, memoryview(b"xy"))
    assert not found.done(0, stream)
    assert into == bytes(8)


def test_streams_that_race_for_pieces_leave_each_as_the_one_that_finished_it_wrote_it() -> None:
    """Every stream writes its own number all over a piece, in parts, gives up now and then, or takes over."""
    size, count, streams = 1 << 10, 40, 6
    into = bytearray(size * count)
    found = places.Places(memoryview(into))
    finished: dict[int, int] = {}
    lock = threading.Lock()

    def run(number: int) -> None:
        for piece in range(count):
            stream = object()
            if not found.claim(piece, stream) and not found.take_over(piece, stream):
                continue
            for start in range(piece * size, (piece + 1) * size, size // 4):
                found.write(piece, stream, start, memoryview(bytes([number]) * (size // 4)))
            if (number + piece) % 5 and found.done(piece, stream):
                with lock:
                    assert piece not in finished
                    finished[piece] = number
            found.release(stream)

    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        list(pool.map(run, range(1, streams + 1)))
    assert len(finished) == count
    for piece, number in finished.items():
        assert into[piece * size : (piece + 1) * size] == bytes([number]) * size
