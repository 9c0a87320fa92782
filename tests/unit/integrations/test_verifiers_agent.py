"""The program that plays environments of verifiers: the real gateway, and environments and objects that stand in for
the library's, which is in no environment of ours.
"""

import asyncio
import contextlib
import json
import logging
import math
import os
import types as simple
from collections.abc import AsyncIterator, Callable, Sequence

import httpx
import pytest
import yaml
from integrations.verifiers import agent

from rljob_api import errors, process_config, types
from rljob_api.validation import load, rules
from rljob_testing import episodes, examples
from rljob_testing import rollout as fakes
from rljob_testing.clock import FakeClock
from rljob_workers.rollout.episodes import protocols
from rljob_workers.rollout.gateway import episode_calls, external, network, sessions

KEY = "a key of the gateway's own"
A = (65, episodes.EOS)
FOLDER = examples.ROOT / "integrations/verifiers"


class Played:
    """An environment that asks once and gives what `rewarded` makes of the answer. Counts servings."""

    def __init__(self, rewarded: Callable[[str], float]) -> None:
        self.rewarded, self.num_servings = rewarded, 0
        self.task_keys: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.num_servings += 1
        yield

    async def play(self, task_key: str, *, base_url: str, key_variable: str) -> float:
        self.task_keys.append(task_key)
        await self.open.wait()
        body = {"model": "policy", "messages": [{"role": "user", "content": "x"}]}
        async with httpx.AsyncClient(trust_env=False) as http:
            headers = {"Authorization": f"Bearer {os.environ[key_variable]}"}
            answer = await http.post(f"{base_url}/chat/completions", json=body, headers=headers)
        answer.raise_for_status()
        return self.rewarded(answer.json()["choices"][0]["message"]["content"])


def failing(reason: Exception) -> Callable[[str], float]:
    def rewarded(_text: str) -> float:
        raise reason

    return rewarded


class Scene:
    """A gateway, the program, and episodes that it plays."""

    def __init__(self, open_sessions: sessions.Sessions, gateway: agent.Gateway) -> None:
        self.gateway = gateway
        self._collector = external.ExternalCollector(
            open_sessions=open_sessions, config=episode_calls.ProxyConfig(), tokens=fakes.FakeTokens(),
            template="raw", max_model_len=1024,
        )  # fmt: skip

    async def episode(self, task_key: str) -> protocols.Episode | None:
        columns = {"prompt": "hi", agent.TASK_KEY: task_key}
        record = types.PromptRecord(prompt_id=task_key, source="s", columns=columns)
        return await self._collector.arun_episode(
            llm_client=episodes.FakeModel(A), gconfig=types.Sampling(max_tokens=8),
            task=protocols.Task(record=record, input_ids=(10, 11), prompt_text="hi"),
            grader=episodes.FakeGrader(), seed=1,
        )  # fmt: skip


@contextlib.asynccontextmanager
async def scene_of(
    environment: Played, *, num_sessions: int = 1, servings: Sequence[int] = (1,)
) -> AsyncIterator[Scene]:
    """`servings` are as long as a test has sessions: the program is then over, and waits for no more of them."""
    open_sessions = sessions.Sessions(sessions.Limits(most=64, idle_s=60.0, session_s=600.0), FakeClock())
    config = process_config.GatewayConfig(bind_host="127.0.0.1", host="127.0.0.1", port=0)
    async with (
        network.Gateway(config, open_sessions, KEY) as served,
        httpx.AsyncClient(trust_env=False, timeout=60.0) as http,
    ):
        gateway = agent.Gateway(served.address, KEY, http)
        running = asyncio.ensure_future(agent.run(environment, gateway, num_sessions=num_sessions, servings=servings))
        yield Scene(open_sessions, gateway)
        async with asyncio.timeout(30):
            await running


async def test_the_reward_of_an_environment_is_that_of_what_it_asked() -> None:
    environment = Played(lambda text: 0.25 if text == "A" else 0.0)
    async with scene_of(environment) as scene:
        episode = await scene.episode("k1")
    assert episode is not None
    assert [(row.reward, row.num_sampled, row.verdict.grader) for row in episode.rows] == [(0.25, 2, "agent")]
    assert environment.task_keys == ["k1"]


@pytest.mark.parametrize(
    ("reason", "said"),
    [(agent.NoRewardError("TaskError: scoring"), "TaskError: scoring"), (KeyError("row"), "KeyError: 'row'")],
)
async def test_what_an_environment_raises_gives_the_attempt_up_and_is_no_reward(
    reason: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene_of(Played(failing(reason))) as scene:
        with pytest.raises(errors.EpisodeError, match="gave the attempt up"):
            await scene.episode("k1")
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"gave an attempt up: {said}"
    ]


