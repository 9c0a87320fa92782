"""Deadlines by bytes, and slow peers on loopback whose clock the tests move."""

import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable, Iterator

import grpc
import pytest

from rljob_api import enums, errors, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import weights_pb2
from rljob_testing.clock import FakeClock
from rljob_workers.runtime import retry, stall
from rljob_workers.weights import deadlines, frames, image, pieces
from rljob_workers.weights.backends import grpc_store

# 70 billion parameters in bfloat16, and the built-in model.
HUGE, SMALL = 140_000_000_000, 269_030_016
DATA = bytes(range(256)) * (5 * enums.CHUNK_BYTES // 256)
ARTIFACT = pieces.describe(memoryview(DATA), enums.Encoding.WHOLE)
# As one that was published before pieces were: no one is asked who has which.
UNKNOWN = types.Artifact(artifact_id=ARTIFACT.artifact_id, encoding=ARTIFACT.encoding, num_bytes=len(DATA))


@pytest.mark.parametrize(
    ("deadline", "huge", "small"),
    [
        (deadlines.idle_deadline_s, 60 + 1400, 62.7),
        (deadlines.transfer_deadline_s, 60 + 7000, 73.5),
        (deadlines.pause_deadline_s, 10 + 700, 11.3),
        (deadlines.restart_deadline_s, 600 + 1400, 602.7),
        (deadlines.collective_deadline_s, 1800 + 7060, 1873.5),
        (deadlines.reconnect_deadline_s, 600 + 7060, 673.5),
        (deadlines.last_checkpoint_deadline_s, 7200 + 7060, 7273.5),
        (deadlines.read_s, 1400, 2.7),
    ],
)
def test_deadlines_of_140_gigabytes_and_of_the_built_in_model(
    deadline: Callable[[int], float], huge: float, small: float
) -> None:
    assert deadline(HUGE) == pytest.approx(huge)
    assert deadline(SMALL) == pytest.approx(small, abs=0.1)


def test_what_is_said_of_a_version_of_a_trillion_parameters_fits_into_a_message() -> None:
    """61 layers of 384 experts, as Kimi K2 has them, and as long a chain as there is."""
    experts = [
        (f"model.layers.{layer}.mlp.experts.{expert}.{matrix}_proj.weight", "bfloat16", (7168, 2048))
        for layer in range(61)
        for expert in range(384)
        for matrix in ("gate", "up", "down")
    ]
    layout = image.make_layout(experts)
    assert layout.image_bytes > 2e12
    digests = dict.fromkeys(range(len(experts)), bytes(16))
    version = dataclasses.replace(image.initial_manifest("job", layout, digests), artifacts=(ARTIFACT,))
    passed = dataclasses.replace(version, digests={})
    plan = types.VersionPlan(chain=(*(passed,) * 999, version), sources=(), layout=layout)
    assert len(codec.encode(plan)) < enums.MAX_BATCH_PART_BYTES / 4


def test_a_piece_from_a_rollout_on_a_slow_link_may_take_seconds_and_not_minutes() -> None:
    assert deadlines.piece_deadline_s(enums.PIECE_BYTES) == pytest.approx(6.7, abs=0.1)


def test_a_version_of_140_gigabytes_travels_at_the_rates_that_were_measured() -> None:
    """On loopback: 0.21 GB/s up and 0.49 GB/s down under load, 0.75 GB/s into an engine on two cores."""
    assert deadlines.transfer_deadline_s(HUGE) / 5 > HUGE / 0.21e9
    assert deadlines.transfer_deadline_s(HUGE) / 5 > HUGE / 0.49e9
    assert deadlines.pause_deadline_s(HUGE) / 3 > HUGE / 0.75e9


def test_a_transfer_expires_by_the_time_since_it_moved_not_since_it_began() -> None:
    clock = FakeClock()
    watch = stall.StallWatch(60.0, now=clock.monotonic)
    for _ in range(100):
        clock.tick(60.0)
        assert not watch.expired()
        watch.moved()
    clock.tick(60.1)
    assert watch.expired()


def test_what_stands_still_is_cancelled_once_and_what_ended_is_not() -> None:
    clock, cancelled = FakeClock(), threading.Event()
    watch = stall.StallWatch(60.0, now=clock.monotonic)
    with watch.cancelling(cancelled.set, look_s=0.001):
        clock.tick(61.0)
        assert cancelled.wait(30)
    late = threading.Event()
    with watch.cancelling(late.set, look_s=3600.0):
        pass
    assert not late.is_set()


class Waiting:
    """A clock and sleep for `retry_moving`: time passes by sleeping."""

    def __init__(self) -> None:
        self.clock = FakeClock()

    def retrying(
        self, call: Callable[[], None], position: Callable[[], int], *, idle_timeout_s: float, backoff: retry.Backoff
    ) -> None:
        retry.retry_moving(
            call,
            position,
            idle_timeout_s=idle_timeout_s,
            backoff=backoff,
            now=self.clock.monotonic,
            sleep=self.clock.tick,
        )


def test_a_call_that_progresses_each_time_is_repeated_beyond_any_timeout() -> None:
    waiting, position = Waiting(), 0

    def one_step() -> None:
        nonlocal position
        waiting.clock.tick(50.0)
        position += 1
        if position < 40:
            raise errors.UnavailableError("the link broke")

    waiting.retrying(one_step, lambda: position, idle_timeout_s=60.0, backoff=retry.Backoff(first_s=0.1, most_s=2.0))
    assert waiting.clock.monotonic() > 30 * 60


def test_a_call_without_progress_is_given_up_after_the_idle_timeout() -> None:
    waiting, calls = Waiting(), 0

    def stuck() -> None:
        nonlocal calls
        calls += 1
        raise errors.UnavailableError("all 4 streams are in use")

    with pytest.raises(errors.UnavailableError, match="streams"):
        waiting.retrying(stuck, lambda: 7, idle_timeout_s=60.0, backoff=retry.Backoff(first_s=0.1, most_s=2.0))
    assert 58.0 < waiting.clock.monotonic() <= 60.0
    assert calls > 30


def test_an_error_that_a_retry_cannot_fix_is_raised_at_once() -> None:
    def refused() -> None:
        raise errors.WireError("not a frame")

    with pytest.raises(errors.WireError):
        Waiting().retrying(refused, lambda: 0, idle_timeout_s=60.0, backoff=retry.Backoff(first_s=0.1, most_s=2.0))


class SlowLink:
    """A weight source and store on loopback: it lets a frame through, then waits for the test."""

    def __init__(self) -> None:
        self.may_go_on = threading.Semaphore(0)
        self.sent: list[int] = []
        self.stored = bytearray()
        # Pulls that end after so many frames, one entry per pull.
        self.cut_after: list[int] = []
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        methods = {
            "Pull": grpc.unary_stream_rpc_method_handler(self.pull),
            "Upload": grpc.stream_unary_rpc_method_handler(self.upload),
        }
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("rljob.v1.WeightStore", methods),))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def pull(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        asked = weights_pb2.PullRequest.FromString(request)
        offset, length = asked.offset, asked.length
        most = self.cut_after.pop(0) if self.cut_after else len(DATA)
        for frame in list(frames.chunks(memoryview(DATA)[offset : offset + length], offset=offset))[:most]:
            while not self.may_go_on.acquire(timeout=0.05):
                if not context.is_active():
                    return
            self.sent.append(len(frame))
            yield frame

    def upload(self, request: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        for frame in request:
            kind, offset, payload = frames.unpack(frame)
            if kind is frames.FrameKind.COMMIT:
                return weights_pb2.UploadReply(
                    artifact_id=bytes(payload).decode(), num_bytes=len(self.stored)
                ).SerializeToString()
            while not self.may_go_on.acquire(timeout=0.05):
                if not context.is_active():
                    return b""
            assert offset == len(self.stored)
            self.stored += payload
        return b""


@pytest.fixture
def link() -> Iterator[SlowLink]:
    made = SlowLink()
    yield made
    made.server.stop(None).wait()


class Watched:
    """Makes watches on a clock that the test moves, which look all the time."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.idle_s: list[float] = []
        self.made = threading.Event()

    def __call__(self, idle_s: float) -> stall.StallWatch:
        clock, note = self.clock, self.idle_s

        class Impatient(stall.StallWatch):
            def cancelling(self, cancel: Callable[[], object], *, look_s: float = 0.0):  # type: ignore[no-untyped-def]
                note.append(idle_s)
                return super().cancelling(cancel, look_s=0.001)

        return Impatient(idle_s, now=clock.monotonic)


def pulled(link: SlowLink, watched: Watched, artifact: types.Artifact = UNKNOWN) -> bytes:
    puller = grpc_store.WeightPuller(
        control_address="127.0.0.1:1", tls=None, watch=watched, now=watched.clock.monotonic
    )
    target = bytearray(len(DATA))
    try:
        puller.pull(
            artifact, [types.WeightSource(address=link.address, kind=enums.SourceKind.STORE)], memoryview(target)
        )
    finally:
        puller.close()
    return bytes(target)


def test_a_pull_that_moves_a_chunk_a_minute_arrives(link: SlowLink) -> None:
    watched = Watched()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(pulled, link, watched)
        for count in range(1, 6):
            link.may_go_on.release()
            # With its last chunk it may end before the link has noted it.
            while len(link.sent) < count and not (count == 5 and found.done()):
                assert count == 5 or not found.done()
            watched.clock.tick(10.0)
        assert found.result(timeout=60) == DATA


@pytest.mark.covers("weights W-14", "weights 8-3")
def test_a_pull_goes_on_at_the_first_missing_piece_where_the_link_broke(link: SlowLink) -> None:
    chunk_by_chunk = pieces.describe(memoryview(DATA), enums.Encoding.WHOLE, piece_bytes=enums.CHUNK_BYTES)
    link.cut_after = [1, 2]
    link.may_go_on.release(9)
    watched = Watched()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(pulled, link, watched, chunk_by_chunk)
        while not concurrent.futures.wait([found], timeout=0.002).done:
            watched.clock.tick(0.01)
        assert found.result() == DATA
    assert len(link.sent) == 5


def test_a_pull_whose_source_stands_still_is_cancelled(link: SlowLink) -> None:
    watched = Watched()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(pulled, link, watched)
        # Each time it is tried again, the clock has to run out again.
        while not concurrent.futures.wait([found], timeout=0.002).done:
            watched.clock.tick(100.0)
        with pytest.raises(errors.UnavailableError):
            found.result()
    assert set(watched.idle_s) == {deadlines.idle_deadline_s(len(DATA))}


def test_an_upload_that_the_store_takes_slowly_arrives(link: SlowLink) -> None:
    watched = Watched()
    publisher = grpc_store.WeightPublisher(
        control_address="127.0.0.1:1", store_address=link.address, tls=None, watch=watched
    )
    link.may_go_on.release(5)
    assert publisher.upload(memoryview(DATA), enums.Encoding.WHOLE) == ARTIFACT
    assert link.stored == DATA
    publisher.close()


def test_an_upload_to_a_store_that_stands_still_is_cancelled(link: SlowLink) -> None:
    watched = Watched()
    publisher = grpc_store.WeightPublisher(
        control_address="127.0.0.1:1", store_address=link.address, tls=None, watch=watched
    )
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(publisher.upload, memoryview(DATA), enums.Encoding.WHOLE)
        while not concurrent.futures.wait([found], timeout=0.002).done:
            watched.clock.tick(100.0)
        with pytest.raises(errors.UnavailableError, match="took no byte for too long"):
            found.result()
    publisher.close()
