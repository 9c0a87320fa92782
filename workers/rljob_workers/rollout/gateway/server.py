"""The server for agents inside the rollout's process, on loopback: each open episode has a path and a key of its own.

There is nothing else to reach: no models to register, no other episode's calls.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

from aiohttp import web

from rljob_workers.rollout.gateway import calls, sessions


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What an agent is given."""

    base_url: str
    api_key: str


class Proxy:
    """Starts with the first episode; `close` ends it."""

    def __init__(self) -> None:
        """Nothing listens yet."""
        self._open: dict[str, sessions.Session] = {}
        self._starting = asyncio.Lock()
        self._listener = calls.Listener([web.route("*", calls.PATH, self._serve)])
        self._port = 0

    @contextlib.asynccontextmanager
    async def open(self, attempt: sessions.Attempt) -> AsyncIterator[Address]:
        """Serve one episode's calls; afterwards its path and key are void and its open calls cancelled."""
        async with self._starting:
            self._port = self._port or await self._listener.start("127.0.0.1", 0)
        session = sessions.Session(attempt=attempt)
        self._open[session.name] = session
        try:
            yield Address(base_url=f"http://127.0.0.1:{self._port}/{session.name}/v1", api_key=session.api_key)
        finally:
            del self._open[session.name]
            # A client that gave up leaves its call behind; no one reads the answer any more.
            session.cancel_calls()

    async def close(self) -> None:
        """Stop listening."""
        await self._listener.close()
        self._port = 0

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        return await calls.serve(request, self._open.get)
