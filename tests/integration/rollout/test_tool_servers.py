"""Episodes with tools of real MCP servers, by HTTP and as child processes, which are lost while they work."""

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

import aiohttp.web
import pytest

from rljob_api import errors, types
from rljob_api.manifest.rollout import ToolServer
from rljob_testing import episodes, shells
from rljob_testing import rollout as fakes
from rljob_testing.ports import free_ports
from rljob_workers.rollout import generation, wait_accounting
from rljob_workers.rollout.episodes import protocols, registry
from rljob_workers.rollout.tool_servers import connection, sessions
from rljob_workers.runtime import clock as clocks

PROGRAM = [sys.executable, "-m", "rljob_testing.tool_server"]
TESTS = str(pathlib.Path(__file__).parents[2])
ENVIRONMENT = {"PYTHONPATH": TESTS}
CHILD = {"name": "notes", "command": PROGRAM, "env": ENVIRONMENT}
PATIENT_S = 120.0
EOS = chr(episodes.EOS)
TASK = protocols.Task(
    record=types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "do"}), input_ids=(), prompt_text="do"
)


class Served:
    """A server by HTTP, on a port that it has again after each start."""

    def __init__(self, log: pathlib.Path) -> None:
        (self.port,) = free_ports(1)
        self.options = {"name": "notes", "url": f"http://127.0.0.1:{self.port}/mcp"}
        self._log = log.open("wb")

    def start(self) -> None:
        command = [*PROGRAM, str(self.port)]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env={**os.environ, **ENVIRONMENT})

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENT_S)

    def close(self) -> None:
        self.kill()
        self._log.close()


@pytest.fixture
def served(tmp_path: pathlib.Path) -> Iterator[Served]:
    server = Served(tmp_path / "log")
    server.start()
    yield server
    server.close()


