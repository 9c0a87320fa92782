"""A fetch from sources that are functions: what it asks of whom, what it keeps, and how it ends."""

import collections
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rljob_api import enums, errors, types
from rljob_testing.clock import FakeClock
from rljob_workers.weights import frames, pieces, shelf, transfers
from rljob_workers.weights.backends import fetch

PIECE, NUM_PIECES = 1000, 20
DATA = os.urandom(PIECE * NUM_PIECES - 300)
ARTIFACT = pieces.describe(memoryview(DATA), enums.Encoding.DELTA, piece_bytes=PIECE)
ALL = pieces.full(NUM_PIECES)
STORE = types.WeightSource(address="store", kind=enums.SourceKind.STORE)
# Yields the frames of a range of the artifact, or raises.
Serve = Callable[[int, int], Iterator[bytes]]


def whole(start: int, end: int) -> Iterator[bytes]:
    yield from frames.chunks(memoryview(DATA)[start:end], offset=start, chunk_bytes=400)


def cut_short(start: int, end: int) -> Iterator[bytes]:
    yield from list(whole(start, end))[:1]
    raise errors.UnavailableError("the link broke")


def wrong(start: int, end: int) -> Iterator[bytes]:
    yield frames.pack(frames.FrameKind.CHUNK, start, bytes(end - start))


def damaged(start: int, end: int) -> Iterator[bytes]:
    frame = bytearray(frames.pack(frames.FrameKind.CHUNK, start, memoryview(DATA)[start:end]))
    frame[-1] ^= 1
    yield bytes(frame)


def raising(error: Exception) -> Serve:
    def serve(start: int, end: int) -> Iterator[bytes]:
        raise error
        yield b""

    return serve


class FakeCall:
    """A call of which the network says whether it is still under way."""

    def __init__(self, on_cancel: Callable[[], object] = lambda: None) -> None:
        self._on_cancel, self.is_over = on_cancel, False

    def cancel(self) -> None:
        self._on_cancel()

    def is_active(self) -> bool:
        return not self.is_over


class Network:
    """A coordinator with one answer, and sources by address. Notes what was asked of whom, and what failed."""

    def __init__(self, answer: types.PieceSources | errors.RLJobError, **sources: Serve) -> None:
        self.answer, self.sources = answer, sources
        self.asked: collections.Counter[str] = collections.Counter()
        self.told: list[tuple[int, tuple[str, ...]]] = []
        self.heard_of_failure = threading.Event()
        self._lock = threading.Lock()

    def ask(
        self, artifact: types.Artifact, *, have: int, failed: Sequence[str], opened: fetch.Opened
    ) -> types.PieceSources:
        with self._lock:
            self.told.append((have, tuple(failed)))
        if failed:
            self.heard_of_failure.set()
        if isinstance(self.answer, errors.RLJobError):
            raise self.answer
        return self.answer

    def stream(
        self, source: types.WeightSource, artifact: types.Artifact, start: int, end: int, opened: fetch.Opened
    ) -> Iterator[bytes]:
        with self._lock:
            self.asked[source.address] += end - start
        opened(FakeCall())
        return self.sources[source.address](start, end)

    @property
    def failed(self) -> set[str]:
        return {address for _, failed in self.told for address in failed}


def answer(share: int = 0, **peers: int) -> types.PieceSources:
    """Return what the coordinator says: the share of the store, and which pieces each rollout has."""
    sources = [
        types.WeightSource(address=address, kind=enums.SourceKind.PEER, have=pieces.to_wire(have))
        for address, have in peers.items()
    ]
    return types.PieceSources(sources=(STORE, *sources), share=pieces.to_wire(share), again_s=0.1)


