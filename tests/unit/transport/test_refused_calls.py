"""A server tells its owner of every call that ended with an error of the tree: real gRPC on loopback."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from rljob_api import errors
from rljob_workers.transport import channel


async def _answer(request: bytes, _context: Any) -> bytes:
    if request == b"old":
        raise errors.FencedError("replaced")
    return b"ok"


async def _stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield await _answer(request, context)


async def _ask(client: grpc.aio.Channel, method: str, request: bytes) -> list[bytes]:
    if method.endswith("One"):
        return [await client.unary_unary(method)(request, wait_for_ready=True, timeout=60)]
    return [part async for part in client.unary_stream(method)(request, wait_for_ready=True, timeout=60)]


@pytest.mark.parametrize("method", ["/test.Echo/One", "/test.Echo/Many"])
async def test_owner_of_a_server_hears_of_refused_calls_and_of_no_others(method: str) -> None:
    heard: list[str] = []
    server = channel.aio_server(None, on_error=lambda error: heard.append(f"{error.name}: {error}"))
    handlers = {
        "One": grpc.unary_unary_rpc_method_handler(_answer),
        "Many": grpc.unary_stream_rpc_method_handler(_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = channel.bind(server, "127.0.0.1:0", None)
    await server.start()
    client = channel.aio_channel(f"127.0.0.1:{port}", None)
    try:
        assert await _ask(client, method, b"new") == [b"ok"]
        with pytest.raises(grpc.aio.AioRpcError):
            await _ask(client, method, b"old")
        assert heard == ["FencedError: replaced"]
    finally:
        await client.close()
        await server.stop(None)
