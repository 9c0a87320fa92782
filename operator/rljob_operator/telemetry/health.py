"""What the kubelet and Prometheus ask the operator, on its own event loop: an answer shows that the loop turns.

The page of metrics is made on a thread, one at a time: with thousands of jobs it takes seconds.

GET /healthz: alive. GET /readyz: the first lists are complete and the API server answered lately. GET /metrics.

No certificate is asked for, so what anyone may cost is bounded: connections, of which the oldest makes room for the
next one, so that silent ones keep no probe out; and how often the page of metrics, which has every job, is made.
"""

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from aiohttp import web

from rljob_operator.clock import TokenBucket

# A kubelet and a few scrapers have one each, for milliseconds.
MOST_CONNECTIONS = 32
_IDLE_S, _LINGERING_S = 5.0, 1.0
_PAGES_PER_S, PAGES_BURST = 10.0, 20

# Returns why it does not hold; empty if it does.
Probe = Callable[[], str]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HealthServer:
    """Serves probes on one port and metrics on another."""

    def __init__(
        self,
        *,
        alive: Probe,
        ready: Probe,
        exposition: Callable[[], bytes],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing listens before `start`. exposition: called on a thread of its own."""
        self._page = asyncio.Lock()
        self._monotonic = monotonic
        self._alive, self._ready, self._exposition = alive, ready, exposition
        self._runners: list[web.AppRunner] = []
        self._servers: list[asyncio.Server] = []
        self._pages = TokenBucket(per_s=_PAGES_PER_S, burst=PAGES_BURST)

    async def start(self, *, host: str, health_port: int, metrics_port: int) -> tuple[int, int]:
        """Listen and return both ports; 0 takes a free one. Raises OSError if a port is taken."""
        probes = {"/healthz": _probe(self._alive), "/readyz": _probe(self._ready)}
        return await self._serve(host, health_port, probes), await self._serve(
            host, metrics_port, {"/metrics": self._metrics}
        )

    async def _serve(self, host: str, port: int, handlers: Mapping[str, _Handler]) -> int:
        app = web.Application()
        for path, handler in handlers.items():
            app.router.add_get(path, handler)
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=_IDLE_S, lingering_time=_LINGERING_S)
        await runner.setup()
        self._runners.append(runner)
        assert runner.server is not None
        listener = await asyncio.get_running_loop().create_server(_Bounded(runner.server), host, port)
        self._servers.append(listener)
        return int(listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        async with between_connections():
            for listener in self._servers:
                listener.close()
        for runner in self._runners:
            await runner.cleanup()
        self._servers.clear()
        self._runners.clear()

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        if not self._pages.try_take(self._monotonic()):
            return web.Response(status=429, text=f"at most {_PAGES_PER_S:.0f} pages a second\n")
        async with self._page:
            page = await asyncio.to_thread(self._exposition)
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=page, headers=headers)


@contextlib.asynccontextmanager
async def between_connections() -> AsyncIterator[None]:
    """Servers that stop listening in the block know all that the loop has accepted, and may be cleaned up after it.

    A connection whose accepting has begun when its server is closed is lost, and stays open (asyncio.Server of Python
    3.11); a timer's turn in a round of the loop comes after that of sockets, and so does what waits for it in the next.
    One that has not had its first turn when aiohttp cleans up is waited for until aiohttp's own time is over.
    """
    await asyncio.sleep(1e-9)
    yield
    for _ in range(3):
        await asyncio.sleep(0)


class _Bounded:
    """Makes the protocols of connections; each closes the one that was opened MOST_CONNECTIONS before it."""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._opened = collections.deque[web.RequestHandler](maxlen=MOST_CONNECTIONS)

    def __call__(self) -> web.RequestHandler:
        if len(self._opened) == MOST_CONNECTIONS:
            self._opened[0].force_close()
        self._opened.append(self._server())
        return self._opened[-1]


def _probe(probe: Probe) -> _Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        problem = probe()
        return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

    return answer
