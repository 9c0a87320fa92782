import asyncio
import contextlib
from typing import Any

import pytest

from rljob_testing import judges
from rljob_testing.judges import Answer
from rljob_workers.judge import transport


async def posted(answer: Answer | str, *, key: str = "") -> transport.Reply:
    async with judges.server(lambda number, body: answer) as url:
        return await transport.post(url + "/chat/completions", b'{"a": 1}', key=key)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_reply_is_read_whole_in_both_framings(chunked: bool) -> None:
    reply = await posted(Answer(200, {"text": "é" * 100}, chunked=chunked))
    assert (reply.status, reply.retry_after) == (200, "")
    assert reply.body == b'{"text": "' + rb"\u00e9" * 100 + b'"}'


async def test_a_redirect_is_a_reply_and_is_not_followed() -> None:
    asked = []

    def serve(number: int, body: dict[str, Any]) -> Answer:
        asked.append(number)
        return Answer(307, {}, headers={"Location": "http://127.0.0.1:1/stolen"})

    async with judges.server(serve) as url:
        assert (await transport.post(url, b"{}", key="secret-key")).status == 307
    assert asked == [0]


async def test_a_connection_that_closes_is_told_without_what_was_sent() -> None:
    with pytest.raises(transport.BrokenCallError, match="broke off: ServerDisconnectedError"):
        await posted(judges.CLOSES)


async def test_no_server_is_told() -> None:
    async with judges.server(lambda number, body: Answer()) as url:
        pass
    with pytest.raises(transport.BrokenCallError, match="no connection"):
        await transport.post(url, b"{}", key="")


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 17),
    ],
)
async def test_what_is_no_bounded_reply_breaks_the_call(sent: bytes) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.close()

    serving = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with serving:
        port = serving.sockets[0].getsockname()[1]
        with pytest.raises(transport.BrokenCallError):
            await transport.post(f"http://127.0.0.1:{port}/v1", b"{}", key="")


async def test_a_body_without_an_end_is_cut_at_its_bound() -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        writer.close()

    serving = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with serving:
        port = serving.sockets[0].getsockname()[1]
        with pytest.raises(transport.BrokenCallError, match="ValueError"):
            await transport.post(f"http://127.0.0.1:{port}/v1", b"{}", key="")
