"""Answers come while they are sampled: over a real loopback server to the clients of OpenAI and Anthropic, whose model
is a fake that waits between its tokens for the client to have read.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

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
from rljob_workers.rollout.gateway import episode_calls, server, sessions, streaming

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
async def scene_of(model: generation.Generator, *, stop: tuple[str, ...] = ()) -> AsyncIterator[Scene]:
    tokens, sampling = fakes.FakeTokens(), types.Sampling(max_tokens=64, stop=stop)
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


async def test_an_answer_that_may_call_tools_comes_once_it_is_whole() -> None:
    model = TellingModel('<tool_call>{"name": "add", "arguments": {}}</tool_call>')
    model.let(len(model.text))
    async with scene_of(model) as scene:
        arguments: dict[str, object] = {"model": "policy", "messages": HI, "tools": [ADD]}
        async with scene.gpt.chat.completions.stream(**arguments) as stream:  # type: ignore[arg-type]  # as users write it
            whole = await stream.get_final_completion()
    assert not model.is_told
    (called,) = whole.choices[0].message.tool_calls or ()
    assert called.function.name == "add"


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
