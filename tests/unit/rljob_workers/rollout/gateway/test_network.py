"""Agents outside the process over real connections: take, call, close; keys, bounds and refusals."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from rljob_api import errors, process_config, types
from rljob_testing import episodes, makers, ports
from rljob_testing import rollout as fakes
from rljob_testing.clock import FakeClock
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import protocols
from rljob_workers.rollout.gateway import episode_calls, external, network, sessions

KEY = "a key of the gateway's own"
A = (65, episodes.EOS)
RECORD = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "hi", "answer": "B"})
TASK = protocols.Task(record=RECORD, input_ids=(10, 11), prompt_text="hi")
HI = {"messages": [{"role": "user", "content": "x"}]}


class Scene:
    """A gateway and a client."""

    def __init__(self, open_sessions: sessions.Sessions, http: httpx.AsyncClient, model: generation.Generator) -> None:
        self.http, self.model = http, model
        self.collector = external.ExternalCollector(
            open_sessions=open_sessions, config=episode_calls.ProxyConfig(), tokens=fakes.FakeTokens(),
            template="raw", max_model_len=1024,
        )  # fmt: skip

    def episode(self, grader: episodes.FakeGrader | None = None) -> "asyncio.Task[protocols.Episode | None]":
        run = self.collector.arun_episode(
            llm_client=self.model, gconfig=types.Sampling(max_tokens=8), task=TASK,
            grader=grader or episodes.FakeGrader(), seed=1,
        )  # fmt: skip
        return asyncio.get_running_loop().create_task(run)

    async def post(self, path: str, body: object, key: str) -> httpx.Response:
        return await self.http.post(path, json=body, headers={"Authorization": f"Bearer {key}"})

    async def take(self, wait_s: float = 5.0) -> "Taken":
        answer = await self.post("/v1/sessions", {"waitSeconds": wait_s}, KEY)
        assert answer.status_code == 200, answer.text
        return Taken(self, answer.json())


class Taken:
    """A session as an agent has it."""

    def __init__(self, scene: Scene, made: dict[str, str]) -> None:
        self.scene, self.made = scene, made

    async def post(self, api: str, body: object, key: str | None = None) -> httpx.Response:
        return await self.scene.post(f"{self.made['base_url']}/{api}", body, key or self.made["api_key"])


@contextlib.asynccontextmanager
async def scene_of(*answers: tuple[int, ...], most: int = 8) -> AsyncIterator[Scene]:
    limits = sessions.Limits(most=most, idle_s=60.0, session_s=600.0)
    open_sessions = sessions.Sessions(limits, FakeClock())
    config = process_config.GatewayConfig(bind_host="127.0.0.1", host="127.0.0.1", port=0)
    async with (
        network.Gateway(config, open_sessions, KEY) as gateway,
        httpx.AsyncClient(trust_env=False, timeout=60.0, base_url=gateway.address) as http,
    ):
        yield Scene(open_sessions, http, episodes.FakeModel(*answers))


@pytest.mark.parametrize("rounds", range(6))
async def test_a_connection_that_the_loop_has_just_accepted_is_closed_with_the_gateway(rounds: int) -> None:
    async with scene_of() as scene:
        peer = await ports.connected(scene.http.base_url.port or 0, rounds=rounds)
    await ports.until_closed(peer)


@pytest.mark.covers("workflows 7")
async def test_an_agent_takes_a_task_makes_its_calls_and_closes_with_a_reward() -> None:
    async with scene_of(A, A) as scene:
        run = scene.episode()
        taken = await scene.take()
        assert taken.made["task"]["answer"] == "B"  # type: ignore[index]  # an object
        first = await taken.post("chat/completions", HI)
        assert first.json()["choices"][0]["message"]["content"] == "A"
        assert (await taken.post("close", {"reward": 2})).status_code == 200
        episode = await run
    assert episode is not None
    assert [(row.reward, row.num_sampled) for row in episode.rows] == [(2.0, 2)]


async def test_rewards_may_be_given_by_call() -> None:
    async with scene_of(A, A) as scene:
        run = scene.episode()
        taken = await scene.take()
        ids = [(await taken.post("chat/completions", HI)).json()["id"] for _ in range(2)]
        await taken.post("chat/completions", {"messages": []})
        await taken.post("close", {"rewards": {ids[1]: 0.5}})
        episode = await run
    assert episode is not None
    assert episode.total_reward == 0.5


@pytest.mark.covers("workflows 7")
async def test_a_session_that_is_closed_without_a_reward_is_graded_by_its_last_answer() -> None:
    grader = episodes.FakeGrader(0.75)
    async with scene_of((67, episodes.EOS), A) as scene:
        run = scene.episode(grader)
        taken = await scene.take()
        first = (await taken.post("chat/completions", HI)).json()["choices"][0]["message"]
        more = [*HI["messages"], first, {"role": "user", "content": "y"}]
        await taken.post("chat/completions", {"messages": more})
        assert (await taken.post("close", {})).status_code == 200
        episode = await run
    assert grader.seen == [("hi", "A", False)]
    assert episode is not None
    assert [row.raw_reward for row in episode.rows] == [0.0, 0.75]
    # Discounted back, the call before it earns what it led to.
    assert [row.reward for row in episode.rows] == [0.75, 0.75]
    assert [row.verdict.grader for row in episode.rows] == ["agent", makers.make_verdict(0.75).grader]


async def test_a_reward_of_the_agent_s_own_counts_and_no_grader_is_asked() -> None:
    grader = episodes.FakeGrader(1.0)
    async with scene_of(A) as scene:
        run = scene.episode(grader)
        taken = await scene.take()
        await taken.post("chat/completions", HI)
        await taken.post("close", {"reward": 0.25})
        episode = await run
    assert grader.seen == []
    assert episode is not None
    assert episode.total_reward == 0.25


async def test_a_grader_that_gives_no_verdict_fails_the_attempt_and_is_no_reward() -> None:
    async with scene_of(A) as scene:
        run = scene.episode(episodes.FakeGrader(None))
        taken = await scene.take()
        await taken.post("chat/completions", HI)
        await taken.post("close", {})
        with pytest.raises(errors.SandboxError, match="no verdict"):
            await run


async def test_a_session_that_asked_nothing_has_nothing_to_grade() -> None:
    grader = episodes.FakeGrader(1.0)
    async with scene_of() as scene:
        run = scene.episode(grader)
        await (await scene.take()).post("close", {})
        assert await run is None
    assert grader.seen == []


@pytest.mark.covers("workflows 7")
async def test_keys_open_their_own_doors_alone() -> None:
    async with scene_of(A, A) as scene:
        runs = [scene.episode(), scene.episode()]
        one, other = await scene.take(), await scene.take()
        for key in ("", "wrong", KEY, other.made["api_key"]):
            for path in ("chat/completions", "close", "abandon"):
                assert (await one.post(path, HI, key or "no")).status_code == 401
        for key in ("wrong", one.made["api_key"]):
            refused = await scene.post("/v1/sessions", {}, key)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert one.made["api_key"] != other.made["api_key"]
        for taken in (one, other):
            await taken.post("chat/completions", HI)
            await taken.post("close", {"reward": 0})
        await asyncio.gather(*runs)
        assert (await one.post("chat/completions", HI)).status_code == 401


async def test_an_abandoned_attempt_fails_so_that_it_is_made_again() -> None:
    async with scene_of(A) as scene:
        run = scene.episode()
        taken = await scene.take()
        assert (await taken.post("abandon", {})).status_code == 200
        with pytest.raises(errors.EpisodeError, match="gave the attempt up"):
            await run


async def test_without_an_attempt_there_is_no_content() -> None:
    async with scene_of() as scene:
        assert (await scene.post("/v1/sessions", {"waitSeconds": 0}, KEY)).status_code == 204


async def test_one_session_more_than_may_be_open_is_asked_to_come_again() -> None:
    async with scene_of(most=1) as scene:
        runs = [scene.episode(), scene.episode()]
        await scene.take()
        refused = await scene.post("/v1/sessions", {}, KEY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_sessions")
        for run in runs:
            run.cancel()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sessions", []),
        ("/v1/sessions", {"waitSeconds": -1}),
        ("/v1/sessions", {"waitSeconds": 61}),
        ("/v1/sessions", {"waitSeconds": True}),
        ("close", {"reward": "1"}),
        ("close", {"reward": True}),
        ("close", {"reward": 1, "rewards": {}}),
        ("close", {"rewards": {"call-0": None}}),
    ],
)
async def test_what_is_no_such_body_is_refused_with_what_would_be_one(path: str, body: object) -> None:
    async with scene_of(A) as scene:
        run = scene.episode()
        taken = await scene.take()
        refused = await (scene.post(path, body, KEY) if path[0] == "/" else taken.post(path, body))
        assert refused.status_code == 400
        assert "the body must be" in refused.json()["error"]["message"]
        run.cancel()


async def test_a_body_above_the_bound_is_refused() -> None:
    async with scene_of(A) as scene:
        run = scene.episode()
        taken = await scene.take()
        large = {"messages": [{"role": "user", "content": "x" * (9 << 20)}]}
        refused = await taken.post("chat/completions", large)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
        run.cancel()


async def test_a_record_that_is_no_json_is_the_records_fault() -> None:
    async with scene_of() as scene:
        record = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": b"hi"})
        with pytest.raises(errors.DataError, match="record p cannot be sent to an agent"):
            await scene.collector.arun_episode(
                llm_client=scene.model, gconfig=types.Sampling(), grader=episodes.FakeGrader(), seed=1,
                task=protocols.Task(record=record, input_ids=(1,), prompt_text="hi"),
            )  # fmt: skip


@pytest.mark.parametrize("environment", [{}, {"RLJOB_GATEWAY_KEY": "short"}])
def test_a_key_that_is_missing_or_short_is_refused_with_the_variable(environment: dict[str, str]) -> None:
    with pytest.raises(errors.ManifestError, match="RLJOB_GATEWAY_KEY"):
        network.key_of(environment)
    assert network.key_of({"RLJOB_GATEWAY_KEY": KEY}) == KEY
