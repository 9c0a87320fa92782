"""Many calls of the gateway: by the official clients, to compare ids; by many open sessions, to time what it adds."""

import argparse
import asyncio
import dataclasses
import gc
import itertools
import json
import random
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import aiohttp
import anthropic
import httpx
import openai

from rljob_api import process_config, types
from rljob_testing import episodes, sampled
from rljob_testing import rollout as fakes
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import protocols
from rljob_workers.rollout.gateway import collector, episode_calls, external, network, sessions
from rljob_workers.runtime import clock

KEY = "the key of this load's gateway"
TASK = protocols.Task(
    record=types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "hi"}), input_ids=(10,), prompt_text="hi"
)
TOOL = {"name": "f", "description": "Does.", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>{"name": "f", "arguments": {"b":  [1]}}</tool_call>'
# Calls after text and after one another, and one that cannot be read after one that can.
TEXTS = ("yes", " no ", "", CALL, "so it is", f"I ask. {CALL}\n{CALL}", f"{CALL}<tool_call>f</tool_call>")
CALLS_PER_EPISODE = 20
DEFAULT_SAMPLING = types.Sampling()
# Every so often an agent rewrites what was answered.
REWRITES = 0.2


class SdkAgent:
    """Makes calls of all APIs by the clients of OpenAI and Anthropic, streamed or not; rewrites the past at times."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    async def run(
        self, *, data: Mapping[str, object], base_url: str, http_client: httpx.AsyncClient, api_key: str
    ) -> float:
        del data, http_client
        gpt_http, claude_http = (made.DefaultAsyncHttpxClient(trust_env=False) for made in (openai, anthropic))
        async with (
            openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=gpt_http, max_retries=0) as gpt,
            anthropic.AsyncAnthropic(
                base_url=base_url.removesuffix("/v1"), api_key=api_key, http_client=claude_http, max_retries=0
            ) as claude,
        ):
            talk: list[dict[str, object]] = []
            text, items = "", list[object]()
            for number in range(CALLS_PER_EPISODE):
                kind = number % 6
                if kind in (0, 1):
                    talk = await self._chat(gpt, talk, stream=kind == 1)
                elif kind == 2:
                    made = await gpt.completions.create(model="policy", prompt=f"{self._past(text)} and")
                    text = f"{text} and{made.choices[0].text}"
                elif kind == 3:
                    items = await self._respond(gpt, items)
                else:
                    await self._message(claude, number, stream=kind == 5)
        return 1.0

    def _past(self, text: str) -> str:
        return text[:-1] if text and self._random.random() < REWRITES else text

    async def _chat(
        self, gpt: openai.AsyncOpenAI, talk: list[dict[str, object]], *, stream: bool
    ) -> list[dict[str, object]]:
        if talk and self._random.random() < REWRITES:
            talk = [*talk[:-1], {"role": "assistant", "content": "rewritten"}]
        calls = talk[-1].get("tool_calls") if talk else None
        after = [
            {"role": "tool", "tool_call_id": call["id"], "content": "done"}
            for call in (calls if isinstance(calls, list) else ())
        ]
        talk = [*talk, *(after or [{"role": "user", "content": "next"}])]
        arguments: dict[str, object] = {
            "model": "policy", "messages": talk, "tools": [{"type": "function", "function": TOOL}],
        }  # fmt: skip
        if not stream:
            whole = await gpt.chat.completions.create(**arguments)  # type: ignore[call-overload]  # as users write it
        else:
            try:
                async with gpt.chat.completions.stream(**arguments) as events:  # type: ignore[arg-type]  # the same
                    whole = await events.get_final_completion()
            except openai.LengthFinishReasonError as cut:
                whole = cut.completion
        answer = whole.choices[0].message
        said: dict[str, object] = {"role": "assistant", "content": answer.content}
        if answer.tool_calls:
            said["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in answer.tool_calls
            ]
        return [*talk, said]

    async def _respond(self, gpt: openai.AsyncOpenAI, items: list[object]) -> list[object]:
        items = [*items, {"role": "user", "content": "next"}]
        made = await gpt.responses.create(model="policy", input=items)  # type: ignore[arg-type]  # as users write it
        return [*items, *(item.model_dump(exclude_none=True) for item in made.output)]

    async def _message(self, claude: anthropic.AsyncAnthropic, number: int, *, stream: bool) -> None:
        asked: anthropic.types.MessageParam = {"role": "user", "content": f"question {number}"}
        if not stream:
            made = await claude.messages.create(model="policy", max_tokens=1024, messages=[asked])
        else:
            async with claude.messages.stream(model="policy", max_tokens=1024, messages=[asked]) as events:
                made = await events.get_final_message()
        again: anthropic.types.MessageParam = {
            "role": "assistant",
            "content": "".join(block.text for block in made.content if block.type == "text"),
        }
        await claude.messages.create(model="policy", max_tokens=1024, messages=[asked, again, asked])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What was compared: calls made, tokens sampled, rows, and how many tokens were trained at least once."""

    num_calls: int
    num_tokens: int
    num_rows: int
    num_trained: int


class Counting(generation.Generator, Protocol):
    """An engine that counts its calls."""

    num_calls: int


async def rows_of_calls(
    model: Counting,
    tokens: protocols.Tokens,
    *,
    num_calls: int,
    max_model_len: int = 1 << 20,
    sampling: types.Sampling = DEFAULT_SAMPLING,
) -> list[types.Trajectory]:
    """Make at least `num_calls` calls by both clients, and return what is trained of them, a conversation a row."""
    seeds = itertools.count()
    config = episode_calls.ProxyConfig.model_validate({"export": "concat", "dropRetryOrphans": False})
    made = collector.ProxyCollector(
        make_agent=lambda: SdkAgent(next(seeds)), config=config, tokens=tokens, template="chat",
        max_model_len=max_model_len,
    )  # fmt: skip
    rows: list[types.Trajectory] = []
    for seed in itertools.count():
        if model.num_calls >= num_calls:
            break
        episode = await made.arun_episode(
            llm_client=model, gconfig=sampling, task=TASK, grader=episodes.FakeGrader(), seed=seed
        )
        assert episode is not None
        rows += episode.rows
    await made.close()
    return rows


async def compare_ids(num_calls: int) -> Compared:
    """Make at least `num_calls` calls of a fake engine. Raises AssertionError for a trained token that was not sampled
    there.
    """
    model = sampled.PairModel(TEXTS)
    rows = await rows_of_calls(model, sampled.PairTokens(), num_calls=num_calls)
    return Compared(
        num_calls=model.num_calls, num_tokens=model.num_tokens, num_rows=len(rows), num_trained=len(model.check(rows))
    )


class PacedModel:
    """Takes as long as the prompt says: `wait <seconds>;`."""

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        text = "".join(map(chr, request.input_ids))
        await asyncio.sleep(float(text.rpartition("wait ")[2].partition(";")[0]))
        return generation.GenerationResult(
            output_ids=(65, episodes.EOS), logprobs=(-0.5, -0.5), versions=(1, 1), stop_reason="stop"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Seconds that calls took beyond the engine's, and how many there were of how many open sessions."""

    num_sessions: int
    num_calls: int
    calls_per_s: float
    p50_s: float
    p99_s: float
    most_s: float


async def time_calls(num_sessions: int, *, calls_each: int, most_s: float) -> Added:
    """Open sessions, and have an agent of another process make calls in all of them, whose generations and pauses take
    up to `most_s` seconds each.
    """
    _raise_file_limit()
    limits = sessions.Limits(most=num_sessions, idle_s=600.0, session_s=3600.0)
    attempts = sessions.Sessions(limits, clock.SystemClock())
    outside = external.ExternalCollector(
        open_sessions=attempts, config=episode_calls.ProxyConfig(), tokens=fakes.FakeTokens(), template="raw",
        max_model_len=1 << 20,
    )  # fmt: skip
    where = process_config.GatewayConfig(bind_host="127.0.0.1", host="127.0.0.1", port=0)
    async with network.Gateway(where, attempts, KEY) as gateway, asyncio.TaskGroup() as running:
        for _ in range(num_sessions):
            running.create_task(
                outside.arun_episode(
                    llm_client=PacedModel(), gconfig=types.Sampling(), task=TASK, grader=episodes.FakeGrader(), seed=1
                )
            )
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rljob_testing.gateway_load", gateway.address, str(num_sessions), str(calls_each),
            str(most_s), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await client.communicate()
        # Here, so that no session is waited for that nobody closes.
        assert client.returncode == 0, "the client failed"
    return Added(**json.loads(out))


async def _agents(address: str, num_sessions: int, calls_each: int, most_s: float) -> Added:
    _raise_file_limit()
    # A pause of the process that measures is not the gateway's.
    gc.disable()
    added: list[float] = []
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        taken = [await _post(http, f"{address}/v1/sessions", KEY, {"waitSeconds": 60}) for _ in range(num_sessions)]
        began = time.monotonic()
        async with asyncio.TaskGroup() as agents:
            for number, session in enumerate(taken):
                agents.create_task(_agent(http, session, random.Random(number), calls_each, most_s, added))
        took_s = time.monotonic() - began
        for session in taken:
            await _post(http, f"{session['base_url']}/close", session["api_key"], {"reward": 1})
    cuts = statistics.quantiles(added, n=100)
    return Added(
        num_sessions=num_sessions, num_calls=len(added), calls_per_s=len(added) / took_s, p50_s=cuts[49],
        p99_s=cuts[98], most_s=max(added),
    )  # fmt: skip


async def _agent(
    http: aiohttp.ClientSession,
    session: Mapping[str, str],
    draws: random.Random,
    calls_each: int,
    most_s: float,
    added: list[float],
) -> None:
    messages: list[dict[str, str]] = []
    for _ in range(calls_each):
        await asyncio.sleep(draws.uniform(0.0, most_s))
        engine_s = round(draws.uniform(0.0, most_s), 3)
        messages.append({"role": "user", "content": f"wait {engine_s};"})
        began = time.monotonic()
        url = f"{session['base_url']}/chat/completions"
        body = await _post(http, url, session["api_key"], {"messages": messages})
        added.append(time.monotonic() - began - engine_s)
        messages.append(body["choices"][0]["message"])


async def _post(http: aiohttp.ClientSession, url: str, key: str, body: Mapping[str, object]) -> dict:  # type: ignore[type-arg]  # JSON
    async with http.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as response:
        assert response.status == 200, await response.text()
        made: dict = await response.json()  # type: ignore[type-arg]  # JSON
        return made


def _raise_file_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(arguments: Sequence[str]) -> None:
    """Be the agents of `time_calls`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("num_sessions", type=int)
    parser.add_argument("calls_each", type=int)
    parser.add_argument("most_s", type=float)
    given = parser.parse_args(arguments)
    print(json.dumps(dataclasses.asdict(asyncio.run(_agents(**vars(given))))))


if __name__ == "__main__":
    main(sys.argv[1:])