class Fetched:
    """A fetch that was run: what it filled, counted and announced.

    Its clock moves whenever it is looked at, so that what waits in it is soon over: by `after_failure_s` once a source
    has failed.
    """

    def __init__(
        self,
        network: Network,
        *,
        artifact: types.Artifact = ARTIFACT,
        sources: Sequence[types.WeightSource] = (STORE,),
        after_failure_s: float = 0.01,
    ) -> None:
        self.into, self.shelf = bytearray(len(DATA)), shelf.Shelf(most_bytes=1 << 20)
        self.counts, self._clock, self._after_failure_s = transfers.Transfers(), FakeClock(), after_failure_s
        self._began = self._clock.monotonic()
        self.fetch = fetch.Fetch(
            artifact, sources, memoryview(self.into), remote=network, shelf=self.shelf, counts=self.counts,
            now=self._now, rng=random.Random(1),
        )  # fmt: skip

    @property
    def seconds(self) -> float:
        """How long it has taken by its clock."""
        return self._clock.monotonic() - self._began

    def _now(self) -> float:
        self._clock.tick(self._after_failure_s if self.counts.failures else 0.01)
        return self._clock.monotonic()


def run(network: Network, **options: Any) -> Fetched:
    found = Fetched(network, **options)
    found.fetch.run()
    assert found.into == DATA
    return found


def test_a_store_alone_is_asked_for_everything_once() -> None:
    network = Network(answer(ALL), store=whole)
    found = run(network)
    assert network.asked == {"store": len(DATA)}
    assert found.counts.fetched_bytes == {enums.SourceKind.STORE: len(DATA)}
    assert network.told[-1] == (ALL, ())
    assert found.shelf.whole() == (ARTIFACT.artifact_id,)


def test_nothing_is_asked_of_the_store_that_rollouts_have() -> None:
    network = Network(answer(0, a=ALL, b=ALL), a=whole, b=whole)
    found = run(network)
    # The last four may be asked of both.
    assert len(DATA) <= network.asked.total() <= len(DATA) + 4 * PIECE
    assert min(network.asked.values()) > 0
    assert found.counts.fetched_bytes == {enums.SourceKind.PEER: len(DATA)}


def test_a_share_comes_from_the_store_and_the_rest_from_rollouts() -> None:
    run(network := Network(answer(0b1111, a=ALL & ~0b1111), store=whole, a=whole))
    assert network.asked["store"] == 4 * PIECE


@pytest.mark.covers("weights W-14", "weights 8-3")
@pytest.mark.parametrize("bad", [cut_short, wrong, damaged, raising(errors.WireError("not a frame"))])
def test_what_a_rollout_does_not_give_comes_from_another_one_and_it_is_told_by_name(bad: Serve) -> None:
    network = Network(answer(0, bad=ALL, good=ALL), bad=bad)

    def good(start: int, end: int) -> Iterator[bytes]:
        # However the threads are scheduled, the bad one has had its turn.
        assert network.heard_of_failure.wait(30)
        yield from whole(start, end)

    network.sources["good"] = good
    found = run(network)
    assert network.failed == {"bad"}
    # One piece a stream, and it is left alone from then on.
    assert network.asked["bad"] <= 2 * PIECE
    assert found.counts.failures.keys() <= {
        enums.SourceFailure.DIGEST, enums.SourceFailure.UNAVAILABLE, enums.SourceFailure.REFUSED
    }  # fmt: skip


@pytest.mark.covers("weights 8-4")
def test_wrong_bytes_are_never_announced() -> None:
    network = Network(answer(0, bad=ALL), bad=wrong)
    found = Fetched(network, after_failure_s=1.0)
    with pytest.raises(errors.DigestError, match=rf"piece \d+ of artifact {ARTIFACT.artifact_id} from bad does not"):
        found.fetch.run()
    with found.shelf.stream(ARTIFACT.artifact_id) as holding:
        assert holding.have == 0


def test_a_busy_rollout_is_asked_again_and_not_told_on() -> None:
    refusals = iter([errors.BusyError("all 4 streams are in use")] * 3)

    def busy_at_first(start: int, end: int) -> Iterator[bytes]:
        if error := next(refusals, None):
            raise error
        yield from whole(start, end)

    found = run(network := Network(answer(0, a=ALL), a=busy_at_first))
    assert (network.failed, found.counts.failures) == (set(), {enums.SourceFailure.BUSY: 3})


