"""The rollout's end of broadcasts: follows the trainer's announcements, and has the latest artifact ready for a pull.

    thread    Follow (stream) -> join the group -> chunks into memory -> BLAKE3 -> Report         again after a failure
    take()    the artifact, if it is here or on its way; else the caller takes it elsewhere

Memory is that of one artifact, of at most `most_bytes`. It is never written to again: bytes count once they have the
digest that names the artifact, and are what they are from then on.
"""

import logging
import queue
import threading
from collections.abc import Iterator

import blake3
import grpc

from rljob_api import errors, process_config, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import weights_pb2, weights_pb2_grpc
from rljob_workers.rpc import channel
from rljob_workers.runtime import retry
from rljob_workers.weights import deadlines
from rljob_workers.weights.backends import process_group

logger = logging.getLogger(__name__)

_REPORT_S = 5.0
_LOOK_S = 0.2
_MOST_FAILURE = 500


class BroadcastInbox:
    """One follower of the trainer at `address`. Thread-safe; `start` it, and `close` it or `stop` it."""

    def __init__(
        self,
        *,
        address: str,
        member: str,
        tls: process_config.TlsConfig | None,
        most_bytes: int,
        server_name: str = "",
        timeout_s: float = process_group.TIMEOUT_S,
    ) -> None:
        """member: the name of this process among those that follow. server_name: that the trainer's certificate has.
        timeout_s: of each chunk.
        """
        self.address, self._most_bytes = address, most_bytes
        self._member, self._timeout_s = member, timeout_s
        self._channel = channel.sync_channel(address, tls, server_name=server_name)
        self._stub = weights_pb2_grpc.BroadcastsStub(self._channel)
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._call: grpc.Call | None = None
        # On its way; here; and pulled elsewhere before it was.
        self._coming, self._passed = "", ""
        self._arrived: tuple[str, memoryview] | None = None
        self._number = 0
        self._group: process_group.Group | None = None
        self._thread = threading.Thread(target=self._follow, name="broadcasts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin to end, and return at once: nothing is taken from here any more."""
        self._closing.set()
        with self._changed:
            call = self._call
            self._changed.notify_all()
        if call is not None:
            call.cancel()

    def close(self) -> None:
        """End the stream, and what is under way within the deadline of a chunk."""
        self.stop()
        self._thread.join(2 * self._timeout_s)

    def take(self, artifact: types.Artifact, into: memoryview) -> bool:
        """Copy the artifact into `into` and forget it; return False if it is neither here nor on its way.

        Waits while it is coming, which ends by itself: each chunk has its deadline, and so have all together.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._coming != artifact.artifact_id or self._closing.is_set(),
                deadlines.transfer_deadline_s(artifact.num_bytes),
            )
            arrived = self._arrived
            if arrived is None or (arrived[0], len(arrived[1])) != (artifact.artifact_id, artifact.num_bytes):
                self._passed = artifact.artifact_id
                return False
            self._arrived = None
        into[: artifact.num_bytes] = arrived[1]
        return True

    def _follow(self) -> None:
        backoff = retry.Backoff(first_s=0.2, most_s=15.0)
        while not self._closing.is_set():
            try:
                for message in self._announcements():
                    backoff.reset()
                    self._answer(message)
            except grpc.RpcError as error:
                logger.debug("the trainer at %s is not followed: %s", self.address, error.code())
            except errors.RLJobError as error:
                logger.warning("left the broadcasts of %s: %s", self.address, error, extra={"error_class": error.name})
            finally:
                self._leave()
            self._closing.wait(backoff.next_delay_s())
        self._channel.close()

    def _announcements(self) -> Iterator[weights_pb2.Broadcast]:
        """Yield what the trainer says until the stream ends. Raises UnavailableError if a certificate is unreadable."""
        call = self._stub.Follow(weights_pb2.FollowRequest(member=self._member))
        with self._changed:
            self._call = call
        messages: queue.SimpleQueue[weights_pb2.Broadcast] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(call, messages), name="announcements", daemon=True).start()
        try:
            # `close` cancels the call that it sees; this one it may not have seen.
            while not self._closing.is_set() and (call.is_active() or not messages.empty()):
                try:
                    yield messages.get(timeout=_LOOK_S)
                except queue.Empty:
                    continue
        finally:
            call.cancel()

    def _leave(self) -> None:
        # Numbers begin again with another trainer.
        if self._group is not None:
            self._group.close()
        self._number, self._group = 0, None

    def _answer(self, message: weights_pb2.Broadcast) -> None:
        """Do what is announced and report it. Raises WireError for what is no announcement."""
        artifact = codec.from_message(types.Artifact, message.artifact) if message.HasField("artifact") else None
        failure = ""
        try:
            self._join(message)
            if artifact is not None:
                self._receive(artifact)
        except errors.RLJobError as error:
            logger.warning("no broadcast came: %s", error, extra={"error_class": error.name})
            self._leave()
            failure = f"{error.name}: {error}"[:_MOST_FAILURE]
        report = weights_pb2.BroadcastReport(
            member=self._member,
            group=message.group,
            artifact_id="" if artifact is None else artifact.artifact_id,
            failure=failure,
        )
        self._stub.Report(report, timeout=_REPORT_S)

    def _join(self, message: weights_pb2.Broadcast) -> None:
        if self._group is not None and self._number == message.group:
            return
        if self._number == message.group:
            raise errors.UnavailableError(f"group {message.group} has ended here")
        self._leave()
        self._number = message.group
        self._group = process_group.Group(
            message.rendezvous, number=message.group, rank=message.rank, size=message.size, timeout_s=self._timeout_s
        )

    def _receive(self, artifact: types.Artifact) -> None:
        """Raises UnavailableError, DigestError, and TooLargeError before memory is allocated."""
        assert self._group is not None, "joined before"
        if artifact.num_bytes > self._most_bytes:
            raise errors.TooLargeError(
                f"artifact {artifact.artifact_id} has {artifact.num_bytes} bytes, more than {self._most_bytes}"
            )
        with self._changed:
            self._coming, self._arrived = artifact.artifact_id, None
        try:
            view = memoryview(bytearray(artifact.num_bytes))
            self._group.receive(view)
            if blake3.blake3(view, max_threads=2).hexdigest() != artifact.artifact_id:
                raise errors.DigestError(f"artifact {artifact.artifact_id} was broadcast with other bytes")
            with self._changed:
                if self._passed != artifact.artifact_id:
                    self._arrived = (artifact.artifact_id, view)
        finally:
            with self._changed:
                self._coming = ""
                self._changed.notify_all()


def _read(call: grpc.Call, messages: "queue.SimpleQueue[weights_pb2.Broadcast]") -> None:
    # A thread of its own: where a server ends all calls at once, grpcio 1.85 may wait for the next message for ever.
    try:
        for message in call:
            messages.put(message)
    except grpc.RpcError as error:
        logger.debug("a stream of announcements ended: %s", error.code())
