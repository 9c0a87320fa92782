"""One HTTP request to a judge: bounded in both directions, without redirects, a connection each, no proxy of the
environment. A judge takes seconds, so that a connection costs little.
"""

import dataclasses
from typing import Protocol

import aiohttp

MAX_REPLY_BYTES = 4 << 20
# Of one line of a reply's head.
_MAX_LINE_BYTES = 16 << 10


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
    # What is packed has no bound that is known before it is unpacked.
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        async with (
            aiohttp.ClientSession(
                trust_env=False,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                max_line_size=_MAX_LINE_BYTES,
                max_field_size=_MAX_LINE_BYTES,
            ) as session,
            session.post(url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            return Reply(response.status, response.headers.get("Retry-After", ""), await _body(response.content))
    except aiohttp.ClientConnectorError as error:
        raise BrokenCallError(f"no connection: {type(error).__name__}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # Not the text of the error: it may hold what the other side sent.
        raise BrokenCallError(f"the connection broke off: {type(error).__name__}") from error


async def _body(content: aiohttp.StreamReader) -> bytes:
    """Raises ValueError for a body that is too large."""
    body = bytearray()
    async for part in content.iter_any():
        body += part
        if len(body) > MAX_REPLY_BYTES:
            raise ValueError("the reply is too large")
    return bytes(body)