def test_a_rollout_whose_bytes_moved_is_left_out_and_not_told_on() -> None:
    gone = raising(errors.MovedError("artifact is not held here"))
    run(network := Network(answer(0, a=ALL, b=ALL), a=gone, b=whole))
    assert network.failed == set()


def test_without_the_coordinator_the_store_gives_everything() -> None:
    run(network := Network(errors.UnavailableError("connection refused"), store=whole))
    assert network.asked == {"store": len(DATA)}


def test_when_the_coordinator_goes_rollouts_that_are_known_are_still_asked() -> None:
    network = Network(answer(0, a=ALL), a=whole, store=whole)

    def going(start: int, end: int) -> Iterator[bytes]:
        network.answer = errors.UnavailableError("connection refused")
        yield from whole(start, end)

    network.sources["a"] = going
    run(network)
    assert network.asked == {"a": len(DATA)}


@pytest.mark.covers("weights W-14")
def test_a_chunk_that_was_damaged_on_its_way_from_the_store_comes_again() -> None:
    serves = iter([damaged])

    def damaged_once(start: int, end: int) -> Iterator[bytes]:
        yield from next(serves, whole)(start, end)

    assert run(Network(answer(ALL), store=damaged_once)).counts.failures == {enums.SourceFailure.DIGEST: 1}


@pytest.mark.parametrize("error", [errors.WeightsError("not stored here"), errors.ForbiddenError("may not call")])
def test_a_store_that_will_never_give_it_ends_the_fetch_with_its_reason(error: errors.RLJobError) -> None:
    found = Fetched(Network(answer(ALL), store=raising(error)))
    with pytest.raises(type(error), match=str(error)):
        found.fetch.run()


def test_a_store_that_sends_other_bytes_again_and_again_ends_the_fetch() -> None:
    found = Fetched(network := Network(answer(ALL), store=wrong))
    with pytest.raises(errors.DigestError, match="from store does not match"):
        found.fetch.run()
    assert network.asked["store"] < 10 * len(DATA)


def test_when_nothing_arrives_for_long_the_last_failure_is_raised() -> None:
    found = Fetched(Network(answer(ALL), store=raising(errors.UnavailableError("no route"))), after_failure_s=1.0)
    with pytest.raises(errors.UnavailableError, match="no route"):
        found.fetch.run()


def test_an_artifact_without_known_pieces_comes_from_the_store_unasked_and_is_not_announced() -> None:
    plain = types.Artifact(artifact_id=ARTIFACT.artifact_id, encoding=ARTIFACT.encoding, num_bytes=len(DATA))
    network = Network(answer(0), store=whole)
    found = run(network, artifact=plain)
    assert (network.told, found.shelf.whole()) == ([], ())


IMAGE = pieces.describe_image(memoryview(DATA), "state", piece_bytes=PIECE)


def without_store(**peers: int) -> types.PieceSources:
    found = answer(0, **peers)
    return types.PieceSources(sources=found.sources[1:], share=b"", again_s=found.again_s)


@pytest.mark.covers("weights 7")
def test_an_image_that_no_store_has_comes_from_rollouts_alone() -> None:
    found = run(network := Network(without_store(a=ALL, b=ALL), a=whole, b=whole), artifact=IMAGE, sources=())
    assert network.asked.keys() == {"a", "b"}
    assert found.counts.fetched_bytes == {enums.SourceKind.PEER: len(DATA)}
    assert found.shelf.whole() == (IMAGE.artifact_id,)


@pytest.mark.covers("weights 8-3")
def test_an_image_that_all_rollouts_have_overwritten_is_given_up_at_once() -> None:
    gone = raising(errors.MovedError("artifact is not held here"))
    found = Fetched(Network(without_store(a=ALL), a=gone), artifact=IMAGE, sources=())
    with pytest.raises(errors.MovedError):
        found.fetch.run()
    assert found.seconds < 10.0


