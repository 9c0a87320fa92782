"""Who asks the operator how it is cannot keep others from asking, nor the operator from its work."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import aiohttp
import pytest

from rljob_operator.telemetry import health
from rljob_testing import ports
from rljob_testing.clock import FakeClock

HOST = "127.0.0.1"


class Served:
    """A server that is alive, not ready, and counts how often its page was made. Two ports of its own."""

    def __init__(self) -> None:
        self.pages, self.health_port, self.metrics_port = 0, 0, 0
        self.clock = FakeClock()

    def exposition(self) -> bytes:
        self.pages += 1
        return b"rljob_operator_info 1\n"

    async def get(self, path: str) -> tuple[int, str]:
        port = self.metrics_port if path == "/metrics" else self.health_port
        async with aiohttp.ClientSession() as session, session.get(f"http://{HOST}:{port}{path}") as answer:
            return answer.status, await answer.text()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    served = Served()
    server = health.HealthServer(
        alive=str,
        ready=lambda: "lists are not complete",
        exposition=lambda: served.exposition(),
        monotonic=served.clock.monotonic,
    )
    served.health_port, served.metrics_port = await server.start(host=HOST, health_port=0, metrics_port=0)
    try:
        yield served
    finally:
        await server.close()


@pytest.mark.asyncio
async def test_probes_say_what_holds_and_what_does_not() -> None:
    async with serving() as served:
        assert await served.get("/healthz") == (200, "ok\n")
        assert await served.get("/readyz") == (503, "lists are not complete\n")
        assert await served.get("/metrics") == (200, "rljob_operator_info 1\n")
        assert (await served.get("/else"))[0] == 404


@pytest.mark.asyncio
@pytest.mark.parametrize("begun", [b"", b"GET /healthz HTTP/1.1\r\nHost: "], ids=["silent", "half a request"])
async def test_connections_that_say_nothing_make_room_for_a_probe(begun: bytes) -> None:
    async with serving() as served:
        opened = []
        for _ in range(health.MOST_CONNECTIONS + 5):
            reader, writer = await asyncio.open_connection(HOST, served.health_port)
            writer.write(begun)
            opened.append((reader, writer))
        assert await served.get("/healthz") == (200, "ok\n")
        for reader, _ in opened[:6]:
            assert await reader.read() == b"", "the oldest ones are closed"
        assert not opened[-1][0].at_eof()
        opened[-1][1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" if not begun else b"x\r\n\r\n")
        assert (await opened[-1][0].readline()).startswith(b"HTTP/1.1 200")
        for _, writer in opened:
            writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("rounds", range(6))
async def test_a_connection_that_the_loop_has_just_accepted_is_closed_with_the_server(rounds: int) -> None:
    async with serving() as served:
        peer = await ports.connected(served.health_port, rounds=rounds)
    await ports.until_closed(peer)


@pytest.mark.asyncio
async def test_metrics_are_made_a_bounded_number_of_times_a_second_and_probes_go_on() -> None:
    async with serving() as served:
        answers = [(await served.get("/metrics"))[0] for _ in range(health.PAGES_BURST + 2)]
        assert answers == [200] * health.PAGES_BURST + [429, 429]
        served.clock.tick(1.0)
        assert (await served.get("/metrics"))[0] == 200
        assert served.pages == health.PAGES_BURST + 1
        assert await served.get("/healthz") == (200, "ok\n")


async def test_probes_are_answered_while_the_page_of_metrics_is_made() -> None:
    begun, finished = threading.Event(), threading.Event()

    def exposition() -> bytes:
        begun.set()
        assert finished.wait(30.0)
        return b"page"

    async with serving() as served:
        served.exposition = exposition  # type: ignore[method-assign]
        page = asyncio.create_task(served.get("/metrics"))
        await asyncio.to_thread(begun.wait, 30.0)
        assert (await served.get("/healthz"))[0] == 200
        assert not page.done()
        finished.set()
        assert await page == (200, "page")
