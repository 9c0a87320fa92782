"""A batch comes message by message: a large one may take long, a server that says nothing may not."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rljob_api import enums, errors, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import train_pb2, train_pb2_grpc
from rljob_workers.rpc import channel, train

EMPTY = types.MicroBatch(
    update=0, tokens=types.NO_INTS, position_ids=types.NO_INTS, segments=(), target_index=types.NO_INTS,
    predictor_index=types.NO_INTS, logprobs=types.NO_FLOATS, advantages=types.NO_FLOATS, version_steps=types.NO_INTS,
    row_index=types.NO_INTS, rows=(),
)  # fmt: skip
HEADER = types.BatchHeader(kind=enums.BatchKind.BATCH, step=1)


class Server(train_pb2_grpc.TrainServicer):
    """Sends a header and so many parts, each after a while; then, if it hangs, nothing, and no end."""

    def __init__(self, *, num_parts: int, every_s: float = 0.0, hangs: bool = False) -> None:
        self.num_parts, self.every_s, self.hangs = num_parts, every_s, hangs

    async def FetchBatch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield train_pb2.BatchPart(header=codec.to_message(HEADER))
        part = codec.encode_micro_batch(EMPTY)
        for _ in range(self.num_parts):
            await asyncio.sleep(self.every_s)
            yield train_pb2.BatchPart.FromString(part)
        if self.hangs:
            await asyncio.Event().wait()


async def fetch(server: Server, timeout_s: float) -> train.Batch:
    listening = channel.aio_server(None)
    train_pb2_grpc.add_TrainServicer_to_server(server, listening)
    port = channel.bind(listening, "127.0.0.1:0", None)
    await listening.start()
    client = train.BatchClient(address=f"127.0.0.1:{port}", tls=None, timeout_s=timeout_s)
    try:
        return await asyncio.to_thread(client.fetch, step=1, rank=0, world_size=1, wait_s=0.0, stop=False)
    finally:
        client.close()
        await listening.stop(0)


async def test_a_batch_may_take_longer_than_the_deadline_of_a_message() -> None:
    header, parts = await fetch(Server(num_parts=30, every_s=0.1), timeout_s=2.0)
    assert (header, len(parts)) == (HEADER, 30)


async def test_a_server_that_stops_in_the_middle_is_unavailable() -> None:
    with pytest.raises(errors.UnavailableError):
        await fetch(Server(num_parts=2, hangs=True), timeout_s=0.5)
