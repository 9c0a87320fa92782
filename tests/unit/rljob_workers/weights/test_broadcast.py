"""Broadcasts from a trainer to rollouts, over gloo on loopback: who gets what, and what happens when somebody fails."""

import functools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from rljob_api import enums, errors, types
from rljob_testing import certificates, weight_fleet
from rljob_testing.every_example import EVERY_EXAMPLE
from rljob_testing.weight_fleet import until
from rljob_workers.weights import deadlines, pieces
from rljob_workers.weights.backends import broadcast_inbox, broadcaster, gloo_store, process_group

R, T, V = enums.Role.ROLLOUT, enums.Role.TRAINER, enums.Role.VERIFIER
CHUNKS = 4
DATA = os.urandom(CHUNKS * process_group.CHUNK_BYTES - 5)
OTHER = os.urandom(1 << 20)
MOST = 1 << 28
LIMIT_S = 100.0


class Hooked(process_group.Group):
    """A trainer's end that calls `at_chunk` before the third chunk is read. meetings: where groups came together."""

    at_chunk: Callable[[], None] | None = None
    meetings: ClassVar[list[str]] = []

    def __init__(self, rendezvous: str, *, number: int, rank: int, size: int, timeout_s: float) -> None:
        self.meetings.append(rendezvous)
        super().__init__(rendezvous, number=number, rank=rank, size=size, timeout_s=timeout_s)

    def send(self, num_bytes: int, read: Callable[[int, memoryview], None]) -> None:
        def hooked(offset: int, into: memoryview) -> None:
            hook = type(self).at_chunk
            if hook is not None and offset == 2 * process_group.CHUNK_BYTES:
                type(self).at_chunk = None
                hook()
            read(offset, into)

        super().send(num_bytes, hooked)


