"""A server shows its owner of every call that ended with an error of the tree, and no one what a servicer's own fault
says: real gRPC on loopback.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from rljob_api import errors
from rljob_workers.rpc import channel


async def _answer(request: bytes, _context: Any) -> bytes:
    if request == b"old":
        raise errors.FencedError("replaced")
    if request.startswith(b"bad"):
        raise ValueError(f"invalid literal: {request.decode()!r}")
    return b"ok"


async def _stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield await _answer(request, context)


async def _ask(client: grpc.aio.Channel, method: str, request: bytes) -> list[bytes]:
    if method.endswith("One"):
        return [await client.unary_unary(method)(request, wait_for_ready=True, timeout=60)]
    return [part async for part in client.unary_stream(method)(request, wait_for_ready=True, timeout=60)]


@contextlib.asynccontextmanager
async def serving(on_error: channel.OnError) -> AsyncIterator[grpc.aio.Channel]:
    server = channel.aio_server(None, on_error=on_error)
    handlers = {
        "One": grpc.unary_unary_rpc_method_handler(_answer),
        "Many": grpc.unary_stream_rpc_method_handler(_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = channel.bind(server, "127.0.0.1:0", None)
    await server.start()
    client = channel.aio_channel(f"127.0.0.1:{port}", None)
    try:
        yield client
    finally:
        await client.close()
        await server.stop(None)


@pytest.mark.parametrize("method", ["/test.Echo/One", "/test.Echo/Many"])
async def test_owner_of_a_server_hears_of_refused_calls_and_of_no_others(method: str) -> None:
    heard: list[str] = []
    async with serving(lambda error: heard.append(f"{error.name}: {error}")) as client:
        assert await _ask(client, method, b"new") == [b"ok"]
        with pytest.raises(grpc.aio.AioRpcError):
            await _ask(client, method, b"old")
    assert heard == ["FencedError: replaced"]


@pytest.mark.parametrize("method", ["/test.Echo/One", "/test.Echo/Many"])
async def test_what_a_call_carried_is_in_no_log_and_no_answer_when_a_servicer_fails(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(lambda error: None) as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _ask(client, method, b"bad: what a prompt said")
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    assert str(refused.value.details()).startswith("the servicer raised ValueError at test_refused_calls.py:")
    assert "a servicer raised ValueError at test_refused_calls.py:" in caplog.text
    assert "what a prompt said" not in f"{caplog.text}{refused.value}"
