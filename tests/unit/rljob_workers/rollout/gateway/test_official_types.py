"""Answers and events as the models of OpenAI's and Anthropic's own clients read them: agents reach into these by
attribute.
"""

import json
from collections.abc import Iterator

import anthropic
import httpx
import httpx2
import openai
import pydantic
import pytest
from anthropic import pagination as anthropic_pagination
from anthropic.types import message as anthropic_message
from openai import pagination as openai_pagination
from openai import types as openai_types
from openai.types import chat, responses

from rljob_api import types
from rljob_workers.rollout.gateway import conversation
from rljob_workers.rollout.gateway.dialects import fields, registry

SAMPLING = types.Sampling()
CALL, NEXT = (conversation.ToolCall(id=id_, name="add", arguments='{"a": 1}') for id_ in ("call-1", "call-2"))
SCHEMA = {"type": "object", "properties": {}}
ADD = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, object]] = {
    "chat/completions": {"messages": HI, "tools": [{"type": "function", "function": ADD}]},
    "completions": {"prompt": "hi"},
    "responses": {"input": "hi", "tools": [{"type": "function", **ADD}]},
    "messages": {
        "messages": HI, "max_tokens": 9, "tools": [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}],
    },
}  # fmt: skip
ANSWERS = {
    "text": conversation.Message(role="assistant", content="ho"),
    "call": conversation.Message(role="assistant", content="", tool_calls=(CALL,)),
    "text and call": conversation.Message(role="assistant", content="ho", tool_calls=(CALL, NEXT)),
}
EVENT: pydantic.TypeAdapter[responses.ResponseStreamEvent] = pydantic.TypeAdapter(responses.ResponseStreamEvent)

CACHE = {"type": "ephemeral"}
# What clients say of caches and queues.
LABELS: dict[str, dict[str, object]] = {
    "chat/completions": {"service_tier": "auto", "prompt_cache_retention": "24h", "prompt_cache_options": {}},
    "responses": {"service_tier": "flex", "prompt_cache_key": "k"},
    "messages": {"service_tier": "standard_only", "cache_control": CACHE},
}

any_answer = pytest.mark.parametrize("answer", ANSWERS)
cut_or_not = pytest.mark.parametrize("truncated", [False, True])


def answered(answer: str, *, truncated: bool = False) -> conversation.Answer:
    return conversation.Answer(
        id="id-1", output=ANSWERS[answer], truncated=truncated, num_prompt_tokens=3, num_output_tokens=2,
        created_at_s=7,
    )  # fmt: skip


def whole_of(api: str, answer: conversation.Answer) -> dict[str, object]:
    dialect = registry.DIALECTS[api]
    return dialect.answer(dialect.read(BODIES[api], SAMPLING), answer)


def events_of(api: str, answer: conversation.Answer, **more: object) -> list[str]:
    """The events of a stream, whose text comes a character at a time."""
    dialect = registry.DIALECTS[api]
    stream = dialect.stream(dialect.read({**BODIES[api], **more}, SAMPLING), answer)
    events = list(stream.begin())
    for letter in answer.output.content:
        events += stream.text(letter)
    for call in answer.output.tool_calls:
        events += stream.called(call)
    return [*events, *stream.end(answer)]


