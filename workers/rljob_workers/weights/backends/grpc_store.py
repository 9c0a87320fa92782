"""`transport: grpc`: bytes go over connections through the coordinator's weight store. Blocking.

Control calls (Publish, Manifest) use the coordinator's port, bytes the store's port on connections of their own, so
that neither waits for the other. Artifacts are named by the BLAKE3 of their bytes. Deadlines of bulk calls follow the
bytes and their progress (deadlines.py); those of control calls are fixed.
"""

import concurrent.futures
import logging
from collections.abc import Callable, Iterator, Sequence

import blake3
import grpc

from rljob_api import enums, errors, process_config, types
from rljob_api.wire.v1 import weights_pb2
from rljob_workers.rpc import channel
from rljob_workers.runtime import retry, stall
from rljob_workers.weights import deadlines, frames
from rljob_workers.weights.backends import base

logger = logging.getLogger(__name__)

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
        watch: Callable[[float], stall.StallWatch] = stall.StallWatch,
    ) -> None:
        """`timeout_s`: of control calls; `watch`: makes what ends idle ones."""
        super().__init__(control_address=control_address, tls=tls, timeout_s=timeout_s)
        self._store, self._watch = store_address, watch
        self._bulk = channel.sync_channel(store_address, tls, own_connection=True)
        self._upload = self._bulk.stream_unary(UPLOAD, request_serializer=_identity, response_deserializer=_identity)

    def upload(self, data: memoryview, encoding: enums.Encoding) -> types.Artifact:
        """Stream `data` in chunks; the last frame commits it under its digest. Raises DigestError on disagreement."""
        digest = blake3.blake3(data, max_threads=2).hexdigest()
        reply = base.translated(self._store, lambda: self._send(data, digest))
        stored = weights_pb2.UploadReply.FromString(reply)
        if stored.artifact_id != digest or stored.num_bytes != len(data):
            raise errors.DigestError(
                f"the store kept {stored.artifact_id} ({stored.num_bytes} bytes) for {digest} ({len(data)} bytes)"
            )
        return types.Artifact(artifact_id=digest, encoding=encoding, num_bytes=len(data))

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
    """Streams over `num_streams` connections per source, interleaved ranges, resumed at the first missing byte."""

    def __init__(
        self,
        *,
        control_address: str,
        tls: process_config.TlsConfig | None,
        num_streams: int = 2,
        timeout_s: float = 20.0,
        watch: Callable[[float], stall.StallWatch] = stall.StallWatch,
        retrying: retry.RetryMoving = retry.retry_moving,
    ) -> None:
        """Open the control channel; bulk channels are opened per source. `timeout_s`: of control calls.

        watch: makes what ends an idle stream; retrying: what begins it again where it stopped.
        """
        super().__init__(control_address=control_address, tls=tls, timeout_s=timeout_s)
        self._watch, self._retrying, self._tls, self._num_streams = watch, retrying, tls, num_streams
        self._bulk: dict[tuple[str, int], grpc.Channel] = {}

    def pull(self, artifact: types.Artifact, sources: Sequence[types.WeightSource], into: memoryview) -> None:
        """Fill `into`, trying each source in turn. Raises what the last one raised: digest, weights or unavailable."""
        if len(into) < artifact.num_bytes:
            raise errors.WeightsError(f"artifact of {artifact.num_bytes} bytes does not fit into {len(into)}")
        failure: errors.RLJobError = errors.WeightsError(f"no source for artifact {artifact.artifact_id}")
        for source in sources:
            try:
                self._pull_from(source, artifact, into)
                return
            except errors.RLJobError as error:
                logger.warning("source %s failed: %s", source.address, error, extra={"error_class": error.name})
                failure = error
        raise failure

    def _pull_from(self, source: types.WeightSource, artifact: types.Artifact, into: memoryview) -> None:
        share = -(-artifact.num_bytes // self._num_streams)
        ranges = [(start, min(start + share, artifact.num_bytes)) for start in range(0, artifact.num_bytes, share)]
        with concurrent.futures.ThreadPoolExecutor(len(ranges)) as pool:
            list(pool.map(lambda job: self._pull_range(source, job[0], artifact, into, job[1]), enumerate(ranges)))
        if blake3.blake3(into[: artifact.num_bytes], max_threads=2).hexdigest() != artifact.artifact_id:
            raise errors.DigestError(f"artifact {artifact.artifact_id} from {source.address} does not match its digest")

    def _pull_range(
        self,
        source: types.WeightSource,
        stream: int,
        artifact: types.Artifact,
        into: memoryview,
        span: tuple[int, int],
    ) -> None:
        position, end = span

        def go_on() -> None:
            nonlocal position
            request = weights_pb2.PullRequest(
                session=self.session, artifact_id=artifact.artifact_id, offset=position, length=end - position
            ).SerializeToString()
            for frame in self._stream(source.address, stream, request, artifact.num_bytes):
                _, offset, payload = frames.unpack(frame)
                if offset != position or offset + len(payload) > end:
                    raise errors.WireError(f"chunk at {offset} where {position} was expected")
                into[offset : offset + len(payload)] = payload
                position += len(payload)
            if position < end:
                raise errors.UnavailableError(f"{source.address} ended the stream at byte {position} of {end}")

        # The artifact, not the range: that is what the other end may have to hash first.
        self._retrying(
            go_on,
            lambda: position,
            idle_timeout_s=deadlines.idle_deadline_s(artifact.num_bytes),
            backoff=retry.Backoff(first_s=0.1, most_s=2.0),
        )

    def _stream(self, address: str, stream: int, request: bytes, num_bytes: int) -> Iterator[bytes]:
        opened = self._bulk.get((address, stream))
        if opened is None:
            opened = self._bulk[address, stream] = channel.sync_channel(address, self._tls, own_connection=True)
        pull = opened.unary_stream(PULL, request_serializer=_identity, response_deserializer=_identity)
        watch = self._watch(deadlines.idle_deadline_s(num_bytes))
        call = pull(request, timeout=deadlines.transfer_deadline_s(num_bytes))
        with watch.cancelling(call.cancel):
            try:
                for frame in call:
                    watch.moved()
                    yield frame
            except grpc.RpcError as error:
                raise channel.translate(error, f"weight source {address}") from error

    def close(self) -> None:
        super().close()
        for opened in self._bulk.values():
            opened.close()


def _publisher(config: process_config.TrainerConfig) -> WeightPublisher:
    return WeightPublisher(
        control_address=config.coordinator_address, store_address=config.store_address, tls=config.tls
    )


def _puller(config: process_config.RolloutConfig) -> WeightPuller:
    return WeightPuller(control_address=config.coordinator_address, tls=config.tls)


BACKEND = base.Backend(publisher=_publisher, puller=_puller)