def test_pieces_that_are_not_the_artifact_are_found_at_its_end() -> None:
    other = types.Artifact(
        artifact_id="0" * 64, encoding=ARTIFACT.encoding, num_bytes=len(DATA), piece_bytes=PIECE, pieces=ARTIFACT.pieces
    )
    found = Fetched(Network(answer(ALL), store=whole), artifact=other)
    with pytest.raises(errors.DigestError, match="from store does not match its digest"):
        found.fetch.run()
    assert found.shelf.whole() == ()


def test_an_answer_that_names_other_pieces_counts_as_none() -> None:
    beyond = types.PieceSources(sources=(STORE,), share=pieces.to_wire(ALL << 1), again_s=0.01)
    run(network := Network(beyond, store=whole))
    assert network.asked == {"store": len(DATA)}


def test_a_rollout_that_hangs_at_the_end_is_not_waited_for() -> None:
    """The last pieces are asked of another one too; what is no longer needed is given up."""
    given_up = threading.Event()

    class Hanging(Network):
        def stream(
            self, source: types.WeightSource, artifact: types.Artifact, start: int, end: int, opened: fetch.Opened
        ) -> Iterator[bytes]:
            if source.address != "slow":
                return super().stream(source, artifact, start, end, opened)
            opened(FakeCall(given_up.set))
            return hang()

    def hang() -> Iterator[bytes]:
        assert given_up.wait(30)
        raise errors.UnavailableError("cancelled")
        yield b""

    found = run(Hanging(answer(0, slow=ALL, good=ALL), good=whole))
    assert found.counts.failures == {}


def test_a_fetch_that_is_stopped_ends_and_says_so() -> None:
    given_up = threading.Event()

    class Hanging(Network):
        def stream(
            self, source: types.WeightSource, artifact: types.Artifact, start: int, end: int, opened: fetch.Opened
        ) -> Iterator[bytes]:
            opened(FakeCall(given_up.set))
            found.fetch.stop()
            assert given_up.wait(30)
            raise errors.UnavailableError("cancelled")

    found = Fetched(Hanging(answer(ALL)))
    with pytest.raises(errors.UnavailableError, match="was stopped"):
        found.fetch.run()


def test_a_call_that_is_made_while_a_fetch_is_stopped_is_cancelled() -> None:
    given_up = threading.Event()

    class Late(Network):
        def stream(
            self, source: types.WeightSource, artifact: types.Artifact, start: int, end: int, opened: fetch.Opened
        ) -> Iterator[bytes]:
            found.fetch.stop()
            opened(FakeCall(given_up.set))
            assert given_up.wait(30)
            raise errors.UnavailableError("cancelled")

    found = Fetched(Late(answer(ALL)))
    with pytest.raises(errors.UnavailableError, match="was stopped"):
        found.fetch.run()
    assert given_up.wait(30)


def test_a_stream_that_hangs_although_its_call_has_ended_is_replaced_and_what_it_brings_later_is_not_taken() -> None:
    go_on, ended, call = threading.Event(), threading.Event(), FakeCall()
    serves = iter([None])

    class Hanging(Network):
        def stream(
            self, source: types.WeightSource, artifact: types.Artifact, start: int, end: int, opened: fetch.Opened
        ) -> Iterator[bytes]:
            if next(serves, whole) is None:
                opened(call)
                return hang(start, end)
            return super().stream(source, artifact, start, end, opened)

    def hang(start: int, end: int) -> Iterator[bytes]:
        call.is_over = True
        assert go_on.wait(30)
        yield from whole(start, end)
        ended.set()

    found = run(Hanging(answer(ALL), store=whole))
    assert found.counts.failures == {enums.SourceFailure.UNAVAILABLE: 1}
    go_on.set()
    assert ended.wait(30)
    assert found.counts.fetched_bytes == {enums.SourceKind.STORE: len(DATA)}
