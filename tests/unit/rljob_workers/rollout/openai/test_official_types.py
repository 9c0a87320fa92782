"""Answers and events as the models of OpenAI's own client read them: agents reach into these by attribute."""

import json
from collections.abc import Iterator

import httpx
import openai
import pydantic
import pytest
from openai.types import chat, responses

from rljob_api import types
from rljob_workers.rollout import generation
from rljob_workers.rollout.openai import calls, interactions, tools

SAMPLING = types.Sampling()
CALL, NEXT = (tools.ToolCall(id=id_, name="add", arguments='{"a": 1}') for id_ in ("call-1", "call-2"))
ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": ADD}]}
RESPONSES = {"input": "hi", "tools": [{"type": "function", **ADD}]}
ANSWERS = {
    "text": interactions.Message(role="assistant", content="ho"),
    "call": interactions.Message(role="assistant", content="", tool_calls=(CALL,)),
    "text and call": interactions.Message(role="assistant", content="ho", tool_calls=(CALL, NEXT)),
}
EVENT: pydantic.TypeAdapter[responses.ResponseStreamEvent] = pydantic.TypeAdapter(responses.ResponseStreamEvent)


def answered(output: interactions.Message, *, stop_reason: str) -> interactions.Interaction:
    result = generation.GenerationResult(
        output_ids=(65, 2), logprobs=(-0.5, -0.5), versions=(1, 1), stop_reason=stop_reason
    )
    return interactions.Interaction(
        id="id-1", messages=(), tools="", prompt_ids=(5, 6, 7), created=0, parent=None, output=output, result=result
    )


def data_of(events: Iterator[str]) -> list[dict[str, object]]:
    lines = [line for event in events for line in event.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("stop_reason", ["stop", "length"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_chat_completions_are_those_of_the_client(answer: str, stop_reason: str) -> None:
    dialect, done = calls.DIALECTS["chat/completions"], answered(ANSWERS[answer], stop_reason=stop_reason)
    call = dialect.read(CHAT, SAMPLING)
    whole = chat.ChatCompletion.model_validate(dialect.answer(call, done, created=7), strict=True)
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (3, 2, 5)
    assert len(whole.choices[0].message.tool_calls or ()) == len(ANSWERS[answer].tool_calls)
    chunks = [
        chat.ChatCompletionChunk.model_validate(chunk) for chunk in data_of(dialect.events(call, done, created=7))
    ]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWERS[answer].content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


@pytest.mark.parametrize("stop_reason", ["stop", "length"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_responses_are_those_of_the_client(answer: str, stop_reason: str) -> None:
    dialect, done = calls.DIALECTS["responses"], answered(ANSWERS[answer], stop_reason=stop_reason)
    call = dialect.read(RESPONSES, SAMPLING)
    whole = responses.Response.model_validate(dialect.answer(call, done, created=7))
    assert whole.output_text == ANSWERS[answer].content
    assert whole.usage is not None
    assert whole.usage.input_tokens_details.cached_tokens == whole.usage.output_tokens_details.reasoning_tokens == 0
    events = [EVENT.validate_python(event) for event in data_of(dialect.events(call, done, created=7))]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1]
    assert isinstance(final, responses.ResponseCompletedEvent | responses.ResponseIncompleteEvent)
    assert final.response == whole


def client_that_gets(body: bytes) -> openai.AsyncOpenAI:
    """OpenAI's own client, whose every call is answered with this stream."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=body, headers={"content-type": "text/event-stream"}, request=request)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return openai.AsyncOpenAI(api_key="k", base_url="http://127.0.0.1:1/v1", http_client=http)


@pytest.mark.parametrize("stop_reason", ["stop", "length"])
@pytest.mark.parametrize("answer", ANSWERS)
async def test_the_client_puts_a_streamed_response_together(answer: str, stop_reason: str) -> None:
    dialect, done = calls.DIALECTS["responses"], answered(ANSWERS[answer], stop_reason=stop_reason)
    call = dialect.read(RESPONSES, SAMPLING)
    client = client_that_gets("".join(dialect.events(call, done, created=7)).encode())
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


@pytest.mark.parametrize("answer", ANSWERS)
async def test_the_client_puts_a_streamed_chat_completion_together(answer: str) -> None:
    dialect, done = calls.DIALECTS["chat/completions"], answered(ANSWERS[answer], stop_reason="stop")
    call = dialect.read(CHAT, SAMPLING)
    client = client_that_gets("".join(dialect.events(call, done, created=7)).encode())
    async with client.chat.completions.stream(messages=[{"role": "user", "content": "hi"}], model="policy") as stream:
        whole = await stream.get_final_completion()
    assert (whole.choices[0].message.content or "") == ANSWERS[answer].content
    assert [made.function.arguments for made in whole.choices[0].message.tool_calls or ()] == [
        tool.arguments for tool in ANSWERS[answer].tool_calls
    ]
