"""Answers come while they are sampled: over a real loopback server to the clients of OpenAI and Anthropic, whose model
is a fake that waits between its tokens for the client to have read.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import anthropic
import hypothesis
import openai
import pytest
from hypothesis import strategies as st

from rljob_api import errors, types
from rljob_testing import episodes
from rljob_testing import rollout as fakes
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import turns
from rljob_workers.rollout.gateway import conversation, episode_calls, server, sessions, streaming, tools
from rljob_workers.rollout.gateway.dialects import fields

HI = [{"role": "user", "content": "hi"}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class TellingModel:
    """Tells the ids of `text` one by one, each once `go` lets it, and fails after them if `fault` says so."""

    def __init__(self, text: str, fault: errors.RLJobError | None = None) -> None:
        self.text, self.fault = text, fault
        self.go: asyncio.Queue[None] = asyncio.Queue()
        self.is_told = False

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        ids = (*map(ord, self.text), episodes.EOS)
        self.is_told = request.on_tokens is not None
        for end in range(1, len(ids)):
            await self.go.get()
            if request.on_tokens is not None:
                request.on_tokens(ids[:end])
        if self.fault is not None:
            raise self.fault
        return generation.GenerationResult(
            output_ids=ids, logprobs=(-0.5,) * len(ids), versions=(1,) * len(ids), stop_reason="stop"
        )

    def let(self, num_tokens: int) -> None:
        for _ in range(num_tokens):
            self.go.put_nowait(None)


class Scene:
    """One open session, and both clients of it."""

    def __init__(self, calls: episode_calls.EpisodeCalls, address: server.Address) -> None:
        self.calls = calls
        gpt_http, claude_http = (made.DefaultAsyncHttpxClient(trust_env=False) for made in (openai, anthropic))
        self.gpt = openai.AsyncOpenAI(
            base_url=address.base_url, api_key=address.api_key, http_client=gpt_http, max_retries=0
        )
        self.claude = anthropic.AsyncAnthropic(
            base_url=address.base_url.removesuffix("/v1"), api_key=address.api_key, http_client=claude_http,
            max_retries=0,
        )  # fmt: skip

    async def texts(self, api: str) -> AsyncIterator[str]:
        """Yield the pieces of a streamed answer as the client reads them."""
        if api == "chat/completions":
            async for chunk in await self.gpt.chat.completions.create(model="policy", messages=HI, stream=True):  # type: ignore[arg-type]  # as users write it
                yield chunk.choices[0].delta.content or ""
        elif api == "completions":
            async for made in await self.gpt.completions.create(model="policy", prompt="hi", stream=True):
                yield made.choices[0].text
        elif api == "responses":
            async for event in await self.gpt.responses.create(model="policy", input="hi", stream=True):
                yield event.delta if event.type == "response.output_text.delta" else ""
        else:
            async with self.claude.messages.stream(model="policy", max_tokens=64, messages=HI) as stream:  # type: ignore[arg-type]  # as users write it
                async for text in stream.text_stream:
                    yield text


@contextlib.asynccontextmanager
async def scene_of(
    model: generation.Generator, *, stop: tuple[str, ...] = (), tokens: fakes.FakeTokens | None = None
) -> AsyncIterator[Scene]:
    tokens, sampling = tokens or fakes.FakeTokens(), types.Sampling(max_tokens=256, stop=stop)
    calls = episode_calls.EpisodeCalls(
        asker=turns.Asker(tokens=tokens, template="raw"),
        tool_reader=episode_calls.tool_reader(episode_calls.ProxyConfig(), tokens),
        client=turns.EpisodeClient(inner=model, seed=1, max_model_len=1024),
        gconfig=sampling,
    )
    proxy = server.Proxy()
    async with proxy.open(sessions.Attempt(task="", sampling=sampling, answer=calls.answer)) as address:
        scene = Scene(calls, address)
        async with scene.gpt, scene.claude:
            yield scene
    await proxy.close()


apis = pytest.mark.parametrize("api", ["chat/completions", "completions", "responses", "messages"])


@pytest.mark.covers("workflows 7")
@apis
async def test_a_client_reads_each_piece_before_the_next_token_is_sampled(api: str) -> None:
    model = TellingModel("so it is")
    async with scene_of(model) as scene:
        model.let(1)
        read = ""
        async for piece in scene.texts(api):
            read += piece
            # Only what was read lets the model go on: a stream that waits for the whole answer never ends.
            model.let(len(piece))
        assert read == model.text
        (call,) = scene.calls.history.finished()
    assert call.result is not None
    assert call.result.output_ids == (*map(ord, model.text), episodes.EOS)


@apis
async def test_an_engine_that_fails_in_the_middle_ends_the_stream_with_the_clients_error(api: str) -> None:
    model = TellingModel("so", errors.EngineError("the engine process is dead"))
    model.let(2)
    async with scene_of(model) as scene:
        with pytest.raises((openai.APIError, anthropic.APIError), match="the engine process is dead"):
            [piece async for piece in scene.texts(api)]
        assert scene.calls.failure is model.fault


async def test_an_engine_that_fails_before_the_first_text_is_refused_by_status() -> None:
    async with scene_of(TellingModel("", errors.EngineError("the engine process is dead"))) as scene:
        with pytest.raises(openai.InternalServerError, match="the engine process is dead") as refused:
            [piece async for piece in scene.texts("chat/completions")]
        assert refused.value.status_code == 503


def call_of(**arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': 'add', 'arguments': arguments})}</tool_call>"


# What each client reads, in its own words.
Heard = list[tuple[str, object]]
FIRST, SECOND = call_of(a=1), call_of(a=2)


async def heard_by_openai(scene: Scene, let: Callable[[Heard], None]) -> Heard:
    """Read a stream of chat completions, and let the model go on after each event."""
    heard: Heard = []
    asked: dict[str, object] = {"model": "policy", "messages": HI, "tools": [ADD]}
    async with scene.gpt.chat.completions.stream(**asked) as stream:  # type: ignore[arg-type]  # as users write it
        async for event in stream:
            if event.type == "content.delta" and event.delta:
                heard.append(("text", event.delta))
            elif event.type == "tool_calls.function.arguments.delta" and event.arguments:
                heard.append((event.name, json.loads(event.arguments)))
            let(heard)
        (choice,) = (await stream.get_final_completion()).choices
    assert choice.finish_reason == "tool_calls"
    made = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or ()]
    assert made == [each for each in heard if each[0] != "text"]
    return heard


async def heard_by_openai_of_responses(scene: Scene, let: Callable[[Heard], None]) -> Heard:
    """Read a stream of responses."""
    heard: Heard = []
    tool: dict[str, object] = {"type": "function", **ADD["function"]}  # type: ignore[dict-item]  # an object
    async with scene.gpt.responses.stream(model="policy", input="hi", tools=[tool]) as stream:  # type: ignore[list-item]  # as users write it
        async for event in stream:
            if event.type == "response.output_text.delta":
                heard.append(("text", event.delta))
            elif event.type == "response.function_call_arguments.done":
                # In the API's reference, and not among the fields of the SDK's type.
                heard.append((event.model_dump()["name"], json.loads(event.arguments)))
            let(heard)
        final = await stream.get_final_response()
    calls = [(item.name, json.loads(item.arguments)) for item in final.output if item.type == "function_call"]
    assert calls == [each for each in heard if each[0] != "text"]
    return heard


async def heard_by_anthropic(scene: Scene, let: Callable[[Heard], None]) -> Heard:
    """Read a stream of messages."""
    heard: Heard = []
    tool: dict[str, object] = {"name": "add", "input_schema": {"type": "object"}}
    asked: dict[str, object] = {"model": "policy", "max_tokens": 256, "messages": HI, "tools": [tool]}
    async with scene.claude.messages.stream(**asked) as stream:  # type: ignore[arg-type]  # as users write it
        async for event in stream:
            if event.type == "text":
                heard.append(("text", event.text))
            elif event.type == "content_block_stop" and event.content_block.type == "tool_use":
                heard.append((event.content_block.name, event.content_block.input))
            let(heard)
        final = await stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert [block.input for block in final.content if block.type == "tool_use"] == [
        arguments for kind, arguments in heard if kind != "text"
    ]
    return heard


clients = pytest.mark.parametrize("heard_by", [heard_by_openai, heard_by_openai_of_responses, heard_by_anthropic])


@pytest.mark.covers("workflows 7")
@clients
async def test_a_client_reads_text_and_each_call_of_a_tool_before_the_next_one_is_sampled(
    heard_by: Callable[[Scene, Callable[[Heard], None]], Awaitable[Heard]],
) -> None:
    model = TellingModel(f"so it is: {FIRST}{SECOND}")
    # The model stops within the text, and after each call, until what is there was read.
    model.let(len("so it "))
    pauses = [("so it", len(f"is: {FIRST}")), (("add", {"a": 1}), len(SECOND))]

    def let(heard: Heard) -> None:
        said = "".join(str(text) for kind, text in heard if kind == "text")
        if pauses and pauses[0][0] in (said, *heard):
            model.let(pauses.pop(0)[1])

    async with scene_of(model) as scene:
        heard = await heard_by(scene, let)
        (call,) = scene.calls.history.finished()
    assert "".join(str(text) for kind, text in heard if kind == "text").rstrip() == "so it is:"
    assert [each for each in heard if each[0] != "text"] == [("add", {"a": 1}), ("add", {"a": 2})]
    assert call.result is not None
    assert call.result.output_ids == (*map(ord, model.text), episodes.EOS)


@clients
async def test_what_cannot_be_read_after_a_call_that_was_read_leaves_that_call_as_the_answer(
    heard_by: Callable[[Scene, Callable[[Heard], None]], Awaitable[Heard]],
) -> None:
    model = TellingModel(f'{FIRST}<tool_call>{{"name": "add"</tool_call>')
    model.let(len(model.text))
    async with scene_of(model) as scene:
        assert await heard_by(scene, lambda _: None) == [("add", {"a": 1})]
        (call,) = scene.calls.history.finished()
    assert call.output is not None
    assert (call.output.content, [json.loads(made.arguments) for made in call.output.tool_calls]) == ("", [{"a": 1}])
    assert call.result is not None
    assert call.result.output_ids == (*map(ord, model.text), episodes.EOS)


async def test_a_notation_without_marks_is_told_once_the_answer_is_whole() -> None:
    class Unmarked(fakes.FakeTokens):
        def tool_notation(self, name: str, *, field: str) -> tools.Notation | None:
            return tools.Notation(parser=fakes.read_marked)

    model = TellingModel(FIRST)
    model.let(len(model.text))
    async with scene_of(model, tokens=Unmarked()) as scene:
        assert await heard_by_openai(scene, lambda _: None) == [("add", {"a": 1})]
    assert not model.is_told


async def test_a_client_that_leaves_in_the_middle_leaves_an_answer_that_is_whole() -> None:
    model = TellingModel("so it is")
    async with scene_of(model) as scene:
        model.let(1)
        async with await scene.gpt.completions.create(model="policy", prompt="hi", stream=True) as stream:
            await anext(aiter(stream))
        model.let(len(model.text))
        while not scene.calls.history.finished():
            await asyncio.sleep(0)
        assert scene.calls.history.in_flight() == 0


def sent_of(pieces: Sequence[int], ids: Sequence[int], *, decode, hold_back: int = 0) -> list[str]:
    sent: list[str] = []
    growing = streaming.GrowingText(decode=decode, hold_back=hold_back, send=sent.append)
    for end in pieces:
        growing.read(ids[:end])
    return sent


def utf8(ids: Sequence[int]) -> str:
    return bytes(ids).decode(errors="replace")


@hypothesis.given(st.binary(max_size=24) | st.text(max_size=8).map(str.encode), st.integers(0, 3), st.data())
def test_what_is_sent_is_how_the_text_begins_whatever_bytes_the_tokens_are(
    whole: bytes, hold_back: int, data: st.DataObject
) -> None:
    pieces = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    sent = "".join(sent_of(pieces, whole, decode=utf8, hold_back=hold_back))
    text = utf8(whole)
    assert text.startswith(sent)
    assert len(sent) <= max(0, len(text) - hold_back)


def test_a_character_of_several_tokens_is_sent_once_it_is_whole() -> None:
    whole = "aé€b".encode()
    assert sent_of(range(1, len(whole) + 1), whole, decode=utf8) == ["a", "é", "€", "b"]


def test_what_may_be_the_beginning_of_a_stop_string_waits() -> None:
    sent = sent_of(range(1, 7), [*map(ord, "ab END")], decode=fakes.FakeTokens().decode, hold_back=2)
    assert sent == ["a", "b", " ", "E"]


async def test_a_stop_string_is_not_in_a_stream() -> None:
    class Stopped(TellingModel):
        async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
            assert request.on_tokens is not None
            ids = tuple(map(ord, "so END"))
            for end in range(1, len(ids)):
                request.on_tokens(ids[:end])
            return generation.GenerationResult(
                output_ids=ids, logprobs=(-0.5,) * 6, versions=(1,) * 6, stop_reason="stop", matched_stop="END"
            )

    async with scene_of(Stopped(""), stop=("END",)) as scene:
        assert "".join([piece async for piece in scene.texts("completions")]) == "so "


class Told(conversation.Follower):
    """Text and calls as they are told."""

    def __init__(self) -> None:
        self.text, self.calls = "", list[conversation.ToolCall]()

    def begun(self, opening: conversation.Opening) -> None:
        raise AssertionError(f"{opening.id} is begun by who asks")

    def grew(self, text: str) -> None:
        assert not self.calls, "no text comes after a call"
        self.text += text

    def called(self, call: conversation.ToolCall) -> None:
        self.calls.append(call)


PARTS = st.sampled_from(
    [
        FIRST,
        SECOND,
        "so ",
        " ",
        "<tool_",
        "call>",
        "<tool_call>",
        "</tool_call>",
        '{"name": "add"',
        "<",
        "\n",
        "é",
        "\u2603",
    ]
)


def read_calls(text: str) -> tuple[str, tuple[conversation.ToolCall, ...]] | None:
    return tools.calls_in(text, fakes.read_marked, tools="[]", prefix="call-0")


@hypothesis.given(st.lists(PARTS, max_size=9), st.integers(0, 3), st.booleans(), st.data())
def test_what_was_told_of_calls_is_how_the_answer_begins_however_the_tokens_come(
    parts: list[str], hold_back: int, marks_are_special: bool, data: st.DataObject
) -> None:
    whole = "".join(parts).encode()
    ends = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))

    def plain(ids: Sequence[int]) -> str:
        return utf8(ids).replace("<tool_call>", "") if marks_are_special else utf8(ids)

    told = Told()
    growing = streaming.GrowingCalls(
        decode=plain, decode_exact=utf8, hold_back=hold_back, marks=tools.MARKS["hermes"], read_calls=read_calls,
        follower=told,
    )  # fmt: skip
    for end in ends:
        growing.read(whole[:end])
    read = read_calls(utf8(whole))
    output = fields.assistant(plain(whole)) if read is None else fields.assistant(read[0], *read[1])
    settled = growing.settled(output)
    assert settled.content.startswith(told.text)
    assert settled.tool_calls[: len(told.calls)] == tuple(told.calls)
    # It differs from what is not streamed where calls were told, and a later one cannot be read.
    assert settled == output or (told.calls and settled == fields.assistant(told.text, *told.calls))


def test_calls_beyond_the_bound_of_readings_come_with_the_whole_answer() -> None:
    num_readings = 0

    def counted(text: str) -> tuple[str, tuple[conversation.ToolCall, ...]] | None:
        nonlocal num_readings
        num_readings += 1
        return read_calls(text)

    told, text = Told(), FIRST * (streaming.MOST_READINGS + 3)
    growing = streaming.GrowingCalls(
        decode=utf8, decode_exact=utf8, hold_back=0, marks=tools.MARKS["hermes"], read_calls=counted, follower=told
    )
    for end in range(1, len(text) + 1):
        growing.read(text.encode()[:end])
    read = read_calls(text)
    assert read is not None
    assert (num_readings, len(told.calls)) == (streaming.MOST_READINGS, streaming.MOST_READINGS)
    assert growing.settled(fields.assistant("", *read[1])).tool_calls == read[1]