async def test_as_many_sessions_are_played_at_once_as_were_asked_for() -> None:
    environment = Played(len)
    environment.open.clear()
    async with scene_of(environment, num_sessions=3, servings=[4]) as scene:
        attempts = [asyncio.ensure_future(scene.episode(f"k{number}")) for number in range(4)]
        async with asyncio.timeout(30):
            while len(environment.task_keys) < 3:
                await asyncio.sleep(0)
        assert sum("RLJOB_SESSION_" in name for name in os.environ) == 3
        environment.open.set()
        rewards = [episode.total_reward for episode in await asyncio.gather(*attempts) if episode]
    assert rewards == [1.0] * 4
    # Keys leave with their sessions.
    assert not [name for name in os.environ if "RLJOB_SESSION_" in name]


async def test_an_environment_is_served_again_after_a_number_of_sessions() -> None:
    environment = Played(len)
    async with scene_of(environment, servings=[2, 1]) as scene:
        for number in range(3):
            await scene.episode(f"k{number}")
    assert environment.num_servings == 2


async def test_a_gateway_that_is_not_there_yet_or_is_full_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="verifiers-agent")
    monkeypatch.setattr(agent, "RETRY_S", 0.0)
    session = {"base_url": "http://here/s1/v1", "api_key": "k", "task": {agent.TASK_KEY: "t"}}
    answers = iter([None, httpx.Response(429), httpx.Response(204), httpx.Response(200, json=session)])

    def answer(request: httpx.Request) -> httpx.Response:
        response = next(answers)
        if response is None:
            raise httpx.ConnectError("refused", request=request)
        return response

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        taken = await agent.next_session(agent.Gateway("http://here", KEY, http))
    assert taken == agent.Session(base_url="http://here/s1/v1", api_key="k", task_key="t")
    # A rollout that starts is no news.
    (said,) = [record.getMessage() for record in caplog.records if record.name == "verifiers-agent"]
    assert "429" in said


async def test_a_session_that_is_over_before_its_reward_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="verifiers-agent")
    session = {"base_url": "http://here/s1/v1", "api_key": "k", "task": {agent.TASK_KEY: "t"}}
    ends: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/sessions":
            return httpx.Response(200, json=session)
        ends.append(request.url.path)
        return httpx.Response(401 if len(ends) == 1 else 200, json={})

    class Fixed(Played):
        async def play(self, task_key: str, *, base_url: str, key_variable: str) -> float:
            return 1.0

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        await agent.run(Fixed(len), agent.Gateway("http://here", KEY, http), num_sessions=1, servings=[2])
    assert ends == ["/s1/v1/close"] * 2
    assert [record.getMessage()[:35] for record in caplog.records if record.name == "verifiers-agent"] == [
        "the end of a session was not taken:"
    ]


async def test_a_gateway_that_refuses_the_key_ends_the_program() -> None:
    async with scene_of(Played(len), servings=[]) as scene:
        wrong = agent.Gateway(scene.gateway._address, "another key, as long as the first", scene.gateway._http)
        with pytest.raises(ExceptionGroup) as raised:
            await agent.run(Played(len), wrong, num_sessions=1, servings=[1])
    assert [type(error) for error in raised.value.exceptions] == [agent.UnusableError]


def reward(value: float) -> simple.SimpleNamespace:
    return simple.SimpleNamespace(value=value)


def trace(rewards: dict[str, simple.SimpleNamespace | None], url: str = "here") -> simple.SimpleNamespace:
    """Return what of a trace is read; its reward is the library's sum, in which a missing one counts 0."""
    config = simple.SimpleNamespace(client=simple.SimpleNamespace(base_url=url))
    total = sum(each.value for each in rewards.values() if each is not None)
    return simple.SimpleNamespace(
        agent=simple.SimpleNamespace(config=config), rewards=rewards, reward=total, errors=[], ok=True
    )


def episode_of(*traces: simple.SimpleNamespace, ok: bool = True) -> simple.SimpleNamespace:
    return simple.SimpleNamespace(ok=ok, traces=list(traces), errors=[])


def test_an_episode_s_reward_is_that_of_the_run_that_asked_the_session() -> None:
    judge = trace({"score": reward(9.0)}, url="elsewhere")
    assert agent.reward_of(episode_of(judge, trace({"a": reward(1.0), "b": reward(-0.5)})), "here") == 0.5


def failed_trace() -> simple.SimpleNamespace:
    made = trace({"a": reward(1.0)})
    made.errors = [simple.SimpleNamespace(type="HarnessError", message="exited 1")]
    return made