class Scene:
    """A store, a trainer, and rollouts that follow it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._fleet = weight_fleet.Fleet(folder)
        self.now = 0.0
        self.rollouts: list[gloo_store.GlooPuller] = []
        self.to_rollouts = broadcaster.Broadcaster(
            host=weight_fleet.LOOPBACK, timeout_s=3.0, now=lambda: time.monotonic() + self.now, group=Hooked
        )
        self.trainer = gloo_store.GlooPublisher(
            control_address=self._fleet.control, store_address=self._fleet.store, tls=None, to_rollouts=self.to_rollouts
        )

    def rollout(self, *, most_bytes: int = MOST) -> gloo_store.GlooPuller:
        """Start one, and wait until it is in the group."""
        name = f"rollout-{len(self.rollouts)}"
        self.rollouts.append(weight_fleet.follower(self._fleet, self.to_rollouts, name, most_bytes=most_bytes))
        return self.rollouts[-1]

    def publish(self, data: bytes | bytearray = DATA) -> types.Artifact:
        """Upload, and wait until the broadcast of it is over."""
        artifact = self.trainer.upload(memoryview(data), enums.Encoding.DELTA)
        until(lambda: not self.to_rollouts.is_sending)
        return artifact

    def pulled(self, rollout: gloo_store.GlooPuller, artifact: types.Artifact) -> bytes:
        """What a rollout pulls, whose store is one that knows no pieces."""
        into = bytearray(artifact.num_bytes)
        store = types.WeightSource(address=self._fleet.store, kind=enums.SourceKind.STORE)
        stored = types.Artifact(
            artifact_id=artifact.artifact_id, encoding=artifact.encoding, num_bytes=artifact.num_bytes
        )
        rollout.pull(stored, [store], memoryview(into))
        return bytes(into)

    def close(self) -> None:
        self.trainer.close()
        for rollout in self.rollouts:
            rollout.close()
        self._fleet.close()


@pytest.fixture
def scene(tmp_path: pathlib.Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def sources(rollout: gloo_store.GlooPuller) -> dict[enums.SourceKind, int]:
    return {kind: count for kind, count in rollout.transfers.fetched_bytes.items() if count}


def test_every_follower_takes_the_broadcast_and_nothing_from_the_store(scene: Scene) -> None:
    rollouts = [scene.rollout(), scene.rollout()]
    for data in (DATA, OTHER, DATA):
        artifact = scene.publish(data)
        assert [scene.pulled(rollout, artifact) for rollout in rollouts] == [data, data]
    assert [sources(rollout) for rollout in rollouts] == 2 * [{enums.SourceKind.TRAINER: 2 * len(DATA) + len(OTHER)}]


def test_what_was_broadcast_is_served_to_other_rollouts(scene: Scene) -> None:
    rollout = scene.rollout()
    artifact = scene.publish()
    into = memoryview(bytearray(artifact.num_bytes))
    rollout.pull(artifact, [], into)
    assert rollout.shelf.whole()[0] == artifact.artifact_id
    with rollout.shelf.stream(artifact.artifact_id) as holding:
        assert rollout.shelf.frame(holding, 0, 100).endswith(DATA[:100])


def test_a_late_rollout_takes_the_store_and_then_the_next_broadcast(scene: Scene) -> None:
    scene.rollout()
    before = scene.publish()
    late = scene.rollout()
    assert scene.pulled(late, before) == DATA
    after = scene.publish(OTHER)
    assert scene.pulled(late, after) == OTHER
    assert sources(late) == {enums.SourceKind.STORE: len(DATA), enums.SourceKind.TRAINER: len(OTHER)}


def test_where_a_group_came_together_nobody_listens_once_it_has_ended(scene: Scene) -> None:
    Hooked.meetings.clear()
    scene.rollout()
    scene.rollout()
    first, second = (int(meeting.rpartition(":")[2]) for meeting in Hooked.meetings)
    socket.create_connection((weight_fleet.LOOPBACK, second)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((weight_fleet.LOOPBACK, first))


def test_a_rollout_that_ends_while_it_waits_for_a_broadcast_pulls_no_more(scene: Scene) -> None:
    rollout, is_over, raised = scene.rollout(), threading.Event(), list[BaseException]()
    Hooked.at_chunk = lambda: is_over.wait(LIMIT_S)
    artifact = scene.trainer.upload(memoryview(DATA), enums.Encoding.DELTA)
    until(lambda: Hooked.at_chunk is None)

    def pull() -> None:
        try:
            scene.pulled(rollout, artifact)
        except errors.UnavailableError as error:
            raised.append(error)

    pulling, closing = threading.Thread(target=pull), threading.Thread(target=rollout.close)
    pulling.start()
    closing.start()
    pulling.join(LIMIT_S)
    is_over.set()
    closing.join(LIMIT_S)
    assert [str(error) for error in raised] == ["this process ends, and pulls no more"]


def test_an_image_beside_its_changes_goes_to_the_store_alone(scene: Scene) -> None:
    rollout = scene.rollout()
    changes = scene.publish(OTHER)
    whole = scene.trainer.upload(memoryview(DATA), enums.Encoding.WHOLE)
    assert not scene.to_rollouts.is_sending
    assert scene.pulled(rollout, whole) == DATA
    assert scene.pulled(rollout, changes) == OTHER
    assert sources(rollout) == {enums.SourceKind.STORE: len(DATA), enums.SourceKind.TRAINER: len(OTHER)}


@pytest.mark.covers("weights W-14", "weights 8-4")
def test_other_bytes_than_the_artifacts_are_never_taken(scene: Scene) -> None:
    rollout = scene.rollout()
    artifact = pieces.describe(memoryview(DATA), enums.Encoding.DELTA)
    scene.trainer.store(memoryview(DATA), artifact)
    until(lambda: not scene.to_rollouts.is_sending)
    wrong = bytearray(DATA)
    wrong[len(DATA) // 2] ^= 1
    scene.to_rollouts.send(artifact, memoryview(bytes(wrong)))
    until(lambda: not scene.to_rollouts.is_sending)
    assert scene.pulled(rollout, artifact) == DATA
    assert sources(rollout) == {enums.SourceKind.STORE: len(DATA)}
    # Whoever said that it failed is left out for a while.
    assert scene.to_rollouts.num_joined == 0
    scene.now += 31.0
    until(lambda: scene.to_rollouts.num_joined == 1)


def test_an_artifact_larger_than_a_rollout_takes_costs_no_memory_and_comes_from_the_store(scene: Scene) -> None:
    rollout = scene.rollout(most_bytes=len(DATA) - 1)
    assert scene.pulled(rollout, scene.publish()) == DATA
    assert sources(rollout) == {enums.SourceKind.STORE: len(DATA)}


def test_memory_that_is_released_in_mid_broadcast_may_change_and_nobody_is_at_fault(scene: Scene) -> None:
    rollout, data, is_changed = scene.rollout(), bytearray(DATA), threading.Event()
    Hooked.at_chunk = lambda: is_changed.wait(LIMIT_S)
    artifact = scene.trainer.upload(memoryview(data), enums.Encoding.DELTA)
    until(lambda: Hooked.at_chunk is None)
    scene.trainer.release()
    data[:] = bytes(len(data))
    is_changed.set()
    until(lambda: not scene.to_rollouts.is_sending)
    assert scene.pulled(rollout, artifact) == DATA
    assert sources(rollout) == {enums.SourceKind.STORE: len(DATA)}
    until(lambda: scene.to_rollouts.num_joined == 1)
    assert scene.pulled(rollout, scene.publish(OTHER)) == OTHER
    assert sources(rollout)[enums.SourceKind.TRAINER] == len(OTHER)


def test_a_trainer_that_starts_again_is_followed_again(scene: Scene) -> None:
    rollout = scene.rollout()
    assert scene.pulled(rollout, scene.publish()) == DATA
    port = int(scene.to_rollouts.address.rpartition(":")[2])
    scene.to_rollouts.close()
    again = broadcaster.Broadcaster(host=weight_fleet.LOOPBACK, port=port, timeout_s=3.0)
    again.start()
    until(lambda: again.num_joined == 1)
    artifact = pieces.describe(memoryview(OTHER), enums.Encoding.DELTA)
    again.send(artifact, memoryview(OTHER))
    until(lambda: not again.is_sending)
    assert scene.pulled(rollout, artifact) == OTHER
    again.close()
    assert sources(rollout) == {enums.SourceKind.TRAINER: len(DATA) + len(OTHER)}


@pytest.mark.covers("security")
def test_rollouts_of_the_job_alone_may_follow_and_only_who_is_its_trainer_is_followed(tmp_path: pathlib.Path) -> None:
    authority = certificates.Authority()
    tls = {role: authority.files(tmp_path / role, role) for role in (R, T, V)}
    trainer = broadcaster.Broadcaster(host=weight_fleet.LOOPBACK, config=certificates.config(tls[T], T))
    trainer.start()

    def inbox(caller: enums.Role, server_name: str) -> broadcast_inbox.BroadcastInbox:
        made = broadcast_inbox.BroadcastInbox(
            address=trainer.address, member=str(caller), tls=tls[caller], most_bytes=MOST, server_name=server_name
        )
        made.start()
        return made

    # By its address, which no certificate has; and as another role's.
    refused = [inbox(R, ""), inbox(V, certificates.HOST)]
    follower = inbox(R, certificates.HOST)
    until(lambda: trainer.num_joined == 1)
    artifact = pieces.describe(memoryview(OTHER), enums.Encoding.DELTA)
    trainer.send(artifact, memoryview(OTHER))
    until(lambda: not trainer.is_sending)
    into = bytearray(len(OTHER))
    assert follower.take(artifact, memoryview(into))
    assert into == OTHER
    for made in refused:
        assert not made.take(artifact, memoryview(into))
    for made in (*refused, follower):
        made.close()
    trainer.close()


FOLLOWER = """
import sys
from rljob_workers.weights.backends import broadcast_inbox
inbox = broadcast_inbox.BroadcastInbox(address=sys.argv[1], member=sys.argv[2], tls=None, most_bytes=1 << 28)
inbox.start()
sys.stdin.read()
"""


@pytest.fixture
def process(scene: Scene) -> Iterator["subprocess.Popen[bytes]"]:
    """A rollout that is a process of its own, in the group."""
    command = [sys.executable, "-c", FOLLOWER, scene.to_rollouts.address, "other"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as made:
        until(lambda: scene.to_rollouts.num_joined == 1)
        yield made
        made.kill()


@pytest.mark.covers("weights W-4")
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGSTOP, id="hangs"),
        pytest.param(
            signal.SIGKILL,
            id="dies",
            marks=pytest.mark.skipif(
                not os.environ.get(EVERY_EXAMPLE),
                reason=f"one more process with torch was not asked for ({EVERY_EXAMPLE}=1): hanging is the harder case",
            ),
        ),
    ],
)
def test_a_rollout_that_dies_or_hangs_in_mid_broadcast_costs_the_others_at_most_one_broadcast_and_the_trainer_nothing(
    scene: Scene, process: "subprocess.Popen[bytes]", how: signal.Signals
) -> None:
    rollout = scene.rollout()
    Hooked.at_chunk = functools.partial(process.send_signal, how)
    # Returns once the store has it, whatever becomes of the broadcast.
    artifact = scene.trainer.upload(memoryview(DATA), enums.Encoding.DELTA)
    assert scene.pulled(rollout, artifact) == DATA
    until(lambda: not scene.to_rollouts.is_sending)
    assert Hooked.at_chunk is None
    until(lambda: scene.to_rollouts.num_joined == 1)
    # It may have had all chunks before another one's deadline was over.
    by_broadcast = sources(rollout).get(enums.SourceKind.TRAINER, 0)
    assert scene.pulled(rollout, scene.publish(OTHER)) == OTHER
    assert sources(rollout)[enums.SourceKind.TRAINER] == by_broadcast + len(OTHER)


# Groups


def test_a_group_whose_member_does_not_come_is_given_up_in_time() -> None:
    meeting = process_group.Rendezvous(weight_fleet.LOOPBACK)
    with pytest.raises(errors.UnavailableError, match="did not come together"):
        process_group.Group(meeting.address, number=1, rank=0, size=2, timeout_s=0.2)


def test_a_broadcast_that_all_together_take_too_long_for_is_given_up_though_every_chunk_is_in_time() -> None:
    # One member's link carries a copy for each level: 5 s, and 20 MB/s.
    assert deadlines.broadcast_deadline_s(20_000_000, size=4) == 5.0 + 3.0
    now, offsets = 0.0, list[int]()
    meeting = process_group.Rendezvous(weight_fleet.LOOPBACK)
    group = process_group.Group(meeting.address, number=1, rank=0, size=1, now=lambda: now)

    def read(offset: int, into: memoryview) -> None:  # what is sent is of no interest
        nonlocal now
        now += 3.0
        offsets.append(offset)

    # 8 MiB chunks: 5 s and 1.25 s for 25 MB.
    with pytest.raises(errors.UnavailableError, match=f"{3 * process_group.CHUNK_BYTES} of 25165825 bytes"):
        group.send(3 * process_group.CHUNK_BYTES + 1, read)
    assert offsets == [0, process_group.CHUNK_BYTES, 2 * process_group.CHUNK_BYTES]


@pytest.mark.parametrize("rendezvous", ["", "host", "host:", ":1", "host:port", "host:65536"])
def test_a_rendezvous_that_is_none_is_refused(rendezvous: str) -> None:
    with pytest.raises(errors.WireError):
        process_group.Group(rendezvous, number=1, rank=1, size=2)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_group_is_refused(rank: int) -> None:
    with pytest.raises(errors.WireError):
        process_group.Group("127.0.0.1:1", number=1, rank=rank, size=2)


def test_a_rendezvous_on_a_taken_port_is_refused() -> None:
    meeting = process_group.Rendezvous(weight_fleet.LOOPBACK)
    with pytest.raises(errors.UnavailableError):
        process_group.Rendezvous(weight_fleet.LOOPBACK, int(meeting.address.rpartition(":")[2]))
