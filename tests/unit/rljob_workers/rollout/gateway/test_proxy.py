"""Agents of the OpenAI API over a real loopback server; the model is a fake."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence

import httpx
import pytest

from rljob_api import errors, types
from rljob_testing import episodes
from rljob_testing import rollout as fakes
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import protocols
from rljob_workers.rollout.gateway import collector, episode_calls

EOS = episodes.EOS
RECORD = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "hi", "answer": "B"})
TASK = protocols.Task(record=RECORD, input_ids=(10, 11), prompt_text="hi")
A, B = (65, EOS), (66, EOS)


class Agent:
    """Asks with what `script` says and returns its value."""

    def __init__(self, script: Callable[["Agent"], Awaitable[float]]) -> None:
        self.script = script
        self.answers: list[httpx.Response] = []

    async def run(
        self, *, data: Mapping[str, object], base_url: str, http_client: httpx.AsyncClient, api_key: str
    ) -> float | Mapping[str, float]:
        self.data, self.base_url, self.http, self.key = data, base_url, http_client, api_key
        return await self.script(self)

    async def chat(self, *texts: str, key: str | None = None, **more: object) -> httpx.Response:
        messages = [{"role": "assistant" if index % 2 else "user", "content": text} for index, text in enumerate(texts)]
        return await self.post("chat/completions", {"messages": messages, **more}, key=key)

    async def post(self, api: str, body: object, key: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        response = await self.http.post(f"{self.base_url}/{api}", json=body, headers=headers)
        self.answers.append(response)
        return response


async def run(
    agent: Agent,
    model: generation.Generator,
    *,
    max_model_len: int = 1024,
    max_tokens: int = 8,
    shows_tools: bool = True,
    tokens: fakes.FakeTokens | None = None,
    **proxy: object,
) -> protocols.Episode | None:
    made = collector.ProxyCollector(
        make_agent=lambda: agent, config=episode_calls.ProxyConfig.model_validate(proxy),
        tokens=tokens or fakes.FakeTokens(shows_tools=shows_tools), template="raw", max_model_len=max_model_len,
    )  # fmt: skip
    try:
        return await made.arun_episode(
            llm_client=model,
            gconfig=types.Sampling(max_tokens=max_tokens),
            task=TASK,
            grader=episodes.FakeGrader(),
            seed=7,
        )
    finally:
        await made.close()


HI: dict[str, object] = {"messages": [{"role": "user", "content": "x"}]}
TOOL: dict[str, object] = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALLS_ADD = (*map(ord, 'so <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'), EOS)


def called(id_: str, name: str, arguments: str) -> dict[str, object]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def text_of(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


@pytest.mark.covers("workflows 7")
async def test_calls_of_an_agent_become_one_row_with_exact_token_prefix() -> None:
    async def script(agent: Agent) -> float:
        first = text_of(await agent.chat("hi"))
        second = text_of(await agent.chat("hi", first, "more"))
        return 1.0 if second == agent.data["answer"] else 0.0

    model = episodes.FakeModel(A, B, first_version=3)
    episode = await run(Agent(script), model, export="concat", turnDiscount=0.5)
    assert episode is not None
    (row,) = episode.rows
    first, second = (request.input_ids for request in model.requests)
    assert second[: len(first) + 2] == first + A
    assert tuple(row.tokens) == second + B
    assert [version for version in row.versions if version != -1] == [3, 3, 4, 4]
    assert (row.reward, row.raw_reward, row.num_turns, episode.total_reward) == (1.0, 1.0, 2, 1.0)


async def test_individual_export_discounts_earlier_calls() -> None:
    async def script(agent: Agent) -> float:
        await agent.chat("one")
        await agent.chat("two")
        return 2.0

    episode = await run(Agent(script), episodes.FakeModel(A, B), turnDiscount=0.5)
    assert episode is not None
    assert [(row.reward, row.raw_reward) for row in episode.rows] == [(1.0, 0.0), (2.0, 2.0)]


@pytest.mark.covers("workflows 7")
async def test_a_chat_completion_has_the_fields_that_clients_read() -> None:
    async def script(agent: Agent) -> float:
        await agent.chat("hi", max_tokens=1, model="mine")
        return 0.0

    agent, model = Agent(script), episodes.FakeModel((65, 66))
    await run(agent, model)
    body = agent.answers[0].json()
    assert (body["object"], body["model"], body["id"]) == ("chat.completion", "mine", "call-0")
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
    assert model.requests[0].sampling.max_tokens == 1


@pytest.mark.covers("workflows 7")
async def test_a_streamed_answer_is_events_that_end_with_done() -> None:
    async def script(agent: Agent) -> float:
        await agent.chat("hi", stream=True)
        return 0.0

    agent = Agent(script)
    await run(agent, episodes.FakeModel(A))
    *events, end = agent.answers[0].text.strip().split("\n\n")
    parsed = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert end == "data: [DONE]"
    assert [(choice["delta"].get("content"), choice["finish_reason"]) for choice in parsed] == [
        ("", None), ("A", None), (None, "stop"),
    ]  # fmt: skip


@pytest.mark.covers("workflows 7")
@pytest.mark.parametrize("stream", [False, True])
async def test_the_responses_api_is_served_too(stream: bool) -> None:
    async def script(agent: Agent) -> float:
        await agent.post("responses", {"input": "hi", "instructions": "be good", "stream": stream})
        return 0.0

    agent, model = Agent(script), episodes.FakeModel(A)
    await run(agent, model)
    assert "".join(map(chr, model.requests[0].input_ids)) == "s:be good;u:hi;a:"
    text = agent.answers[0].text
    if stream:
        assert [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event")] == [
            "response.created", "response.output_item.added", "response.content_part.added",
            "response.output_text.delta", "response.output_text.done", "response.content_part.done",
            "response.output_item.done", "response.completed",
        ]  # fmt: skip
        assert json.loads(text.strip().rsplit("data: ", 1)[1])["response"]["output"][0]["content"][0]["text"] == "A"
    else:
        body = json.loads(text)
        assert (body["object"], body["status"], body["output"][0]["content"][0]["text"]) == (
            "response",
            "completed",
            "A",
        )


@pytest.mark.covers("workflows 7")
async def test_a_wrong_key_and_the_address_of_an_ended_episode_open_nothing() -> None:
    async def script(agent: Agent) -> float:
        await agent.chat("hi", key="wrong")
        await agent.chat("hi")
        return 0.0

    agent = Agent(script)
    made = collector.ProxyCollector(
        make_agent=lambda: agent, config=episode_calls.ProxyConfig(), tokens=fakes.FakeTokens(), template="raw",
        max_model_len=64,
    )  # fmt: skip
    await made.arun_episode(
        llm_client=episodes.FakeModel(A), gconfig=types.Sampling(), task=TASK, grader=episodes.FakeGrader(), seed=1
    )
    async with httpx.AsyncClient(trust_env=False) as http:
        agent.http = http
        await agent.chat("hi")
    await made.close()
    assert [answer.status_code for answer in agent.answers] == [401, 200, 401]
    assert agent.answers[0].json() == agent.answers[2].json()


@pytest.mark.covers("workflows 7")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "the body must be a JSON object"),
        ({"messages": []}, "messages must be a list of messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0] must be an object whose role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0] must name the call that it answers"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content must be a text"),
        ({**HI, "functions": []}, "not supported: functions"),
        ({**HI, "tools": [{"type": "web_search"}]}, "tools[0] must be an object of type function"),
        ({**HI, "tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0]: name is 'a b'"),
        ({**HI, "tools": [{"type": "function", "function": {"name": "a", "strict": True}}]}, "strict is true"),
        ({**HI, "tools": [TOOL] * 129}, "tools must be a list of at most 128"),
        ({**HI, "tools": [TOOL], "tool_choice": "required"}, "tool_choice is 'required', but"),
        ({**HI, "tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls is False, which is not supported"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "a"}}]}]},
            "messages[0].tool_calls[0] must have an id, a name and arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [called("c", "a", "[1]")]}]},
            "messages[0].tool_calls[0].arguments must be the JSON text of an object",
        ),
        ({"messages": [{"role": "user", "content": "x"}], "n": 2}, "n is 2, which is not supported"),
        ({"messages": [{"role": "user", "content": "x"}], "temperature": 0.2}, "temperature is 0.2, but the job"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "max_tokens is 0, but must be"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(body: object, said: str) -> None:
    async def script(agent: Agent) -> float:
        await agent.post("chat/completions", body)
        return 0.0

    agent = Agent(script)
    assert await run(agent, episodes.FakeModel()) is None
    (answer,) = agent.answers
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


@pytest.mark.covers("workflows 7")
async def test_a_prompt_without_room_for_an_answer_is_the_clients_error() -> None:
    async def script(agent: Agent) -> float:
        await agent.chat("hi")
        return 0.0

    agent = Agent(script)
    assert await run(agent, episodes.FakeModel(A), max_model_len=4) is None
    assert agent.answers[0].json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.covers("workflows 7")
async def test_an_engine_that_failed_fails_the_attempt_even_if_the_agent_got_over_it() -> None:
    class Failing:
        async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
            raise errors.EngineError("lost")

    async def script(agent: Agent) -> float:
        await agent.chat("hi")
        return 1.0

    agent = Agent(script)
    with pytest.raises(errors.EngineError, match="lost"):
        await run(agent, Failing())
    assert agent.answers[0].status_code == 503


async def test_a_call_that_nobody_waits_for_is_cancelled_with_the_episode() -> None:
    cancelled = asyncio.Event()

    class Slow:
        async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            raise AssertionError("nothing sets the event")

    async def script(agent: Agent) -> float:
        with pytest.raises(httpx.ReadTimeout):
            await agent.http.post(
                f"{agent.base_url}/chat/completions", json={"messages": [{"role": "user", "content": "x"}]},
                headers={"Authorization": f"Bearer {agent.key}"}, timeout=0.05,
            )  # fmt: skip
        return 0.0

    assert await run(Agent(script), Slow()) is None
    await asyncio.wait_for(cancelled.wait(), 60)


def prompt_of(model: episodes.FakeModel, index: int) -> str:
    return "".join(map(chr, model.requests[index].input_ids))


@pytest.mark.covers("workflows 7")
async def test_an_agent_with_tools_gets_calls_and_goes_on_with_their_results_as_one_row() -> None:
    async def script(agent: Agent) -> float:
        first = (await agent.post("chat/completions", {**HI, "tools": [TOOL]})).json()["choices"][0]
        result = {"role": "tool", "tool_call_id": first["message"]["tool_calls"][0]["id"], "content": "3"}
        messages = [{"role": "user", "content": "x"}, first["message"], result]
        await agent.post("chat/completions", {"messages": messages, "tools": [TOOL]})
        return 1.0

    agent, model = Agent(script), episodes.FakeModel(CALLS_ADD, A)
    episode = await run(agent, model, max_tokens=128, export="concat")
    choice = agent.answers[0].json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant", "content": "so", "tool_calls": [called("d522137a2", "add", '{"a": 1}')],
    }  # fmt: skip
    assert prompt_of(model, 0) == "T1;u:x;a:"
    assert model.requests[1].input_ids[: len(CALLS_ADD) + 9] == (*map(ord, "T1;u:x;a:"), *CALLS_ADD)
    assert prompt_of(model, 1).endswith(";t:3;a:")
    assert episode is not None
    (row,) = episode.rows
    assert (row.num_turns, row.num_sampled) == (2, len(CALLS_ADD) + len(A))


async def test_without_tools_the_text_of_a_call_is_an_answer() -> None:
    async def script(agent: Agent) -> float:
        await agent.post("chat/completions", HI)
        await agent.post("chat/completions", {**HI, "tools": [TOOL], "tool_choice": "none"})
        return 0.0

    agent, model = Agent(script), episodes.FakeModel(CALLS_ADD, CALLS_ADD)
    await run(agent, model, max_tokens=128)
    for answer in agent.answers:
        choice = answer.json()["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"][:14]) == ("stop", "so <tool_call>")
    assert [prompt_of(model, 0), prompt_of(model, 1)] == ["u:x;a:", "u:x;a:"]


async def test_a_streamed_call_of_a_tool_is_numbered() -> None:
    async def script(agent: Agent) -> float:
        await agent.post("chat/completions", {**HI, "tools": [TOOL], "stream": True})
        return 0.0

    agent = Agent(script)
    await run(agent, episodes.FakeModel(CALLS_ADD), max_tokens=128)
    *events, _ = agent.answers[0].text.strip().split("\n\n")
    *_, made, grown, last = (json.loads(event.removeprefix("data: "))["choices"][0] for event in events)
    assert made["delta"]["tool_calls"] == [{"index": 0, **called("d522137a2", "add", "")}]
    assert grown["delta"]["tool_calls"] == [{"index": 0, "function": {"arguments": '{"a": 1}'}}]
    assert last["finish_reason"] == "tool_calls"


@pytest.mark.covers("workflows 7")
@pytest.mark.parametrize("stream", [False, True])
async def test_tools_of_the_responses_api_are_items_that_may_be_handed_back(stream: bool) -> None:
    flat = {"type": "function", "name": "add", "parameters": {"type": "object"}}
    hi = {"role": "user", "content": "x"}

    async def script(agent: Agent) -> float:
        first = await agent.post("responses", {"input": [hi], "tools": [flat], "stream": stream})
        text = first.text.strip().rsplit("data: ", 1)[1] if stream else first.text
        body = json.loads(text)["response"] if stream else json.loads(text)
        *_, call = items = body["output"]
        assert [item["type"] for item in items] == ["message", "function_call"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
        await agent.post("responses", {"input": [hi, *items, result], "tools": [flat]})
        return 1.0

    agent, model = Agent(script), episodes.FakeModel(CALLS_ADD, A)
    episode = await run(agent, model, max_tokens=128, export="concat")
    assert [answer.status_code for answer in agent.answers] == [200, 200]
    assert ("event: response.output_item.done" in agent.answers[0].text) == stream
    assert episode is not None
    assert [row.num_turns for row in episode.rows] == [2]


async def test_tools_that_the_chat_template_would_not_show_are_refused() -> None:
    async def script(agent: Agent) -> float:
        await agent.post("chat/completions", {**HI, "tools": [TOOL]})
        return 0.0

    agent = Agent(script)
    assert await run(agent, episodes.FakeModel(A), shows_tools=False) is None
    assert agent.answers[0].status_code == 400
    assert "does not show them" in agent.answers[0].json()["error"]["message"]


async def test_a_call_with_other_tools_begins_a_conversation_of_its_own() -> None:
    async def script(agent: Agent) -> float:
        first = text_of(await agent.chat("hi"))
        await agent.chat("hi", first, "more", tools=[TOOL])
        return 1.0

    episode = await run(Agent(script), episodes.FakeModel(A, B), export="concat")
    assert episode is not None
    assert [row.num_turns for row in episode.rows] == [1, 1]


async def test_what_a_chat_template_raises_is_the_agents_answer_without_the_conversation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Strict(fakes.FakeTokens):
        def chat_ids(
            self, messages: Sequence[Mapping[str, object]], *, tools: Sequence[Mapping[str, object]] = ()
        ) -> tuple[int, ...]:
            raise TypeError(f"cannot render {messages}")

    async def script(agent: Agent) -> float:
        answer = await agent.chat("what a prompt said")
        assert answer.status_code == 500
        assert answer.json()["error"]["message"].startswith("the call raised TypeError at test_proxy.py:")
        assert "what a prompt said" not in answer.text
        return 0.0

    assert await run(Agent(script), episodes.FakeModel(A), tokens=Strict()) is None
    assert "a call of an agent raised TypeError at test_proxy.py:" in caplog.text
    assert "what a prompt said" not in caplog.text


async def test_tools_whose_calls_no_parser_would_read_are_refused_with_the_field() -> None:
    class Unknown(fakes.FakeTokens):
        def tool_notation(self, name: str, *, field: str) -> None:
            return None

    async def script(agent: Agent) -> float:
        answer = await agent.post("chat/completions", {**HI, "tools": [TOOL]})
        assert "name the parser in spec.workflow.config.proxy.toolParser" in answer.json()["error"]["message"]
        return 0.0

    agent = Agent(script)
    assert await run(agent, episodes.FakeModel(A), tokens=Unknown()) is None
    assert [answer.status_code for answer in agent.answers] == [400]


@pytest.mark.parametrize("key", ["x-api-key", "Authorization"])
async def test_messages_of_anthropic_and_plain_completions_are_served_too(key: str) -> None:
    async def script(agent: Agent) -> float:
        headers = {key: agent.key if key == "x-api-key" else f"Bearer {agent.key}"}
        for api, body in (("messages", {**HI, "max_tokens": 4}), ("completions", {"prompt": "hi"})):
            agent.answers.append(await agent.http.post(f"{agent.base_url}/{api}", json=body, headers=headers))
        return 0.0

    agent, model = Agent(script), episodes.FakeModel(A, B)
    await run(agent, model)
    message, completion = (answer.json() for answer in agent.answers)
    assert (message["content"], message["stop_reason"]) == ([{"type": "text", "text": "A"}], "end_turn")
    assert completion["choices"][0]["text"] == "B"
    assert [prompt_of(model, index) for index in range(2)] == ["u:x;a:", "^hi"]


@pytest.mark.parametrize(("api", "place"), [("messages", "type"), ("chat/completions", "code"), ("models", "code")])
async def test_refusals_have_the_form_of_the_api(api: str, place: str) -> None:
    async def script(agent: Agent) -> float:
        await agent.post(api, {})
        await agent.post(api, {}, key="wrong")
        agent.answers.append(await agent.http.post(f"{agent.base_url}/{api}", content=b"\xff", headers={
            "Authorization": f"Bearer {agent.key}"}))  # fmt: skip
        return 0.0

    agent = Agent(script)
    await run(agent, episodes.FakeModel())
    first = 404 if api == "models" else 400
    assert [answer.status_code for answer in agent.answers] == [first, 401, first]
    kinds = {
        "type": ("invalid_request_error", "authentication_error"),
        "code": ("invalid_request_error", "invalid_api_key"),
    }
    expected = ("not_found", "invalid_api_key") if api == "models" else kinds[place]
    assert tuple(answer.json()["error"][place] for answer in agent.answers[:2]) == expected


async def test_the_one_model_is_listed_for_the_key_of_the_session() -> None:
    async def script(agent: Agent) -> float:
        for key in (agent.key, "wrong"):
            headers = {"Authorization": f"Bearer {key}"}
            agent.answers.append(await agent.http.get(f"{agent.base_url}/models", headers=headers))
        return 0.0

    agent = Agent(script)
    await run(agent, episodes.FakeModel())
    listed, refused = agent.answers
    assert [model["id"] for model in listed.json()["data"]] == ["policy"]
    assert refused.status_code == 401