@pytest.mark.parametrize(
    ("episode", "said"),
    [
        (episode_of(failed_trace(), ok=False), "HarnessError: exited 1"),
        (episode_of(trace({"a": reward(1.0), "slow": None})), "no reward of slow"),
        (episode_of(trace({})), "the environment gave no reward"),
        (episode_of(trace({"a": reward(1.0)}), trace({"a": reward(0.0)})), "2 runs of the episode asked the policy"),
        (episode_of(trace({"a": reward(1.0)}, url="elsewhere")), "0 runs"),
        (episode_of(trace({"a": reward(math.nan)})), "the reward is nan"),
    ],
    ids=["an error", "a missing reward", "no reward", "two runs", "no run", "not a number"],
)
def test_an_episode_that_failed_in_any_part_has_no_reward(episode: simple.SimpleNamespace, said: str) -> None:
    with pytest.raises(agent.NoRewardError, match=said):
        agent.reward_of(episode, "here")


def seat(client: object = None, max_retries: int = 0) -> simple.SimpleNamespace:
    return simple.SimpleNamespace(client=client, retries=simple.SimpleNamespace(max_retries=max_retries, rules=[]))


@pytest.mark.parametrize(
    ("seats", "said"),
    [
        ({"solver": seat(), "user": seat()}, "2 seats ask the policy"),
        ({"judge": seat(client=object())}, "0 seats ask the policy"),
        ({"agent": seat(max_retries=2)}, "agent.retries"),
    ],
)
def test_seats_that_would_mix_into_one_reward_are_refused(seats: dict[str, object], said: str) -> None:
    with pytest.raises(agent.UnusableError, match=said):
        agent.check_seats(seats)


def test_a_seat_with_a_model_of_its_own_is_none_of_the_policy_s() -> None:
    agent.check_seats({"solver": seat(), "user": seat(client=object())})


class Data:
    """A task's data, as pydantic shows it."""

    def __init__(self, idx: int, **columns: object) -> None:
        self.idx, self._columns = idx, {"idx": idx, **columns}

    def model_dump(self, *, mode: str, exclude_defaults: bool = False) -> dict[str, object]:
        """The role of a message is the default of its class."""
        assert mode == "json"
        if not exclude_defaults:
            return {"image": None, "timeout": {"agent": None}, **self._columns}
        prompt = self._columns.get("prompt")
        bare = [{"content": message["content"]} for message in prompt] if isinstance(prompt, list) else prompt
        return {**self._columns, "prompt": bare} if bare else dict(self._columns)


def task(idx: int, **columns: object) -> simple.SimpleNamespace:
    return simple.SimpleNamespace(key=f"key-{idx}", data=Data(idx, **columns))


CONVERSATION = [{"role": "user", "content": "play"}]
DUMPED = [{**message, "tool_calls": None} for message in CONVERSATION]


def test_a_task_becomes_a_record_with_its_columns() -> None:
    tasks = [
        task(0, prompt="2 + 2", answer="4", level=3),
        task(1, id="row-7", prompt="Reverse it.", system_prompt="Be short.", answer={"a": 1}),
        task(2, prompt=DUMPED, system_prompt="Be short.", answer=" "),
        task(3, name="Wordle", answer=True),
    ]
    system = {"role": "system", "content": "Be short."}
    assert list(agent.records(tasks)) == [
        {"idx": 0, "prompt": "2 + 2", "answer": "4", "level": 3, "id": "0", "task_key": "key-0"},
        {
            "idx": 1, "id": "1", "source_id": "row-7", "system_prompt": "Be short.", "answer": "-", "task_key": "key-1",
            "prompt": [system, {"role": "user", "content": "Reverse it."}],
        },
        {
            "idx": 2, "id": "2", "system_prompt": "Be short.", "answer": "-", "task_key": "key-2",
            "prompt": [system, *CONVERSATION],
        },
        {"idx": 3, "id": "3", "name": "Wordle", "answer": "-", "prompt": "Wordle", "task_key": "key-3"},
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["addition-cpu", "reverse-text-cpu"])
def test_an_example_s_manifest_is_accepted_and_its_command_names_what_is_there(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    spec = load.load_manifest(text).spec
    assert rules.problems(spec) == []
    assert spec.agents is not None
    assert (FOLDER / spec.agents.command[1]).is_file()
    (options,) = [word.split("=", 1)[1] for word in spec.agents.command if word.startswith("--args=")]
    # The command in its head exports the same tasks.
    assert f"--args '{options}'" in text
    assert json.loads(options)["agent"]["runtime"] == {"type": "subprocess"}
    assert yaml.safe_load(text)["metadata"]["name"] == name