def call(tool: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


class Script:
    """A generator: two notes that name the task, then an answer. `before` is awaited before each request."""

    def __init__(self, before: Callable[[str], Awaitable[None]] | None = None) -> None:
        self.before = before

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        text = "".join(map(chr, request.input_ids))
        if self.before is not None:
            await self.before(text)
        name = text.partition("u:")[2].partition(";")[0]
        turn = text.count(";t:")
        return shells.line(call("note", text=f"{name}-{turn}") if turn < 2 else "done")


async def collector(options: Mapping[str, object], **config: object) -> protocols.RolloutCollector:
    server = ToolServer.model_validate(options)
    listings = await sessions.listings_of([server], connection.opened, wait_s=PATIENT_S, clock=clocks.SystemClock())
    return registry.make_collector(
        workflow="tool_use",
        config={"mcp": [options], "commandSeconds": 60, **config},
        tokens=fakes.FakeTokens(),
        template="chat",
        max_model_len=4096,
        listings=listings,
    )


async def run_one(made: protocols.RolloutCollector, *answers: str) -> str:
    """Return the text of an episode in which the model gives these answers."""
    episode = await made.arun_episode(
        llm_client=episodes.FakeModel(*(tuple(map(ord, answer + EOS)) for answer in (*answers, "done"))),
        gconfig=types.Sampling(max_tokens=200),
        task=TASK,
        grader=episodes.FakeGrader(1.0),
        seed=7,
    )
    assert episode is not None
    return "".join(map(chr, episode.rows[0].tokens))


async def run_many(made: protocols.RolloutCollector, script: Script, count: int) -> list[types.Trajectory]:
    clock = clocks.SystemClock()
    slots = wait_accounting.SlotWaits(num_slots=count, clock=clock)
    groups = shells.runner_of(made, script, clock)
    leases = [
        fakes.make_lease(
            f"lease-{number}",
            prompt=types.PromptRecord(prompt_id=f"p{number}", source="s", columns={"prompt": f"task{number}"}),
            group_size=1,
            sampling=types.Sampling(max_tokens=200),
        )
        for number in range(count)
    ]
    ended = await asyncio.gather(*(groups.run(lease, slots.open_slot()) for lease in leases))
    assert [scored.group.failures for scored in ended] == [[]] * count
    return [row for scored in ended for row in scored.group.trajectories]


@pytest.mark.parametrize("kind", ["http", "child"])
async def test_a_whole_episode_is_one_row_in_which_what_tools_gave_is_not_trained(kind: str, served: Served) -> None:
    made = await collector(served.options if kind == "http" else CHILD)
    (row,) = await run_many(made, Script(), 1)
    text = "".join(map(chr, row.tokens))
    pid = text.partition("task0-0 ")[2].partition(";")[0]
    assert int(pid) == served.process.pid or kind == "child"
    first, second = (call("note", text=f"task0-{turn}") for turn in range(2))
    seen = [f";t:task0-0 {pid};a:", f";t:task0-0,task0-1 {pid};a:"]
    assert text == f"T7;u:task0;a:{first}{EOS}{seen[0]}{second}{EOS}{seen[1]}done{EOS}"
    sampled = "".join(chr(token) for token, trained in zip(row.tokens, row.loss_mask, strict=True) if trained)
    assert sampled == f"{first}{EOS}{second}{EOS}done{EOS}"
    assert (row.reward, row.num_turns) == (1.0, 3)


@pytest.mark.parametrize(("kind", "count"), [("http", 50), ("child", 8)])
async def test_episodes_at_once_keep_their_states_apart(kind: str, count: int, served: Served) -> None:
    made = await collector(served.options if kind == "http" else CHILD)
    texts = ["".join(map(chr, row.tokens)) for row in await run_many(made, Script(), count)]
    for number, text in enumerate(texts):
        assert f";t:task{number}-0,task{number}-1 " in text
        assert text.count("task") == 1 + 2 + 3, "another episode's notes are in none"


async def test_a_server_that_is_killed_costs_another_attempt_and_no_reward(served: Served) -> None:
    kills: list[str] = []

    async def before(text: str) -> None:
        # Its episode has a session now, which is gone with the server.
        if ";t:" in text and not kills:
            kills.append(text)
            served.kill()
            served.start()

    made = await collector(served.options)
    rows = await run_many(made, Script(before), 2)
    assert [row.reward for row in rows] == [1.0, 1.0]
    assert [row.num_turns for row in rows] == [3, 3]
    assert len(kills) == 1


@pytest.mark.parametrize("kind", ["http", "child"])
async def test_a_server_that_ends_within_a_call_is_no_answer(kind: str, served: Served) -> None:
    made = await collector(served.options if kind == "http" else CHILD)
    with pytest.raises(errors.UnavailableError, match="MCP server notes .* was lost or cannot be reached"):
        await run_one(made, call("leave", code=3))


async def test_errors_and_images_and_arguments_that_do_not_fit_are_said_to_the_model() -> None:
    text = await run_one(await collector(CHILD), call("fail", why="no page 9"), call("show"), call("sleep"))
    seen = [part.partition(";a:")[0] for part in text.split(";t:")[1:]]
    assert seen == [
        "Error executing tool fail: no page 9",
        "\\x1b[1mbold<\\eos>\n[image of image/png: not shown]",
        "[refused: sleep: 'seconds' is a required property]",
    ]


@pytest.mark.parametrize("kind", ["http", "child"])
async def test_a_call_that_takes_too_long_is_said_to_the_model_and_the_session_goes_on(
    kind: str, served: Served
) -> None:
    made = await collector(served.options if kind == "http" else CHILD, commandSeconds=2)
    assert ";t:[ended: it took too long];a:" in await run_one(made, call("sleep", seconds=600))
    session = await connection.opened(ToolServer.model_validate(served.options if kind == "http" else CHILD))
    assert (await session.call("sleep", {"seconds": 600}, timeout_s=0.2)).stopped == "wall"
    assert (await session.call("note", {"text": "a"}, timeout_s=PATIENT_S)).stdout.startswith(b"a ")
    await session.close()


async def test_a_child_has_the_variables_that_are_named_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLJOB_GATEWAY_KEY", "hush")
    monkeypatch.setenv("SEARCH_KEY", "handed on")
    made = await collector({**CHILD, "env": {**ENVIRONMENT, "DEPTH": "3"}, "variables": ["SEARCH_KEY"]})
    names = ("RLJOB_GATEWAY_KEY", "PYTEST_CURRENT_TEST", "SEARCH_KEY", "DEPTH")
    text = await run_one(made, *(call("variables", name=name) for name in names))
    assert [part.partition(";a:")[0] for part in text.split(";t:")[1:]] == ["(unset)", "(unset)", "handed on", "3"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"command": ["no-such-program"]}, "'no-such-program', which is no program here"),
        ({"command": ["true"], "variables": ["NOT_THERE"]}, "NOT_THERE, which the rollout's environment has not"),
        ({"url": "http://127.0.0.1:9/mcp", "tokenVariable": "NOT_THERE"}, "NOT_THERE, which the rollout's environment"),
    ],
)
async def test_a_server_that_is_named_wrongly_is_refused_at_the_start(
    options: Mapping[str, object], message: str
) -> None:
    with pytest.raises(errors.ManifestError, match=message):
        await collector({"name": "notes", **options})


