"""A coordinator that serves given batches and remembers what a trainer tells it. A fake, over real gRPC."""

import concurrent.futures
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import blake3
import grpc

from rljob_api import enums, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import train_pb2, train_pb2_grpc, weights_pb2, weights_pb2_grpc, work_pb2_grpc
from rljob_workers.rpc import channel
from rljob_workers.weights import delta, frames

# Micro-batches of one step, by rank.
Parts = Sequence[Sequence[types.MicroBatch]]


class FakeCoordinator(train_pb2_grpc.TrainServicer, work_pb2_grpc.WorkServicer, weights_pb2_grpc.WeightsServicer):
    """Serves steps 1..len(batches). `hold_at`: a step that is never ready, only stopped. Events in order."""

    def __init__(
        self,
        *,
        batches: Sequence[tuple[types.BatchHeader, Parts]],
        hold_at: int | None = None,
        head: int = 0,
        committed: int = 0,
    ) -> None:
        """Start serving on loopback. `head`, `committed`: what earlier attempts left."""
        self.events: list[str] = []
        self.stats: dict[int, dict[str, float]] = {}
        self.versions: list[types.WeightVersion] = []
        self.layout: types.Layout | None = None
        self.initial_hashes: list[str] = []
        self.artifacts: dict[str, bytes] = {}
        self._batches, self._hold_at, self._head, self._committed = batches, hold_at, head, committed
        self._changed = threading.Condition()
        self._stopping: int | None = None
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), options=channel.options())
        train_pb2_grpc.add_TrainServicer_to_server(self, self._server)
        work_pb2_grpc.add_WorkServicer_to_server(self, self._server)
        weights_pb2_grpc.add_WeightsServicer_to_server(self, self._server)
        upload = grpc.stream_unary_rpc_method_handler(self._upload, bytes, bytes)
        handler = grpc.method_handlers_generic_handler("rljob.v1.WeightStore", {"Upload": upload})
        self._server.add_generic_rpc_handlers((handler,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.stop(None).wait()

    def _say(self, event: str) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_for(self, event: str, *, timeout_s: float = 120.0) -> bool:
        """Block until the event has happened; False if it did not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: event in self.events, timeout_s)

    def image(self, version: int) -> bytes:
        """Return the image of a version: its own, or that of its base with its changes."""
        manifest = next(found for found in self.versions if found.version == version)
        stored = {artifact.encoding: self.artifacts[artifact.artifact_id] for artifact in manifest.artifacts}
        if enums.Encoding.WHOLE in stored:
            return stored[enums.Encoding.WHOLE]
        assert self.layout is not None, "it comes with the first version"
        patched = bytearray(self.image(manifest.base))
        delta.apply(self.layout, memoryview(patched), memoryview(stored[enums.Encoding.DELTA]))
        return bytes(patched)

    def Register(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Open a session."""
        if request.rank == 0:
            self.initial_hashes.append(request.initial_state_hash)
            self._say(f"register resume {request.resume_step}")
            self._committed = request.resume_step
        head = types.VersionId(self._head)
        return codec.to_message(
            types.Session(token=types.SessionToken(f"s{request.rank}"), head_version=head, head_step=0, heartbeat_s=1.0)
        )

    def FetchBatch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """Answer with the step's batch, stop or finished."""
        if request.stop and self._stopping is None:
            self._stopping = request.step
        kind = enums.BatchKind.BATCH
        if self._stopping is not None and request.step >= self._stopping:
            kind = enums.BatchKind.STOP
        elif request.step == self._hold_at:
            self.wait_for("never", timeout_s=0.2)
            kind = enums.BatchKind.NOT_READY
        elif request.step > len(self._batches):
            kind = enums.BatchKind.FINISHED
        if kind is not enums.BatchKind.BATCH:
            yield train_pb2.BatchPart(header=codec.to_message(types.BatchHeader(kind=kind, step=request.step)))
            return
        header, parts = self._batches[request.step - 1]
        yield train_pb2.BatchPart(header=codec.to_message(header))
        for part in parts[request.rank]:
            yield train_pb2.BatchPart(micro_batch=codec.to_message(part))

    def CommitStep(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Record a step."""
        self._say(f"step {request.step}")
        self._committed = request.step
        self.stats[request.step] = dict(request.stats)
        return train_pb2.CommitStepReply(duplicate=False)

    def CommitCheckpoint(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Record a checkpoint."""
        self._say(f"checkpoint {request.step}{' final' if request.final else ''}")
        return train_pb2.CommitCheckpointReply()

    def Publish(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Register a version, by the registry's rules."""
        version = codec.from_message(types.WeightVersion, request.manifest)
        stored = self.artifacts.get(version.artifacts[0].artifact_id) if version.artifacts else None
        if version.version != self._head + 1 or version.step > self._committed or stored is None:
            return weights_pb2.PublishReply(outcome="conflict", head_version=self._head, detail=str(version))
        if request.HasField("layout"):
            self.layout = codec.from_message(types.Layout, request.layout)
        self._head = version.version
        self.versions.append(version)
        self._say(f"version {version.version} of step {version.step}")
        return weights_pb2.PublishReply(outcome="accepted", head_version=self._head)

    def _upload(self, stream: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        data = bytearray()
        for frame in stream:
            kind, offset, payload = frames.unpack(frame)
            if kind is frames.FrameKind.CHUNK:
                assert offset == len(data), "chunks come in order"
                data += payload
        digest = blake3.blake3(data).hexdigest()
        self.artifacts[digest] = bytes(data)
        return weights_pb2.UploadReply(artifact_id=digest, num_bytes=len(data)).SerializeToString()


def split_ranks(
    headers_and_micro_batches: Mapping[int, tuple[types.BatchHeader, Sequence[types.MicroBatch]]], ranks: int
) -> list[tuple[types.BatchHeader, Parts]]:
    """Return batches for `ranks` ranks: micro-batch i goes to rank i modulo `ranks`."""
    return [
        (header, [list(parts)[rank::ranks] for rank in range(ranks)])
        for _, (header, parts) in sorted(headers_and_micro_batches.items())
    ]
