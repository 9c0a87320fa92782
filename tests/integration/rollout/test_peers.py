"""Rollouts that serve one another over gRPC on loopback: what the store sends, and what the death of one costs.

A hundred deaths take minutes: RLJOB_PEER_KILLS=100 pytest tests/integration/rollout/test_peers.py
"""

import concurrent.futures
import os
import pathlib
import random
from collections.abc import Iterator

import pytest

from rljob_api import enums, errors, types
from rljob_testing.weight_fleet import Fleet, Receiver

PIECE, NUM_PIECES = 16 << 10, 24
NUM_KILLS = int(os.environ.get("RLJOB_PEER_KILLS", "20"))


@pytest.fixture
def fleet(tmp_path: pathlib.Path) -> Iterator[Fleet]:
    found = Fleet(tmp_path / "weights")
    yield found
    found.close()


@pytest.fixture
def patient_fleet(tmp_path: pathlib.Path) -> Iterator[Fleet]:
    """Waits for whoever is to bring a piece, as on a machine where nobody is late."""
    found = Fleet(tmp_path / "weights", now=lambda: 0.0)
    yield found
    found.close()


def publish(fleet: Fleet) -> tuple[types.Artifact, bytes]:
    data = os.urandom(PIECE * NUM_PIECES - 5)
    return fleet.publish(memoryview(data), piece_bytes=PIECE), data


def receivers(fleet: Fleet, *names: str) -> list[Receiver]:
    found = [Receiver(fleet, name) for name in names]
    for receiver in found:
        receiver.beat()
    return found


def from_store(*found: Receiver) -> int:
    return sum(receiver.counts.fetched_bytes.get(enums.SourceKind.STORE, 0) for receiver in found)


@pytest.mark.covers("weights 7")
def test_the_store_sends_a_version_about_once_to_four_rollouts_and_nothing_to_one_that_comes_late(
    patient_fleet: Fleet,
) -> None:
    fleet = patient_fleet
    artifact, data = publish(fleet)
    found = receivers(fleet, "a", "b", "c", "d")
    with concurrent.futures.ThreadPoolExecutor(len(found)) as pool:
        assert all(into == data for into in pool.map(lambda receiver: receiver.pull(artifact), found))
    assert from_store(*found) <= 1.2 * len(data)
    (late,) = receivers(fleet, "late")
    assert late.pull(artifact) == data
    assert from_store(late) == 0
    assert sum(receiver.counts.served_bytes for receiver in found) >= len(data)
    for receiver in (*found, late):
        receiver.puller.close()


@pytest.mark.covers("weights 8-3")
def test_kills_in_mid_transfer_cost_no_wrong_byte_and_hold_up_nobody(fleet: Fleet) -> None:
    rng, wrong, unfinished, in_time = random.Random(7), 0, 0, 0
    stay = receivers(fleet, "a", "b", "c")
    for _ in range(NUM_KILLS):
        artifact, data = publish(fleet)
        (victim,) = receivers(fleet, "victim")
        for receiver in stay:
            receiver.beat()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            pulls = [pool.submit(receiver.pull, artifact) for receiver in stay]
            dying = pool.submit(_until_killed, victim, artifact)
            after = rng.randrange(1, NUM_PIECES)
            while victim.has(artifact) < after and not dying.done():
                concurrent.futures.wait([dying], timeout=0.0005)
            in_time += not dying.done()
            victim.kill()
            for pull in pulls:
                wrong += pull.result(60) != data
            unfinished += not dying.result(60)
    assert wrong == 0
    # Most were killed while they fetched and served.
    assert in_time > NUM_KILLS // 2
    assert unfinished > NUM_KILLS // 2
    for receiver in stay:
        receiver.puller.close()


def _until_killed(victim: Receiver, artifact: types.Artifact) -> bool:
    """Return whether the pull was whole before the kill."""
    try:
        victim.pull(artifact)
    except errors.RLJobError:
        return False
    return True
