"""The rollout's side of the `Work` service: register, lease, heartbeat, submit, release. asyncio."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol, TypeVar

import grpc
import grpc.aio

from rljob_api import enums, errors, process_config, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import work_pb2, work_pb2_grpc
from rljob_workers.rpc import channel

T = TypeVar("T")


class WorkTransport(Protocol):
    """What a worker needs from the coordinator. Calls raise UnavailableError or FencedError as the case may be."""

    async def register(self, *, pod: str, boot_id: str, initial_state_hash: str) -> types.Session:
        """Start a session; the token is used by all later calls."""

    async def lease(
        self, *, capacity: int, serving_version: types.VersionId, wait_s: float, ahead: bool = False
    ) -> types.LeaseGrant:
        """Long poll for prompt groups; `ahead`: also for the version that the coordinator wants this worker to load."""

    async def heartbeat(
        self,
        *,
        lease_ids: Sequence[types.LeaseId],
        serving_version: types.VersionId,
        receiver_state: enums.ReceiverState,
        load: types.RolloutLoad,
        syncs: Sequence[types.WeightSync],
        draining: bool,
        offer: types.WeightOffer = types.NO_OFFER,
    ) -> types.HeartbeatReply:
        """Renew leases, report, and get orders."""

    async def submit(self, group: types.PromptGroup) -> types.SubmitReply:
        """Hand in a group; idempotent on (group, attempt)."""

    async def release(self, lease_id: types.LeaseId, reason: str) -> bool:
        """Hand a lease back."""

    def watch(self) -> AsyncIterator[types.Announcement]:
        """Yield what to cancel and which version to load, now and on every change, until the connection breaks."""


class WorkClient:
    """The gRPC client. Close it with `close`."""

    def __init__(self, *, address: str, tls: process_config.TlsConfig | None, timeout_s: float = 20.0) -> None:
        """Nothing is sent before the first call."""
        self._address, self._timeout_s = address, timeout_s
        self._channel = channel.aio_channel(address, tls)
        self._stub = work_pb2_grpc.WorkStub(self._channel)
        self._session = ""

    async def register(self, *, pod: str, boot_id: str, initial_state_hash: str) -> types.Session:
        request = work_pb2.RegisterRequest(
            role=enums.Role.ROLLOUT, pod=pod, boot_id=boot_id, initial_state_hash=initial_state_hash
        )
        reply = await self._call(self._stub.Register(request, timeout=self._timeout_s))
        session = codec.from_message(types.Session, reply)
        self._session = session.token
        return session

    async def lease(
        self, *, capacity: int, serving_version: types.VersionId, wait_s: float, ahead: bool = False
    ) -> types.LeaseGrant:
        request = work_pb2.LeaseRequest(
            session=self._session, capacity=capacity, serving_version=serving_version, wait_s=wait_s, ahead=ahead
        )
        reply = await self._call(self._stub.LeaseGroups(request, timeout=wait_s + self._timeout_s))
        return codec.from_message(types.LeaseGrant, reply)

    async def heartbeat(
        self,
        *,
        lease_ids: Sequence[types.LeaseId],
        serving_version: types.VersionId,
        receiver_state: enums.ReceiverState,
        load: types.RolloutLoad,
        syncs: Sequence[types.WeightSync],
        draining: bool,
        offer: types.WeightOffer = types.NO_OFFER,
    ) -> types.HeartbeatReply:
        request = work_pb2.HeartbeatRequest(
            session=self._session,
            lease_ids=lease_ids,
            serving_version=serving_version,
            receiver_state=receiver_state,
            load=codec.to_message(load),
            syncs=map(codec.to_message, syncs),
            draining=draining,
            offer=codec.to_message(offer),
        )
        reply = await self._call(self._stub.Heartbeat(request, timeout=self._timeout_s))
        return codec.from_message(types.HeartbeatReply, reply)

    async def submit(self, group: types.PromptGroup) -> types.SubmitReply:
        """Hand in a group. Raises TooLargeError, and sends nothing, for one above what a message may carry."""
        request = codec.to_message(group)
        request.session = self._session
        num_bytes = request.ByteSize()
        if num_bytes > enums.MAX_BATCH_PART_BYTES:
            tokens = sum(len(row.tokens) for row in group.trajectories)
            raise errors.TooLargeError(
                f"group {group.group_id} has {num_bytes >> 20} MiB ({len(group.trajectories)} rows, {tokens} tokens),"
                f" a message at most {enums.MAX_BATCH_PART_BYTES >> 20} MiB; lower groupSize or maxTokens"
            )
        reply = await self._call(self._stub.SubmitGroup(request, timeout=self._timeout_s))
        return codec.from_message(types.SubmitReply, reply)

    async def release(self, lease_id: types.LeaseId, reason: str) -> bool:
        request = work_pb2.ReleaseRequest(session=self._session, lease_id=lease_id, reason=reason)
        reply = await self._call(self._stub.ReleaseGroup(request, timeout=self._timeout_s))
        return bool(reply.released)

    async def watch(self) -> AsyncIterator[types.Announcement]:
        """Raises UnavailableError when the connection breaks, FencedError once this session was replaced."""
        try:
            async for announcement in self._stub.Watch(work_pb2.WatchRequest(session=self._session)):
                yield codec.from_message(types.Announcement, announcement)
        except grpc.aio.AioRpcError as error:
            raise channel.translate(error, f"coordinator {self._address}") from error

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise channel.translate(error, f"coordinator {self._address}") from error