async def test_a_program_that_ends_at_once_is_named_with_its_last_words() -> None:
    server = ToolServer.model_validate({"name": "notes", "command": ["sh", "-c", "echo no module >&2; exit 1"]})
    with pytest.raises(errors.UnavailableError, match="its process ended; it wrote: no module"):
        await connection.opened(server)


async def test_a_cancelled_episode_leaves_no_process() -> None:
    pids: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    class Sleeper:
        async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
            results = "".join(map(chr, request.input_ids)).split(";t:")[1:]
            if len(results) < 2:
                return shells.line(call("note", text="a") if not results else call("spawn"))
            child, grandchild = (part.partition(";a:")[0].split()[-1] for part in results)
            pids.set_result((int(child), int(grandchild)))
            return shells.line(call("sleep", seconds=600))

    made = await collector(CHILD)
    running = asyncio.ensure_future(
        made.arun_episode(
            llm_client=Sleeper(),
            gconfig=types.Sampling(max_tokens=200),
            task=TASK,
            grader=episodes.FakeGrader(),
            seed=7,
        )
    )
    processes = await pids
    assert all(map(is_alive, processes))
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await until_gone(*processes)


async def test_a_rollout_that_is_killed_leaves_no_process() -> None:
    program = (
        "import asyncio, json, sys\n"
        "from rljob_api.manifest.rollout import ToolServer\n"
        "from rljob_workers.rollout.tool_servers import connection\n"
        "async def main():\n"
        "    session = await connection.opened(ToolServer.model_validate(json.loads(sys.argv[1])))\n"
        "    reply = await session.call('note', {'text': 'a'}, timeout_s=60)\n"
        "    print(reply.stdout.split()[1].decode(), flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    rollout = subprocess.Popen([sys.executable, "-c", program, json.dumps(CHILD)], stdout=subprocess.PIPE, text=True)
    assert rollout.stdout is not None
    child = int(await asyncio.to_thread(rollout.stdout.readline))
    rollout.send_signal(signal.SIGKILL)
    rollout.wait(PATIENT_S)
    rollout.stdout.close()
    await until_gone(child)


async def until_gone(*pids: int) -> None:
    async with asyncio.timeout(PATIENT_S):
        while any(map(is_alive, pids)):
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@contextlib.asynccontextmanager
async def answering(method: str, status: int, keys: list[str]) -> AsyncIterator[ToolServer]:
    """A server that answers calls of `method` with an HTTP status; `keys` are what it was sent."""

    async def handle(request: aiohttp.web.Request) -> aiohttp.web.Response:
        keys.append(request.headers.get("Authorization", ""))
        if request.method != "POST":
            return aiohttp.web.Response(status=405)
        message = await request.json()
        if message["method"] == method:
            return aiohttp.web.json_response({"error": "no"}, status=status)
        if "id" not in message:
            return aiohttp.web.Response(status=202)
        server_info = {"name": "scripted", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server_info}
        return aiohttp.web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    application = aiohttp.web.Application()
    application.router.add_route("*", "/mcp", handle)
    runner = aiohttp.web.AppRunner(application)
    await runner.setup()
    (port,) = free_ports(1)
    await aiohttp.web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield ToolServer.model_validate(
            {"name": "scripted", "url": f"http://127.0.0.1:{port}/mcp", "tokenVariable": "SCRIPTED_TOKEN"}
        )
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [429, 500, 503, 404])
async def test_a_server_that_answers_a_call_with_a_failure_is_lost(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPTED_TOKEN", "hush")
    keys: list[str] = []
    async with answering("tools/call", status, keys) as server:
        session = await connection.opened(server)
        with pytest.raises(errors.UnavailableError, match=f"it answers {status}"):
            await session.call("note", {}, timeout_s=PATIENT_S)
        await session.close()
    assert set(keys) == {"Bearer hush"}


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (401, errors.ManifestError, "answers 401: it wants another token"),
        (404, errors.ManifestError, "answers 404: the URL needs the server's path"),
        (503, errors.UnavailableError, "it answers 503"),
    ],
)
async def test_a_server_that_refuses_at_the_start_says_what_would_be_right(
    status: int, error: type[errors.RLJobError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPTED_TOKEN", "hush")
    async with answering("initialize", status, []) as server:
        with pytest.raises(error, match=message) as raised:
            await connection.opened(server)
    assert "hush" not in str(raised.value)
