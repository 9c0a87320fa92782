"""An episode's sessions with servers that are fakes: when they open and close, and what a lost one comes to."""

import pytest

from rljob_api import errors
from rljob_api.manifest.rollout import ToolServer
from rljob_testing import clock as clocks
from rljob_testing import rollout as fakes
from rljob_testing import servers
from rljob_workers.rollout.episodes import shell_tool
from rljob_workers.rollout.tool_servers import sessions

LIMITS = shell_tool.Limits(command_s=2.0, output_chars=16, wait_s=1.0)
SEARCH, CLOCK = (ToolServer.model_validate({"name": name, "url": f"http://{name}/mcp"}) for name in ("search", "clock"))


class PassingClock(clocks.FakeClock):
    """Time passes with each sleep."""

    async def sleep(self, seconds: float) -> None:
        self.tick(seconds)


async def offer(network: servers.FakeNetwork) -> sessions.Offer:
    listings = await sessions.listings_of([SEARCH, CLOCK], network.connect, wait_s=60.0, clock=PassingClock())
    network.events.clear()
    return sessions.Offer.of(listings, has_shell=False, tokens=fakes.FakeTokens())


async def test_a_session_opens_with_the_first_call_of_its_server_and_closes_with_the_episode() -> None:
    network = servers.FakeNetwork({"find": "here"})
    made = await offer(network)
    async with made.sessions(LIMITS) as episode:
        assert network.events == []
        assert await episode.run(made.tools["search-find"], {"q": 1}) == "here"
        assert await episode.run(made.tools["search-find"], {"q": 2}) == "here"
    assert network.events == ["open search", "search-find {'q': 1}", "search-find {'q': 2}", "close search"]


async def test_what_a_tool_gave_is_cut_as_a_commands_output_is() -> None:
    made = await offer(servers.FakeNetwork({"find": "0123456789abcdef and more"}))
    async with made.sessions(LIMITS) as episode:
        assert await episode.run(made.tools["clock-find"], {}) == "0123456789abcdef\n[the rest is left out]"


async def test_a_server_that_is_lost_is_no_answer_and_the_session_is_closed() -> None:
    network = servers.FakeNetwork({"find": errors.UnavailableError("gone")})
    made = await offer(network)
    with pytest.raises(errors.UnavailableError, match="gone"):
        async with made.sessions(LIMITS) as episode:
            await episode.run(made.tools["search-find"], {})
    assert network.events[-1] == "close search"


async def test_a_token_that_is_refused_within_a_run_is_the_servers_failure() -> None:
    network = servers.FakeNetwork({"find": "here"})
    made = await offer(network)
    network.refusals = [errors.ManifestError("it answers 401")]
    with pytest.raises(errors.UnavailableError, match="it answers 401"):
        async with made.sessions(LIMITS) as episode:
            await episode.run(made.tools["search-find"], {})


async def test_a_server_that_is_not_there_yet_is_waited_for_and_the_log_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network, clock = servers.FakeNetwork({"find": ""}), PassingClock()
    network.refusals = [errors.UnavailableError("refused")] * 3
    listings = await sessions.listings_of([SEARCH], network.connect, wait_s=60.0, clock=clock)
    assert [each.name for each in listings.servers[0][1]] == ["search-find"]
    assert clock.monotonic() > 1.0
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "waiting for MCP server search: refused"
    ] * 3
    assert network.events == ["open search", "close search"]


async def test_a_server_that_does_not_come_is_named_once_the_wait_is_over() -> None:
    network = servers.FakeNetwork({})
    network.refusals = [errors.UnavailableError("refused")] * 1000
    with pytest.raises(errors.UnavailableError, match=r"spec.workflow.config.mcp\[0\]: refused"):
        await sessions.listings_of([SEARCH], network.connect, wait_s=60.0, clock=PassingClock())


async def test_a_server_that_is_named_wrongly_is_not_waited_for() -> None:
    network, clock = servers.FakeNetwork({}), PassingClock()
    network.refusals = [errors.ManifestError("404")]
    with pytest.raises(errors.ManifestError, match=r"spec.workflow.config.mcp\[0\]: 404"):
        await sessions.listings_of([SEARCH], network.connect, wait_s=60.0, clock=clock)
    assert clock.monotonic() == 0.0
