"""One HTTP request to a judge: bounded in both directions, without redirects, a connection each.

Standard library alone: the slim image has no HTTP client, and a judge takes seconds, so that a connection costs little.
No proxy of the environment is used.
"""

import asyncio
import dataclasses
import functools
import ssl
import urllib.parse
from typing import Protocol

MAX_REPLY_BYTES = 4 << 20
MAX_HEAD_BYTES = 64 << 10


class BrokenCallError(Exception):
    """No connection, or one that broke off, or bytes that are no HTTP."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """Status, the header Retry-After or "", and the body."""

    status: int
    retry_after: str
    body: bytes


class Post(Protocol):
    """`post`, as its users call it."""

    async def __call__(self, url: str, body: bytes, *, key: str) -> Reply: ...


async def post(url: str, body: bytes, *, key: str) -> Reply:
    """Return the reply to a JSON body; `key` goes along as a bearer token. Raises BrokenCallError.

    The caller bounds its time.
    """
    parts = urllib.parse.urlsplit(url)
    secure = parts.scheme == "https"
    try:
        reader, writer = await asyncio.open_connection(
            parts.hostname,
            parts.port or (443 if secure else 80),
            ssl=_tls() if secure else None,
            limit=MAX_HEAD_BYTES,
        )
    except OSError as error:
        raise BrokenCallError(f"no connection: {type(error).__name__}") from error
    try:
        writer.write(_head(parts, len(body), key) + body)
        await writer.drain()
        return await _reply(reader)
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        # Not the text of the error: it may hold what the other side sent.
        raise BrokenCallError(f"the connection broke off: {type(error).__name__}") from error
    finally:
        # A peer that does not close its side is not waited for.
        writer.transport.abort()


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _head(parts: urllib.parse.SplitResult, length: int, key: str) -> bytes:
    lines = [
        f"POST {parts.path or '/'} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Content-Type: application/json",
        "Accept: application/json",
        "Accept-Encoding: identity",
        f"Content-Length: {length}",
        "Connection: close",
        *([f"Authorization: Bearer {key}"] if key else []),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _reply(reader: asyncio.StreamReader) -> Reply:
    """Raises ValueError or EOFError for what is no whole reply of HTTP/1."""
    status, headers = await _response_head(reader)
    while 100 <= status < 200:
        status, headers = await _response_head(reader)
    return Reply(status, headers.get("retry-after", ""), await _body(reader, headers))


async def _response_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError("not a reply of HTTP/1")
    pairs = (line.partition(":") for line in lines)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader)
    if "content-length" in headers:
        return await reader.readexactly(_bounded(int(headers["content-length"])))
    body = bytearray()
    while part := await reader.read(MAX_HEAD_BYTES):
        body += part
        _bounded(len(body))
    return bytes(body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        _bounded(len(body) + size)
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    return bytes(body)


def _bounded(num_bytes: int) -> int:
    if not 0 <= num_bytes <= MAX_REPLY_BYTES:
        raise ValueError("the reply is too large")
    return num_bytes