def data_of(events: Iterator[str] | list[str]) -> list[dict[str, object]]:
    lines = [line for event in events for line in event.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def openai_client(body: str, *, status: int = 200, kind: str = "text/event-stream") -> openai.AsyncOpenAI:
    """A client whose every call is answered with this body."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=body.encode(), headers={"content-type": kind}, request=request)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return openai.AsyncOpenAI(api_key="k", base_url="http://127.0.0.1:1/v1", http_client=http, max_retries=0)


def anthropic_client(body: str, *, status: int = 200, kind: str = "text/event-stream") -> anthropic.AsyncAnthropic:
    """The same of Anthropic, which brings an HTTP client of its own."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=body.encode(), headers={"content-type": kind}, request=request)

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    return anthropic.AsyncAnthropic(api_key="k", base_url="http://127.0.0.1:1", http_client=http, max_retries=0)


@cut_or_not
@any_answer
def test_chat_completions_are_those_of_the_client(answer: str, truncated: bool) -> None:
    done = answered(answer, truncated=truncated)
    whole = chat.ChatCompletion.model_validate(whole_of("chat/completions", done), strict=True)
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (3, 2, 5)
    assert len(whole.choices[0].message.tool_calls or ()) == len(ANSWERS[answer].tool_calls)
    chunks = [chat.ChatCompletionChunk.model_validate(chunk) for chunk in data_of(events_of("chat/completions", done))]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWERS[answer].content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


@pytest.mark.parametrize("api", ["chat/completions", "completions"])
def test_a_stream_counts_tokens_where_it_is_asked_to(api: str) -> None:
    def usages(**more: object) -> list[object]:
        return [chunk.get("usage") for chunk in data_of(events_of(api, answered("text"), stream=True, **more))]

    assert set(usages()) == {None}
    *_, last = usages(stream_options={"include_usage": True})
    assert last == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@cut_or_not
async def test_completions_are_those_of_the_client(truncated: bool) -> None:
    done = answered("text", truncated=truncated)
    whole = openai_types.Completion.model_validate(whole_of("completions", done), strict=True)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("ho", "length" if truncated else "stop")
    client = openai_client("".join(events_of("completions", done)))
    chunks = [chunk async for chunk in await client.completions.create(prompt="hi", model="policy", stream=True)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "ho"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


@cut_or_not
@any_answer
def test_responses_are_those_of_the_client(answer: str, truncated: bool) -> None:
    done = answered(answer, truncated=truncated)
    whole = responses.Response.model_validate(whole_of("responses", done))
    assert whole.output_text == ANSWERS[answer].content
    assert whole.usage is not None
    assert whole.usage.input_tokens_details.cached_tokens == whole.usage.output_tokens_details.reasoning_tokens == 0
    events = [EVENT.validate_python(event) for event in data_of(events_of("responses", done))]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1]
    assert isinstance(final, responses.ResponseCompletedEvent | responses.ResponseIncompleteEvent)
    assert final.response == whole


@cut_or_not
@any_answer
async def test_the_client_puts_a_streamed_response_together(answer: str, truncated: bool) -> None:
    client = openai_client("".join(events_of("responses", answered(answer, truncated=truncated))))
    kinds, last = [], None
    async with client.responses.stream(input="hi", model="policy") as stream:
        async for event in stream:
            kinds.append(event.type)
            last = event
    assert isinstance(last, responses.ResponseCompletedEvent | responses.ResponseIncompleteEvent)
    assert last.response.output_text == ANSWERS[answer].content
    assert (
        kinds.count("response.output_item.added")
        == kinds.count("response.output_item.done")
        == len(last.response.output)
    )


@any_answer
async def test_the_client_puts_a_streamed_chat_completion_together(answer: str) -> None:
    client = openai_client("".join(events_of("chat/completions", answered(answer))))
    async with client.chat.completions.stream(messages=[{"role": "user", "content": "hi"}], model="policy") as stream:
        whole = await stream.get_final_completion()
    assert (whole.choices[0].message.content or "") == ANSWERS[answer].content
    assert [made.function.arguments for made in whole.choices[0].message.tool_calls or ()] == [
        tool.arguments for tool in ANSWERS[answer].tool_calls
    ]


@cut_or_not
@any_answer
async def test_messages_are_those_of_anthropics_client_which_puts_a_stream_together(
    answer: str, truncated: bool
) -> None:
    done = answered(answer, truncated=truncated)
    whole = anthropic_message.Message.model_validate(whole_of("messages", done), strict=True)
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (3, 2)
    assert "".join(block.text for block in whole.content if block.type == "text") == ANSWERS[answer].content
    assert [(block.id, block.name, block.input) for block in whole.content if block.type == "tool_use"] == [
        (call.id, call.name, json.loads(call.arguments)) for call in ANSWERS[answer].tool_calls
    ]
    ending = "tool_use" if ANSWERS[answer].tool_calls else "end_turn"
    assert whole.stop_reason == ("max_tokens" if truncated else ending)
    client = anthropic_client("".join(events_of("messages", done)))
    async with client.messages.stream(
        messages=[{"role": "user", "content": "hi"}], model="policy", max_tokens=9
    ) as stream:
        streamed = await stream.get_final_message()
    assert [block.model_dump(exclude={"parsed_output"}) for block in streamed.content] == [
        block.model_dump() for block in whole.content
    ]
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, 2)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 429, 500, 503])
@pytest.mark.parametrize("api", registry.DIALECTS)
async def test_a_refusal_is_the_error_of_the_client(api: str, status: int) -> None:
    body = registry.DIALECTS[api].refusal(status, "a_code", "a sentence")
    if api == "messages":
        claude = anthropic_client(json.dumps(body), status=status, kind="application/json")
        with pytest.raises(anthropic.APIStatusError) as refused:
            await claude.messages.create(messages=[{"role": "user", "content": "x"}], model="m", max_tokens=1)
        assert refused.value.body == body
        assert refused.value.type is not None
    else:
        client = openai_client(json.dumps(body), status=status, kind="application/json")
        with pytest.raises(openai.APIStatusError) as failed:
            await client.post(f"/{api}", cast_to=object, body={})
        assert (failed.value.code, "a sentence" in failed.value.message) == ("a_code", True)


@pytest.mark.parametrize("api", LABELS)
def test_what_a_client_says_of_caches_and_queues_changes_no_call(api: str) -> None:
    dialect = registry.DIALECTS[api]
    assert dialect.read({**BODIES[api], **LABELS[api]}, SAMPLING) == dialect.read(BODIES[api], SAMPLING)


def test_the_list_of_models_is_what_either_client_reads() -> None:
    listed = fields.models()
    of_openai = openai_pagination.SyncPage[openai_types.Model].model_validate(listed)
    of_anthropic = anthropic_pagination.SyncPage[anthropic.types.ModelInfo].model_validate(listed)
    assert [model.id for model in of_openai.data] == [model.id for model in of_anthropic.data] == ["policy"]
