"""A session with an MCP server, by streamable HTTP or with a process of its own: the only module with the client.

The session is in a task of its own, which enters and leaves it: the library's scopes are left by the task that entered
them, and an episode that is cancelled ends the session all the same.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import httpx2
import mcp
import mcp_types
import pydantic
from mcp.client.streamable_http import streamable_http_client

from rljob_api import errors
from rljob_api.manifest.rollout import ToolServer
from rljob_workers.rollout.tool_servers import catalog, child
from rljob_workers.rpc import environment

T = TypeVar("T")

_OPEN_S, _CLOSE_S, _WHY_S = 60.0, 5.0, 1.0
# More than any call may take, which has its own limit.
_READ_S = 660.0
_MOST_PAGES = 64
_MOST_CHARS = 256
# What is wrong with the URL or the key, as HTTP says it.
_NAMED_WRONGLY = {401: "it wants another token (tokenVariable)", 403: "it refuses the token (tokenVariable)"}
# Errors by which the library says that a connection or the protocol broke; any other is a server's word on a call.
_BROKEN = frozenset(
    {mcp_types.CONNECTION_CLOSED, mcp_types.PARSE_ERROR, mcp_types.INVALID_REQUEST, mcp_types.METHOD_NOT_FOUND}
)
# Tasks that end sessions after their episodes; the loop itself keeps no reference.
_holding: set[asyncio.Task[None]] = set()


class McpSession:
    """A session that `opened` returns."""

    def __init__(self, server: ToolServer) -> None:
        self._server = server
        self._closing = asyncio.Event()
        self._session: asyncio.Future[mcp.ClientSession] = asyncio.get_running_loop().create_future()
        self._pipes: child.Pipes | None = None
        self._holder = asyncio.ensure_future(self._hold())
        _holding.add(self._holder)
        self._holder.add_done_callback(_released)

    async def start(self) -> None:
        """Return once the server has answered. Raises UnavailableError and ManifestError."""
        first: set[asyncio.Future[Any]] = {self._session, self._holder}
        await asyncio.wait(first, timeout=_OPEN_S, return_when=asyncio.FIRST_COMPLETED)
        if not self._session.done():
            raise await self._failure(f"no answer in {_OPEN_S:.0f} s")

    async def tools(self) -> Sequence[catalog.Listed]:
        listed: list[catalog.Listed] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            params = mcp_types.PaginatedRequestParams(cursor=cursor)
            try:
                page = await self._answer(self._session.result().list_tools(params=params))
            except mcp.MCPError as error:
                raise await self._failure(error.message) from error
            listed += [
                catalog.Listed(name=each.name, description=each.description or "", schema=each.input_schema)
                for each in page.tools
            ]
            cursor = page.next_cursor
            if not cursor:
                break
        return listed

    async def call(self, name: str, arguments: Mapping[str, object], *, timeout_s: float) -> environment.Reply:
        params = mcp_types.CallToolRequestParams(name=name, arguments=dict(arguments))
        # Not its call_tool, which asks for the list of tools once more to check what no one reads.
        asking = self._session.result().send_request(
            mcp_types.CallToolRequest(params=params),
            mcp_types.CallToolResult,
            request_read_timeout_seconds=timeout_s,
        )
        try:
            return reply_of(await self._answer(asking))
        except mcp.MCPError as error:
            if error.code == mcp_types.REQUEST_TIMEOUT:
                return environment.Reply(stopped="wall")
            if error.code in _BROKEN:
                raise await self._failure(error.message) from error
            return environment.Reply(refused=error.message[:_MOST_CHARS])

    async def close(self) -> None:
        self._closing.set()
        if not self._session.done():
            self._holder.cancel()
        # An episode that is cancelled while it waits here leaves: the task ends what it holds all the same.
        await asyncio.wait({self._holder}, timeout=_CLOSE_S)
        if not self._holder.done():
            self._holder.cancel()
            await asyncio.wait({self._holder}, timeout=_CLOSE_S)

    async def _hold(self) -> None:
        # What ends it early is read by `_failure`.
        async with contextlib.AsyncExitStack() as stack:
            if self._server.command:
                streams, self._pipes = await stack.enter_async_context(child.process(self._server, os.environ))
                session = await stack.enter_async_context(mcp.ClientSession(*streams))
            else:
                http = await stack.enter_async_context(_http_client(self._server))
                remote = await stack.enter_async_context(
                    streamable_http_client(self._server.url, http_client=http, max_sse_event_size=child.MOST_BYTES)
                )
                session = await stack.enter_async_context(mcp.ClientSession(*remote))
            await session.initialize()
            self._session.set_result(session)
            await self._closing.wait()

    async def _answer(self, asking: Coroutine[object, object, T]) -> T:
        """Return what a request gives; raises UnavailableError as soon as the connection is lost."""
        request = asyncio.ensure_future(asking)
        # One that is left behind raises to no one.
        request.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            await asyncio.wait({request, self._holder}, return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                return request.result()
        except (pydantic.ValidationError, RuntimeError) as error:
            raise await self._failure(f"an answer that breaks the protocol ({type(error).__name__})") from error
        finally:
            request.cancel()
        raise await self._failure("the connection was lost")

    async def _failure(self, why: str) -> errors.RLJobError:
        """Return the error for a server that is lost, by what ended the session if anything did."""
        # A process's exit and a connection's end are reported one after the other.
        await asyncio.wait({self._holder}, timeout=_WHY_S if self._session.done() else 0.0)
        ended = self._holder.exception() if self._holder.done() and not self._holder.cancelled() else None
        cause = ended if ended is None else _innermost(ended)
        if isinstance(cause, errors.RLJobError):
            return cause
        where = f"MCP server {self._server.name} ({self._server.place[:_MOST_CHARS]})"
        if isinstance(cause, httpx2.HTTPStatusError):
            status = cause.response.status_code
            if status == 404 and not self._session.done():
                return errors.ManifestError(f"{where} answers 404: the URL needs the server's path, such as /mcp")
            if status in _NAMED_WRONGLY:
                return errors.ManifestError(f"{where} answers {status}: {_NAMED_WRONGLY[status]}")
            why = f"it answers {status}"
        elif cause is not None:
            why = f"{type(cause).__name__}: {str(cause)[:_MOST_CHARS]}"
        if self._pipes is not None:
            # Before its first answer it was sent nothing that a model wrote.
            last = "" if self._session.done() else " | ".join(self._pipes.last_lines)
            why = ("its process ended" if self._pipes.hung_up else why) + (f"; it wrote: {last}" if last else "")
        return errors.UnavailableError(f"{where} was lost or cannot be reached: {why}")


async def opened(server: ToolServer) -> McpSession:
    """Return a session with a server. Raises UnavailableError and ManifestError, as `sessions.Connect` says."""
    session = McpSession(server)
    try:
        await session.start()
    except BaseException:
        await session.close()
        raise
    return session


def reply_of(result: mcp_types.CallToolResult) -> environment.Reply:
    """Return what a tool gave as what a command gave: its texts, and a short note of anything else."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return environment.Reply(stdout="\n".join(parts).encode(errors="backslashreplace"))


