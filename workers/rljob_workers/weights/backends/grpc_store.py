"""`transport: grpc`: bytes go over connections, to the coordinator's weight store, and from there and from rollout to
rollout. Blocking.

Control calls (Publish, Manifest, Pieces) use the coordinator's port, bytes the store's port on connections of their
own, so that neither waits for the other. Artifacts are named by the BLAKE3 of their bytes. Deadlines of bulk calls
follow the bytes and their progress (deadlines.py); those of control calls are fixed.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import grpc

from rljob_api import enums, errors, process_config, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import weights_pb2
from rljob_workers.rpc import channel
from rljob_workers.runtime import stall
from rljob_workers.weights import deadlines, frames, pieces
from rljob_workers.weights.backends import base, fetch

# A question that is answered late is asked again: streams go on meanwhile.
_ASK_S = 2.0
_STORE_CONNECTIONS = 2
# How long a pull that was stopped may take to end.
_CLOSE_S = 5.0
UPLOAD = "/rljob.v1.WeightStore/Upload"
PULL = "/rljob.v1.WeightStore/Pull"


def _identity(data: bytes) -> bytes:
    return data


class WeightPublisher(base.RegisteringPublisher):
    """Streams artifacts to the store's port."""

    def __init__(
        self,
        *,
        control_address: str,
        store_address: str,
        tls: process_config.TlsConfig | None,
        timeout_s: float = 120.0,
        piece_bytes: int = enums.PIECE_BYTES,
        watch: Callable[[float], stall.StallWatch] = stall.StallWatch,
    ) -> None:
        """`timeout_s`: of control calls; `watch`: makes what ends idle uploads."""
        super().__init__(control_address=control_address, tls=tls, timeout_s=timeout_s)
        self._store, self._piece_bytes, self._watch = store_address, piece_bytes, watch
        self._bulk = channel.sync_channel(store_address, tls, own_connection=True)
        self._upload = self._bulk.stream_unary(UPLOAD, request_serializer=_identity, response_deserializer=_identity)

    def upload(self, data: memoryview, encoding: enums.Encoding) -> types.Artifact:
        """Stream `data` in chunks; the last frame commits it under its digest. Raises DigestError on disagreement."""
        artifact = pieces.describe(data, encoding, piece_bytes=self._piece_bytes)
        self.store(data, artifact)
        return artifact

    def store(self, data: memoryview, artifact: types.Artifact) -> None:
        """Send the bytes of an artifact. Raises DigestError on disagreement."""
        reply = base.translated(self._store, lambda: self._send(data, artifact.artifact_id))
        stored = weights_pb2.UploadReply.FromString(reply)
        if stored.artifact_id != artifact.artifact_id or stored.num_bytes != artifact.num_bytes:
            raise errors.DigestError(
                f"the store kept {stored.artifact_id} ({stored.num_bytes} bytes) for {artifact.artifact_id}"
                f" ({artifact.num_bytes} bytes)"
            )

    def _send(self, data: memoryview, digest: str) -> bytes:
        watch = self._watch(deadlines.idle_deadline_s(len(data)))

        def frames_of_it() -> Iterator[bytes]:
            for frame in _upload_frames(data, digest):
                watch.moved()
                yield frame

        call = self._upload.future(frames_of_it(), timeout=deadlines.transfer_deadline_s(len(data)))
        with watch.cancelling(call.cancel):
            try:
                reply: bytes = call.result()
            except grpc.FutureCancelledError as error:
                raise errors.UnavailableError(f"the store at {self._store} took no byte for too long") from error
        return reply

    def close(self) -> None:
        super().close()
        self._bulk.close()


def _upload_frames(data: memoryview, digest: str) -> Iterator[bytes]:
    yield from frames.chunks(data)
    yield frames.pack(frames.FrameKind.COMMIT, len(data), digest.encode())


