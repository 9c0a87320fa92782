"""What the kubelet and Prometheus ask the operator, on its own event loop: an answer shows that the loop turns.

GET /healthz: alive. GET /readyz: the first lists are complete and the API server answered lately. GET /metrics.
"""

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

# Returns why it does not hold; empty if it does.
Probe = Callable[[], str]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HealthServer:
    """Serves probes on one port and metrics on another."""

    def __init__(self, *, alive: Probe, ready: Probe, exposition: Callable[[], bytes]) -> None:
        """Keep what is asked; nothing listens before `start`."""
        self._alive, self._ready, self._exposition = alive, ready, exposition
        self._runners: list[web.AppRunner] = []

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
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, host, port).start()
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening."""
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._exposition(), headers=headers)


def _probe(probe: Probe) -> _Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        problem = probe()
        return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

    return answer