def _part(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            return f"[{block.type} of {block.mime_type}: not shown]"
        case mcp_types.ResourceLink():
            return f"[resource {block.uri}: not shown]"
        case mcp_types.EmbeddedResource():
            return f"[resource {block.resource.uri}: not shown]"


def _http_client(server: ToolServer) -> httpx2.AsyncClient:
    """Raises ManifestError for a token that is not there."""
    headers = {}
    if server.token_variable:
        token = os.environ.get(server.token_variable, "")
        if not token:
            raise errors.ManifestError(
                f"tokenVariable of {server.name} is {server.token_variable}, which the rollout's environment has not:"
                " set it in spec.rollout.pod.env from a Secret, or for rljob run in its own environment"
            )
        headers["Authorization"] = f"Bearer {token}"
    timeout = httpx2.Timeout(30.0, read=_READ_S)
    return httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [_refuse_failures]})


async def _refuse_failures(response: httpx2.Response) -> None:
    """Raise HTTPStatusError, which ends the session, for what the library would hand on as an answer to a call."""
    status = response.status_code
    answers_itself = response.headers.get("content-type", "").lower().startswith("application/json")
    is_lost = status == 429 or status >= 500 or status in (401, 403, 404) or (status >= 400 and not answers_itself)
    if response.request.method == "POST" and is_lost:
        response.raise_for_status()


def _released(holder: asyncio.Task[None]) -> None:
    _holding.discard(holder)
    # Who needs what ended it has read it: no line of "never retrieved".
    if not holder.cancelled():
        holder.exception()


def _innermost(error: BaseException) -> BaseException:
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
