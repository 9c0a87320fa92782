"""What is asked of whom next, after sources failed, and while the coordinator does not answer."""

import random

import pytest

from rljob_api import enums, errors, types
from rljob_workers.weights import pieces
from rljob_workers.weights.backends import fetch_state

PIECE, NUM_PIECES = 100, 8
ARTIFACT = pieces.describe(memoryview(bytes(PIECE * NUM_PIECES)), enums.Encoding.WHOLE, piece_bytes=PIECE)
ALL = pieces.full(NUM_PIECES)
STORE = types.WeightSource(address="store", kind=enums.SourceKind.STORE)
LOST = errors.UnavailableError("connection refused")
MOVED, BUSY = errors.MovedError("not held here"), errors.BusyError("all 4 streams are in use")


def answer(share: int = 0, **peers: int) -> types.PieceSources:
    sources = [
        types.WeightSource(address=address, kind=enums.SourceKind.PEER, have=pieces.to_wire(have))
        for address, have in peers.items()
    ]
    return types.PieceSources(sources=(STORE, *sources), share=pieces.to_wire(share), again_s=0.1)


def told(share: int = 0, **peers: int) -> fetch_state.FetchState:
    """Return what is known after the coordinator has answered once."""
    state = fetch_state.FetchState(ARTIFACT, [STORE], random.Random(1))
    state.answered(answer(share, **peers), num_told=0)
    return state


def asked(state: fetch_state.FetchState, now: float = 0.0) -> set[str]:
    """Return whom jobs go to until there is none any more."""
    found = set()
    while (job := state.next_job(now)) is not None:
        found.add(job.address)
    return found


def test_nobody_is_asked_before_the_coordinator_has_answered() -> None:
    assert fetch_state.FetchState(ARTIFACT, [STORE], random.Random(1)).next_job(0.0) is None


def test_a_rollout_that_failed_is_left_alone_for_a_while_and_told_on_once() -> None:
    state = told(a=ALL)
    state.note_failure("a", LOST, 0.0)
    assert state.failed == ["a"]
    assert asked(state, fetch_state.FAILED_S - 0.1) == set()
    assert asked(state, fetch_state.FAILED_S) == {"a"}
    state.answered(answer(a=ALL), num_told=1)
    assert state.failed == []


@pytest.mark.parametrize("refusal", [MOVED, BUSY])
def test_a_rollout_that_refuses_is_told_on_only_if_it_gives_nothing_for_long(refusal: errors.RLJobError) -> None:
    """It may say that it has what it does not have; as long as it is believed, nobody asks the store."""
    state = told(a=ALL)
    for now in (0.0, 5.0, 10.0):
        state.note_failure("a", refusal, now)
    assert state.failed == []
    state.had(0, "a")
    state.note_failure("a", refusal, 20.0)
    state.note_failure("a", refusal, 20.0 + fetch_state.REFUSING_S)
    assert state.failed == []
    state.note_failure("a", refusal, 20.1 + fetch_state.REFUSING_S)
    assert state.failed == ["a"]


def test_a_store_that_is_busy_is_asked_again_however_long_it_takes() -> None:
    state = told(share=ALL)
    for now in (0.0, 100.0, 200.0):
        state.note_failure("store", BUSY, now)
    assert (asked(state, 201.0), state.failed) == ({"store"}, [])


def test_without_the_coordinator_what_rollouts_have_is_asked_of_them() -> None:
    state = told(a=ALL)
    state.unanswered(0.0)
    assert asked(state) == {"a"}


def test_without_the_coordinator_what_only_a_rollout_has_that_failed_is_asked_of_the_store() -> None:
    state = told(a=ALL)
    state.note_failure("a", LOST, 0.0)
    state.unanswered(0.1)
    assert asked(state, 0.1) == {"store"}


def test_it_is_hopeless_once_a_store_has_refused_for_good_and_nobody_else_has_what_is_missing() -> None:
    state = told(share=0b1111, a=0b11110000)
    state.note_failure("store", errors.WeightsError("not stored here"), 0.0)
    assert not state.is_hopeless
    for piece in range(4, NUM_PIECES):
        state.had(piece, "a")
    assert state.is_hopeless


def told_of_image(**peers: int) -> fetch_state.FetchState:
    """Return what is known of an image that no store has, after the coordinator has answered once."""
    image = pieces.describe_image(memoryview(bytes(PIECE * NUM_PIECES)), "state", piece_bytes=PIECE)
    state = fetch_state.FetchState(image, [], random.Random(1))
    assert not state.is_hopeless
    named = tuple(source for source in answer(**peers).sources if source != STORE)
    state.answered(types.PieceSources(sources=named, share=b"", again_s=0.1), num_told=0)
    return state


@pytest.mark.parametrize("error", [MOVED, LOST])
def test_an_image_that_no_store_has_is_hopeless_once_every_rollout_that_had_it_gave_nothing(
    error: errors.RLJobError,
) -> None:
    state = told_of_image(a=ALL, b=0b1111)
    state.note_failure("a", error, 0.0)
    assert not state.is_hopeless
    state.note_failure("b", error, 0.0)
    assert state.is_hopeless


def test_an_image_that_no_store_has_is_waited_for_while_rollouts_are_busy() -> None:
    state = told_of_image(a=ALL)
    state.note_failure("a", BUSY, 0.0)
    assert not state.is_hopeless


def test_an_image_that_no_store_and_no_rollout_has_is_hopeless() -> None:
    assert told_of_image().is_hopeless
