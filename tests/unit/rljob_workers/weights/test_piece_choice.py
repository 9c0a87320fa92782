import collections
import random

import hypothesis
from hypothesis import strategies

from rljob_api import enums
from rljob_workers.weights import piece_choice, pieces
from rljob_workers.weights.piece_choice import Job, Source


def store(may_take: int, num_streams: int = 0) -> Source:
    return Source(address="store", kind=enums.SourceKind.STORE, may_take=may_take, num_streams=num_streams)


def peer(address: str, may_take: int, num_streams: int = 0) -> Source:
    return Source(address=address, kind=enums.SourceKind.PEER, may_take=may_take, num_streams=num_streams)


def choose(*sources: Source, missing: int, under_way: int = 0, twice: int = 0, seed: int = 0) -> Job | None:
    return piece_choice.choose(sources, missing=missing, under_way=under_way, twice=twice, rng=random.Random(seed))


def test_the_store_alone_is_asked_for_runs_over_two_streams() -> None:
    assert choose(store(pieces.full(6)), missing=pieces.full(6)) == Job(address="store", first=0, after=3)
    second = choose(store(pieces.full(6), 1), missing=pieces.full(6), under_way=pieces.full(3))
    assert second == Job(address="store", first=3, after=5)
    assert choose(store(pieces.full(6), 2), missing=pieces.full(6), under_way=pieces.full(5)) is None


def test_a_run_is_no_longer_than_eight_pieces() -> None:
    assert choose(store(pieces.full(100)), missing=pieces.full(100)) == Job(address="store", first=0, after=8)


def test_with_rollouts_the_share_of_the_store_comes_first_over_one_stream() -> None:
    sources = store(0b0110), peer("a", 0b1001)
    assert choose(*sources, missing=0b1111) == Job(address="store", first=1, after=3)
    other = choose(store(0b0110, 1), peer("a", 0b1001), missing=0b1111, under_way=0b0110)
    assert other is not None
    assert (other.address, other.first) in {("a", 0), ("a", 3)}


def test_the_rarest_piece_comes_first() -> None:
    for seed in range(20):
        found = choose(peer("a", 0b111), peer("b", 0b011), peer("c", 0b011), missing=0b111, seed=seed)
        assert found == Job(address="a", first=2, after=3)


def test_a_piece_comes_from_the_rollout_that_is_asked_for_the_least() -> None:
    for seed in range(20):
        found = choose(peer("a", 0b1, 1), peer("b", 0b1), missing=0b1, seed=seed)
        assert found == Job(address="b", first=0, after=1)


def test_receivers_choose_different_pieces_of_a_rollout() -> None:
    firsts = collections.Counter(
        choose(peer("a", pieces.full(100)), missing=pieces.full(100), seed=seed) for seed in range(100)
    )
    assert len(firsts) > 50


def test_a_rollout_is_asked_over_two_streams_at_most() -> None:
    assert choose(peer("a", pieces.full(9), 2), missing=pieces.full(9)) is None


def test_the_last_pieces_are_asked_of_another_source_as_well_but_of_no_third() -> None:
    sources = peer("a", 0b11, 1), peer("b", 0b10), peer("c", 0b10)
    again = choose(*sources, missing=0b11, under_way=0b11)
    assert again is not None
    assert (again.address in {"b", "c"}, again.first) == (True, 1)
    assert choose(*sources, missing=0b11, under_way=0b11, twice=0b10) is None


def test_pieces_on_their_way_are_not_asked_for_twice_while_many_are_missing() -> None:
    missing = pieces.full(5)
    assert choose(peer("a", missing, 1), peer("b", missing), missing=missing, under_way=missing) is None


SETS = strategies.integers(0, pieces.full(40))


@hypothesis.given(SETS, SETS, SETS, SETS, strategies.integers(0, 100))
def test_a_job_is_always_of_missing_pieces_that_its_source_has(
    share: int, first: int, second: int, missing: int, seed: int
) -> None:
    sources = {"store": store(share), "a": peer("a", first), "b": peer("b", second)}
    job = choose(*sources.values(), missing=missing, seed=seed)
    may_be_had = missing & (share | first | second)
    assert (job is None) == (not may_be_had)
    if job is not None:
        span = pieces.full(job.after) & ~pieces.full(job.first)
        assert span
        assert span & ~(missing & sources[job.address].may_take) == 0