class WeightPuller(base.PlanningPuller):
    """Streams pieces from the store and from other rollouts, as the coordinator says (`fetch.py`). One pull at a time.

    Each source has connections of its own, which stay open for as long as the next artifact is fetched from it, too.
    """

    def __init__(
        self,
        *,
        control_address: str,
        tls: process_config.TlsConfig | None,
        peer_name: str = "",
        timeout_s: float = 20.0,
        watch: Callable[[float], stall.StallWatch] = stall.StallWatch,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the control channel. peer_name: the name that certificates of rollouts have; timeout_s: of control
        calls; watch: makes what ends an idle stream from the store.
        """
        super().__init__(control_address=control_address, tls=tls, timeout_s=timeout_s)
        self._watch, self._now, self._tls, self._peer_name = watch, now, tls, peer_name
        self._lock, self._pulling = threading.Lock(), threading.Lock()
        self._fetch: fetch.Fetch | None = None
        self._channels: dict[tuple[str, int], grpc.Channel] = {}
        self._used: set[str] = set()
        # Calls to stores take their connections in turn.
        self._num_store_calls = 0

    def pull(self, artifact: types.Artifact, sources: Sequence[types.WeightSource], into: memoryview) -> None:
        """Fill `into`. Raises what the last source failed with: digest, weights or unavailable."""
        if len(into) < artifact.num_bytes:
            raise errors.WeightsError(f"artifact of {artifact.num_bytes} bytes does not fit into {len(into)}")
        with self._pulling:
            self._used.clear()
            self._fetch = fetch.Fetch(
                artifact, sources, into, remote=self, shelf=self.shelf, counts=self.transfers, now=self._now
            )
            try:
                self._fetch.run()
            finally:
                self._close_unused()

    def ask(
        self, artifact: types.Artifact, *, have: int, failed: Sequence[str], opened: fetch.Opened
    ) -> types.PieceSources:
        """Tell the coordinator what is here of an artifact, and return where the rest is. Raises UnavailableError."""
        request = weights_pb2.PiecesRequest(
            session=self.session, artifact_id=artifact.artifact_id, have=pieces.to_wire(have), failed=failed
        )
        call = self._stub.Pieces.future(request, timeout=_ASK_S)
        opened(call)
        reply = base.translated(self._address, lambda: _result(call))
        return codec.from_message(types.PieceSources, reply)

    def stream(
        self, source: types.WeightSource, artifact: types.Artifact, start: int, end: int, opened: fetch.Opened
    ) -> Iterator[bytes]:
        """Yield the frames of bytes [start, end). From another rollout they come within a piece's deadline; a store may
        first have to hash the artifact, and is given up when nothing moves.
        """
        is_peer = source.kind is enums.SourceKind.PEER
        # A session is a secret between its process and the coordinator.
        request = weights_pb2.PullRequest(
            session="" if is_peer else self.session, artifact_id=artifact.artifact_id, offset=start, length=end - start
        )
        pull = self._channel(source).unary_stream(PULL, request_serializer=_identity, response_deserializer=_identity)
        longest_s = (
            deadlines.piece_deadline_s(end - start) if is_peer else deadlines.transfer_deadline_s(artifact.num_bytes)
        )
        watch = self._watch(longest_s if is_peer else deadlines.idle_deadline_s(artifact.num_bytes))
        call = pull(request.SerializeToString(), timeout=longest_s)
        opened(call)
        with contextlib.nullcontext() if is_peer else watch.cancelling(call.cancel):
            try:
                for frame in call:
                    watch.moved()
                    yield frame
            except grpc.RpcError as error:
                raise channel.translate(error, f"weight source {source.address}") from error
            finally:
                # Of a stream that is given up for what came so far.
                call.cancel()

    def _channel(self, source: types.WeightSource) -> grpc.Channel:
        is_peer = source.kind is enums.SourceKind.PEER
        with self._lock:
            self._used.add(source.address)
            self._num_store_calls += not is_peer
            key = (source.address, 0 if is_peer else self._num_store_calls % _STORE_CONNECTIONS)
            connection = self._channels.get(key)
            if connection is None:
                connection = self._channels[key] = channel.sync_channel(
                    source.address, self._tls, own_connection=True, server_name=self._peer_name if is_peer else ""
                )
        return connection

    def _close_unused(self) -> None:
        with self._lock:
            for key in [key for key in self._channels if key[0] not in self._used]:
                self._channels.pop(key).close()

    def close(self) -> None:
        """End a pull that is under way, then the connections: a call on one that is closed under it may never end."""
        if self._fetch is not None:
            self._fetch.stop()
        ended = self._pulling.acquire(timeout=_CLOSE_S)
        super().close()
        if ended:
            self._pulling.release()
        with self._lock:
            for opened in self._channels.values():
                opened.close()


def _result(call: grpc.Future) -> weights_pb2.PiecesReply:
    try:
        reply: weights_pb2.PiecesReply = call.result()
    except grpc.FutureCancelledError as error:
        raise errors.UnavailableError("the question who has pieces was given up") from error
    return reply


def _publisher(config: process_config.TrainerConfig) -> WeightPublisher:
    return WeightPublisher(
        control_address=config.coordinator_address, store_address=config.store_address, tls=config.tls
    )


def peer_name(config: process_config.RolloutConfig) -> str:
    """Return the name that certificates of the other rollouts have, empty where they have none."""
    return "" if config.peers is None or config.tls is None else config.peers.server_name


def _puller(config: process_config.RolloutConfig) -> WeightPuller:
    return WeightPuller(control_address=config.coordinator_address, tls=config.tls, peer_name=peer_name(config))


BACKEND = base.Backend(publisher=_publisher, puller=_puller)
