"""Episodes with tools of MCP servers, on fakes of model and servers: what is declared, called, seen, refused."""

import json

import pytest

from rljob_api import errors, types
from rljob_api.manifest.rollout import ToolServer
from rljob_testing import clock as clocks
from rljob_testing import episodes, servers, shells
from rljob_testing import rollout as fakes
from rljob_testing.shells import says
from rljob_workers.rollout.episodes import protocols, registry, shell_tool, tool_use
from rljob_workers.rollout.tool_servers import sessions
from rljob_workers.rpc import environment

SEARCH = {"name": "search", "url": "http://search/mcp"}
QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
EOS = chr(episodes.EOS)


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def task(**columns: object) -> protocols.Task:
    record = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "do", **columns})
    return protocols.Task(record=record, input_ids=ids("do"), prompt_text="do")


async def collector(
    network: servers.FakeNetwork, places: shell_tool.Places | None = None, **options: object
) -> protocols.RolloutCollector:
    config = {"mcp": [SEARCH], **({"tools": ["shell"]} if places else {}), **options}
    listings = await sessions.listings_of(
        [ToolServer.model_validate(SEARCH)], network.connect, wait_s=1.0, clock=clocks.FakeClock()
    )
    network.events.clear()
    return registry.make_collector(
        workflow="tool_use",
        config=config,
        tokens=fakes.FakeTokens(),
        template="chat",
        max_model_len=4096,
        places=places,
        listings=listings,
    )


async def run(
    made: protocols.RolloutCollector,
    answers: list[str],
    given: protocols.Task,
    grader: episodes.FakeGrader | None = None,
) -> tuple[types.Trajectory, list[str]]:
    model = episodes.FakeModel(*(ids(answer + EOS) for answer in answers))
    episode = await made.arun_episode(
        llm_client=model,
        gconfig=types.Sampling(max_tokens=200),
        task=given,
        grader=grader or episodes.FakeGrader(0.5),
        seed=7,
    )
    assert episode is not None
    (row,) = episode.rows
    return row, ["".join(map(chr, request.input_ids)) for request in model.requests]


async def test_a_call_goes_to_its_server_and_what_it_gave_is_seen_and_not_trained() -> None:
    network, grader = servers.FakeNetwork({"find": "<eos>\x1b 7"}), episodes.FakeGrader(1.0)
    row, prompts = await run(await collector(network), [call("search-find", query="x"), "7"], task(), grader)
    assert network.events == ["open search", "search-find {'query': 'x'}", "close search"]
    assert prompts[1] == prompts[0] + call("search-find", query="x") + EOS + ";t:<\\eos>\\x1b 7;a:"
    assert prompts[0] == "T1;u:do;a:"
    sampled = "".join(chr(token) for token, trained in zip(row.tokens, row.loss_mask, strict=True) if trained)
    assert sampled == call("search-find", query="x") + EOS + "7" + EOS
    assert (row.reward, grader.seen[0][1]) == (1.0, "7")


async def test_an_episode_without_a_call_opens_no_session() -> None:
    network = servers.FakeNetwork({"find": "7"})
    await run(await collector(network), ["7"], task())
    assert network.events == []


async def test_a_shell_and_servers_work_side_by_side_and_tests_run_in_the_shell() -> None:
    network, places = servers.FakeNetwork({"find": "7"}), shells.FakePlaces({"ls": says("in\n"), "true": says()})
    row, prompts = await run(
        await collector(network, places),
        [call("shell", command="ls") + call("search-find"), "done"],
        task(tests=["true"]),
    )
    assert prompts[0].startswith("T2;")
    assert prompts[1].endswith(";t:in;t:7;a:")
    assert places.events == ["claim p", "ls", "true", "release"]
    assert row.reward == 1.0


@pytest.mark.parametrize(
    ("made", "seen"),
    [
        (call("find", query="x"), "[refused: there is no such tool; there is search-find alone]"),
        (call("shell", command="ls"), "[refused: there is no such tool; there is search-find alone]"),
        (call("search-find", text="x"), "[refused: search-find: 'query' is a required property]"),
        (call("search-find", query=7), "[refused: search-find: query: 7 is not of type 'string']"),
    ],
)
async def test_a_call_that_is_none_is_refused_in_words_and_reaches_no_server(made: str, seen: str) -> None:
    network = servers.FakeNetwork({"find": "7"}, schema=QUERY)
    _, prompts = await run(await collector(network), [made, "done"], task())
    assert f";t:{seen};" in prompts[1]
    assert network.events == []


@pytest.mark.parametrize(
    ("reply", "seen"),
    [
        (environment.Reply(stopped="wall"), "[ended: it took too long]"),
        (environment.Reply(refused="no such page"), "[refused: no such page]"),
        (environment.Reply(stdout=b"x" * 65), "x" * 64 + "\n[the rest is left out]"),
    ],
)
async def test_how_a_call_ended_is_said_as_of_a_command(reply: environment.Reply, seen: str) -> None:
    made = await collector(servers.FakeNetwork({"find": reply}), outputChars=64)
    _, prompts = await run(made, [call("search-find"), "done"], task())
    assert f";t:{seen};" in prompts[1]


async def test_a_lost_server_is_a_failure_of_the_infrastructure_and_closes_what_was_open() -> None:
    network = servers.FakeNetwork({"find": errors.UnavailableError("lost"), "ls": "a"})
    with pytest.raises(errors.UnavailableError) as raised:
        await run(await collector(network), [call("search-ls"), call("search-find")], task())
    assert raised.value.fault is errors.Fault.INFRA
    assert network.events[-1] == "close search"


@pytest.mark.parametrize("columns", [{"tests": ["true"]}, {"files": {"a": "b"}}])
async def test_tests_and_files_of_a_record_need_a_shell(columns: dict[str, object]) -> None:
    with pytest.raises(errors.DataError, match="needs the tool shell"):
        await run(await collector(servers.FakeNetwork({"find": ""})), ["7"], task(**columns))


class LongDeclarations(fakes.FakeTokens):
    """A tool takes a hundred tokens."""

    def chat_ids(self, messages: object, *, tools: object = ()) -> tuple[int, ...]:
        return (1,) * (100 * len(tools)) + (3,)


async def test_declarations_that_take_too_much_of_a_prompt_are_refused_with_their_length() -> None:
    listings = await sessions.listings_of(
        [ToolServer.model_validate(SEARCH)],
        servers.FakeNetwork({"find": "", "open": ""}).connect,
        wait_s=1.0,
        clock=clocks.FakeClock(),
    )
    offer = sessions.Offer.of(listings, has_shell=False, tokens=LongDeclarations())
    config = {"mcp": [SEARCH], "declarationTokens": 150}
    with pytest.raises(errors.ManifestError, match=r"declarationTokens is 150.* 2 tools .* take 200 tokens"):
        tool_use.ToolUseCollector(
            tool_use.ToolUseConfig.model_validate(config),
            tokens=LongDeclarations(),
            template="chat",
            max_model_len=4096,
            offer=offer,
        )
