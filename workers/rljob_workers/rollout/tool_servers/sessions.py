"""The sessions of an episode with the servers of its tools: each opened with its first call, closed at the end.

So what a server keeps for a session is of one episode. A server that is lost, refuses or is broken is no one's answer
(UnavailableError): the attempt is made again. What a call itself is to blame for, the model is told.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol, Self

from rljob_api import errors
from rljob_api.manifest.rollout import ToolServer
from rljob_workers.rollout.episodes import protocols, shell_tool
from rljob_workers.rollout.tool_servers import catalog
from rljob_workers.rpc import environment
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import retry

logger = logging.getLogger(__name__)


class Session(Protocol):
    """An open session. Its methods raise UnavailableError for a server that is lost."""

    async def tools(self) -> Sequence[catalog.Listed]:
        """Return all tools of the server."""

    async def call(self, name: str, arguments: Mapping[str, object], *, timeout_s: float) -> environment.Reply:
        """Return what a tool gave, as what a command gave."""

    async def close(self) -> None:
        """End it, and the process that was started for it; a second call does nothing."""


class Connect(Protocol):
    """Opens a session."""

    def __call__(self, server: ToolServer) -> Awaitable[Session]:
        """Raises UnavailableError for a server that may come, ManifestError for one that is named wrongly."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listings:
    """The servers of a job and what each of them listed at the rollout's start; how to reach them again."""

    connect: Connect
    servers: Sequence[tuple[ToolServer, Sequence[catalog.Listed]]]


async def listings_of(
    servers: Sequence[ToolServer], connect: Connect, *, wait_s: float, clock: clocks.Clock
) -> Listings:
    """Ask each server for its tools; one that cannot be reached is waited for.

    Raises UnavailableError that names the first one that did not come within `wait_s`, and ManifestError.
    """
    listed = []
    for index, server in enumerate(servers):
        asked_of = functools.partial(_tools_of, server, connect, field=f"{catalog.FIELD}[{index}]")
        backoff = retry.Backoff(first_s=1.0, most_s=15.0)
        listed.append((server, await retry.retry_async(asked_of, clock=clock, deadline_s=wait_s, backoff=backoff)))
        logger.info("MCP server %s has %d tools", server.name, len(listed[-1][1]))
    return Listings(connect=connect, servers=listed)


async def _tools_of(server: ToolServer, connect: Connect, *, field: str) -> Sequence[catalog.Listed]:
    session: Session | None = None
    try:
        session = await connect(server)
        return await session.tools()
    except errors.UnavailableError as error:
        logger.warning("waiting for MCP server %s: %s", server.name, error)
        raise errors.UnavailableError(f"{field}: {error}") from error
    except errors.ManifestError as error:
        raise errors.ManifestError(*(f"{field}: {problem}" for problem in error.problems)) from error
    finally:
        if session is not None:
            await session.close()


class EpisodeSessions:
    """One episode's; an asynchronous context manager."""

    def __init__(self, connect: Connect, limits: shell_tool.Limits) -> None:
        self._connect, self._limits = connect, limits
        self._open = contextlib.AsyncExitStack()
        self._sessions: dict[str, Session] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def run(self, tool: catalog.Tool, arguments: Mapping[str, object]) -> str:
        """Call a tool and return what the model sees of it. Raises UnavailableError for a server that is lost."""
        try:
            session = self._sessions.get(tool.server.name) or await self._opened(tool.server)
            reply = await session.call(tool.name, arguments, timeout_s=self._limits.command_s)
        except errors.ManifestError as error:
            # It was reached at the start: what is wrong now is the server's.
            raise errors.UnavailableError(str(error)) from error
        return shell_tool.shown(reply, self._limits.output_chars)

    async def _opened(self, server: ToolServer) -> Session:
        session = await self._connect(server)
        self._open.push_async_callback(session.close)
        self._sessions[server.name] = session
        return session


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The tools of servers that the episodes of a collector have."""

    tools: catalog.Catalog
    connect: Connect

    @classmethod
    def of(cls, listings: Listings, *, has_shell: bool, tokens: protocols.Tokens) -> "Offer":
        """Raises ManifestError for tools that cannot be offered together."""
        tools = catalog.catalog_of(listings.servers, has_shell=has_shell, tokens=tokens)
        return cls(tools=tools, connect=listings.connect)

    def sessions(self, limits: shell_tool.Limits) -> EpisodeSessions:
        """Return those of one episode; none is open yet."""
        return EpisodeSessions(self.connect, limits)
