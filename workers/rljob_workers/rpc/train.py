"""A trainer rank's side of the `Train` service, and its registration. Blocking: a rank has nothing else to do."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import grpc

from rljob_api import enums, process_config, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import train_pb2, train_pb2_grpc, work_pb2, work_pb2_grpc
from rljob_workers.rpc import channel
from rljob_workers.runtime import stall

T = TypeVar("T")
Batch = tuple[types.BatchHeader, list[types.MicroBatch]]


class Batches(Protocol):
    """What the step loop needs from the coordinator. Calls raise UnavailableError or FencedError as the case may be."""

    def register(
        self, *, pod: str, boot_id: str, attempt: int, rank: int, resume_step: int, initial_state_hash: str
    ) -> types.Session:
        """Start this rank's session; rank 0's `resume_step` rewinds the run to its checkpoint."""

    def fetch(self, *, step: int, rank: int, world_size: int, wait_s: float, stop: bool) -> Batch:
        """Long poll for this rank's micro-batches of `step` (from 1); the same call returns the same bytes."""

    def commit_step(
        self,
        *,
        step: int,
        stats: Mapping[str, float],
        started_at: float,
        finished_at: float,
        storage_problem: str = "",
    ) -> None:
        """Rank 0: the parameters of `step` are updated. Idempotent. storage_problem: why checkpoints do not reach their
        object store.
        """

    def commit_checkpoint(self, *, step: int, uri: str, seconds: float, final: bool) -> None:
        """Rank 0: everything up to `step` may be pruned. Idempotent."""


class BatchClient:
    """The gRPC client. Close it with `close`."""

    def __init__(self, *, address: str, tls: process_config.TlsConfig | None, timeout_s: float = 30.0) -> None:
        """Nothing is sent before the first call."""
        self._address, self._timeout_s = address, timeout_s
        self._channel = channel.sync_channel(address, tls)
        self._train = train_pb2_grpc.TrainStub(self._channel)
        self._work = work_pb2_grpc.WorkStub(self._channel)
        self.session = ""

    def register(
        self, *, pod: str, boot_id: str, attempt: int, rank: int, resume_step: int, initial_state_hash: str
    ) -> types.Session:
        request = work_pb2.RegisterRequest(
            role=enums.Role.TRAINER,
            pod=pod,
            boot_id=boot_id,
            attempt=attempt,
            rank=rank,
            resume_step=resume_step,
            initial_state_hash=initial_state_hash,
        )
        reply = self._call(lambda: self._work.Register(request, timeout=self._timeout_s))
        session = codec.from_message(types.Session, reply)
        self.session = session.token
        return session

    def fetch(self, *, step: int, rank: int, world_size: int, wait_s: float, stop: bool) -> Batch:
        request = train_pb2.FetchRequest(
            session=self.session, step=step, rank=rank, world_size=world_size, wait_s=wait_s, stop=stop
        )
        return self._call(lambda: self._read(self._train.FetchBatch(request), wait_s))

    def _read(self, stream: grpc.Call, wait_s: float) -> Batch:
        """Read header and parts. No deadline for all of it, since a batch may be large: one from message to message."""
        watch = stall.StallWatch(wait_s + self._timeout_s)
        with watch.cancelling(stream.cancel):
            parts = iter(stream)
            header = codec.from_message(types.BatchHeader, next(parts).header)
            micro_batches = []
            watch.moved(idle_s=self._timeout_s)
            for part in parts:
                micro_batches.append(codec.from_message(types.MicroBatch, part.micro_batch))
                watch.moved()
            return header, micro_batches

    def commit_step(
        self,
        *,
        step: int,
        stats: Mapping[str, float],
        started_at: float,
        finished_at: float,
        storage_problem: str = "",
    ) -> None:
        request = train_pb2.CommitStepRequest(
            session=self.session,
            step=step,
            stats=stats,
            started_at=started_at,
            finished_at=finished_at,
            storage_problem=storage_problem,
        )
        self._call(lambda: self._train.CommitStep(request, timeout=self._timeout_s))

    def commit_checkpoint(self, *, step: int, uri: str, seconds: float, final: bool) -> None:
        request = train_pb2.CommitCheckpointRequest(
            session=self.session, step=step, uri=uri, seconds=seconds, final=final
        )
        self._call(lambda: self._train.CommitCheckpoint(request, timeout=self._timeout_s))

    def close(self) -> None:
        self._channel.close()

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except grpc.RpcError as error:
            raise channel.translate(error, f"coordinator {self._address}") from error
