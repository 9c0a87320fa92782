"""The gRPC services on the control port. Thin: messages in, one call, messages out. Errors become statuses in
transport.
"""

# ruff: noqa: ARG002  # the signatures are gRPC's

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc.aio

from rljob_api import types
from rljob_api.wire import codec
from rljob_api.wire.v1 import (
    status_pb2,
    status_pb2_grpc,
    train_pb2,
    train_pb2_grpc,
    weights_pb2,
    weights_pb2_grpc,
    work_pb2,
    work_pb2_grpc,
)
from rljob_workers.coordinator import context, dispatch, housekeeping, training
from rljob_workers.coordinator.weights import registry

# gRPC's own types are generic in its stubs but not at run time.
Message: TypeAlias = Any
Context: TypeAlias = Any
_MOST_WAIT_S = 60.0
_LEAST_WATCH_S, _MOST_WATCH_S = 0.2, 60.0
# Reading a larger group takes milliseconds, in which no other call would be answered.
_LARGE_BYTES = 1 << 20


class WorkService(work_pb2_grpc.WorkServicer):
    """Work."""

    def __init__(self, answers: dispatch.Dispatch) -> None:
        self._answers = answers

    async def Register(self, request: Message, context: Context) -> Message:
        session = await self._answers.register(
            dispatch.Registration(
                role=dispatch.role_of(request.role),
                pod=request.pod,
                boot_id=request.boot_id,
                attempt=request.attempt,
                rank=request.rank,
                resume_step=request.resume_step,
                initial_state_hash=request.initial_state_hash,
            )
        )
        return codec.to_message(session)

    async def LeaseGroups(self, request: Message, context: Context) -> Message:
        grant = await self._answers.lease(
            token=request.session,
            capacity=request.capacity,
            serving_version=request.serving_version,
            wait_s=min(request.wait_s, _MOST_WAIT_S),
            ahead=request.ahead,
        )
        return codec.to_message(grant)

    async def Heartbeat(self, request: Message, context: Context) -> Message:
        report = dispatch.Report(
            lease_ids=tuple(request.lease_ids),
            serving_version=request.serving_version,
            receiver_state=request.receiver_state,
            load=codec.from_message(types.RolloutLoad, request.load),
            syncs=tuple(codec.from_message(types.WeightSync, sync) for sync in request.syncs),
            draining=request.draining,
            offer=codec.from_message(types.WeightOffer, request.offer),
        )
        return codec.to_message(await self._answers.heartbeat(request.session, report))

    async def SubmitGroup(self, request: Message, context: Context) -> Message:
        token = request.session
        if request.ByteSize() > _LARGE_BYTES:
            group = await asyncio.to_thread(codec.from_message, types.PromptGroup, request)
        else:
            group = codec.from_message(types.PromptGroup, request)
        # What is kept is the message itself, without the secret.
        request.ClearField("session")
        answer = await self._answers.submit(token, group, request.SerializeToString())
        return codec.to_message(answer)

    async def ReleaseGroup(self, request: Message, context: Context) -> Message:
        released = await self._answers.release(token=request.session, lease_id=request.lease_id, reason=request.reason)
        return work_pb2.ReleaseReply(released=released)

    async def Watch(self, request: Message, context: Context) -> AsyncIterator[Message]:
        """What to cancel and which version to load, now and on every change."""
        async for announcement in self._answers.watch(request.session):
            yield codec.to_message(announcement)


class TrainService(train_pb2_grpc.TrainServicer):
    """Train."""

    def __init__(self, answers: training.Training) -> None:
        self._answers = answers

    async def FetchBatch(self, request: Message, context: Context) -> AsyncIterator[Message]:
        """Header, then this rank's micro-batches as they were recorded."""
        header, parts = await self._answers.fetch(
            token=request.session,
            step=request.step,
            rank=request.rank,
            world_size=request.world_size,
            wait_s=min(request.wait_s, _MOST_WAIT_S),
            stop=request.stop,
        )
        yield train_pb2.BatchPart(header=codec.to_message(header))
        for part in parts:
            yield train_pb2.BatchPart.FromString(part)

    async def CommitStep(self, request: Message, context: Context) -> Message:
        duplicate = await self._answers.commit_step(
            token=request.session,
            step=request.step,
            stats=dict(request.stats),
            started_at=request.started_at,
            finished_at=request.finished_at,
            storage_problem=request.storage_problem,
        )
        return train_pb2.CommitStepReply(duplicate=duplicate)

    async def CommitCheckpoint(self, request: Message, context: Context) -> Message:
        deletable = await self._answers.commit_checkpoint(
            token=request.session, step=request.step, uri=request.uri, seconds=request.seconds, final=request.final
        )
        return train_pb2.CommitCheckpointReply(deletable_steps=deletable)


class WeightsService(weights_pb2_grpc.WeightsServicer):
    """Weights."""

    def __init__(self, answers: registry.Publishing) -> None:
        self._answers = answers

    async def Publish(self, request: Message, context: Context) -> Message:
        layout = codec.from_message(types.Layout, request.layout) if request.HasField("layout") else None
        answer, head = await self._answers.publish(
            token=request.session,
            proposal=codec.from_message(types.WeightVersion, request.manifest),
            layout=layout,
            broadcasts=request.broadcasts,
        )
        return weights_pb2.PublishReply(outcome=answer.outcome, head_version=head, detail=answer.detail)

    async def Manifest(self, request: Message, context: Context) -> Message:
        plan = await self._answers.plan(
            token=request.session,
            want=request.want,
            have=request.have,
            with_layout=request.layout,
            damaged=tuple(request.damaged),
            only_stored=request.stored,
        )
        return codec.to_message(plan)

    async def Pieces(self, request: Message, context: Context) -> Message:
        sources = await self._answers.sources(
            token=request.session, artifact_id=request.artifact_id, have=request.have, failed=tuple(request.failed)
        )
        return codec.to_message(sources)


class StatusService(status_pb2_grpc.RunStatusServicer):
    """RunStatus."""

    def __init__(
        self, parts: context.CoordinatorContext, housekeeper: housekeeping.Housekeeper, trainer: training.Training
    ) -> None:
        self._context, self._housekeeper, self._trainer = parts, housekeeper, trainer

    async def Status(self, request: Message, context: Context) -> Message:
        return codec.to_message(await self._housekeeper.current())

    async def WatchStatus(self, request: Message, context: Context) -> AsyncIterator[Message]:
        """The status when something changed, at most every `interval_s`, and at least every two: a reader who hears
        nothing for longer knows that the stream is dead, and not that the run is quiet.
        """
        interval_s = min(max(_LEAST_WATCH_S, request.interval_s), _MOST_WATCH_S)
        while True:
            mark = self._context.changes.mark
            yield codec.to_message(await self._housekeeper.current())
            await self._context.clock.sleep(interval_s)
            await self._context.changes.wait(mark, interval_s)

    async def Stop(self, request: Message, context: Context) -> Message:
        """Checkpoint at the next step boundary, then end."""
        return status_pb2.StopReply(stop_after_step=await self._trainer.stop())


def add_services(
    server: grpc.aio.Server,
    *,
    work: dispatch.Dispatch,
    trainer: training.Training,
    weights: registry.Publishing,
    status: StatusService,
) -> None:
    """Add the four services of the control port."""
    work_pb2_grpc.add_WorkServicer_to_server(WorkService(work), server)
    train_pb2_grpc.add_TrainServicer_to_server(TrainService(trainer), server)
    weights_pb2_grpc.add_WeightsServicer_to_server(WeightsService(weights), server)
    status_pb2_grpc.add_RunStatusServicer_to_server(status, server)
