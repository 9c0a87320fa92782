"""A group above what a message may carry is refused before it is sent, and where gRPC refuses one, for good."""

import dataclasses

import pytest

from rljob_api import enums, errors
from rljob_api.wire.v1 import work_pb2_grpc
from rljob_testing import makers
from rljob_workers.rpc import channel, work


class Work(work_pb2_grpc.WorkServicer):
    """Hears of no call."""


async def test_a_group_above_the_limit_is_refused_with_its_size_before_anything_is_sent() -> None:
    client = work.WorkClient(address="127.0.0.1:9", tls=None)
    group = makers.make_group()
    row = dataclasses.replace(group.trajectories[0], output_text="x" * enums.MAX_BATCH_PART_BYTES)
    with pytest.raises(errors.TooLargeError, match=r"has 64 MiB \(1 rows, \d+ tokens\), a message at most 64 MiB"):
        await client.submit(dataclasses.replace(group, trajectories=(row,)))
    await client.close()


async def test_what_grpc_itself_refuses_as_too_large_is_never_tried_again() -> None:
    server = channel.aio_server(None)
    work_pb2_grpc.add_WorkServicer_to_server(Work(), server)
    port = channel.bind(server, "127.0.0.1:0", None)
    await server.start()
    client = work.WorkClient(address=f"127.0.0.1:{port}", tls=None)
    with pytest.raises(errors.TooLargeError) as refused:
        await client.release("l", "x" * enums.MAX_BATCH_PART_BYTES)  # type: ignore[arg-type]  # any id
    assert refused.value.retry is errors.Retry.NEVER
    await client.close()
    await server.stop(0)
