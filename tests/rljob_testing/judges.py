"""Language models that judge, without a model: one on loopback that speaks HTTP, and one that is only a function.

Fakes: nothing of the product imports them.
"""

import asyncio
import contextlib
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from rljob_api import enums, process_config, types
from rljob_api.manifest.reward_options import JudgeOptions
from rljob_workers.judge import calls, judging, transport, verdicts
from rljob_workers.runtime import metrics

JOB = process_config.JobIdentity(name="job", namespace="tests", uid="uid")
MARKED = re.compile(r"<(text-[0-9a-f]{16})>\n(.*?)\n</\1>", re.DOTALL)

# What a server does instead of answering: it closes the connection, or says nothing.
CLOSES, HANGS = "closes", "hangs"


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Status, JSON body and headers of a reply. chunked: in pieces of 7 bytes."""

    status: int = 200
    body: object = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    chunked: bool = False


def said(text: str, *, prompt_tokens: int = 11, completion_tokens: int = 3) -> dict[str, Any]:
    """Return a chat completion with one message."""
    return {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens},
    }


def prompt_of(body: Mapping[str, Any]) -> str:
    return str(body["messages"][0]["content"])


def answers_in(body: Mapping[str, Any]) -> list[str]:
    """Return the marked texts of a request: the answers that it asks about."""
    return [text for _, text in MARKED.findall(prompt_of(body))]


class HurriedClock:
    """Time passes only by sleeping, and sleeping takes none of the machine's."""

    def __init__(self) -> None:
        self.elapsed, self.slept = 0.0, list[float]()

    def now(self) -> float:
        return 1_000_000.0 + self.elapsed

    def monotonic(self) -> float:
        return self.elapsed

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.elapsed += seconds
        await asyncio.sleep(0)


class ScriptedPost:
    """Answers by a function of the number of the call, from 0, and the request's JSON; an exception is raised."""

    def __init__(self, answer: Callable[[int, dict[str, Any]], Answer | Exception]) -> None:
        self._answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.urls: list[str] = []
        self.keys: list[str] = []

    async def __call__(self, url: str, body: bytes, *, key: str) -> transport.Reply:
        number, content = len(self.bodies), json.loads(body)
        self.bodies.append(content)
        self.urls.append(url)
        self.keys.append(key)
        answer = self._answer(number, content)
        if isinstance(answer, Exception):
            raise answer
        await asyncio.sleep(0)
        return transport.Reply(answer.status, answer.headers.get("Retry-After", ""), json.dumps(answer.body).encode())


def always(text: str) -> ScriptedPost:
    return ScriptedPost(lambda number, body: Answer(body=said(text)))


def options(**changes: object) -> JudgeOptions:
    return JudgeOptions.model_validate({"url": "http://127.0.0.1:1/v1", "model": "judge", **changes})


def item(completion: str, *, sample_id: str = "s", suite: str = "", **columns: object) -> types.VerifyItem:
    return types.VerifyItem(
        sample_id=sample_id,
        attempt=1,
        prompt="2 + 3 =",
        completion=completion,
        columns={"answer": "5", **columns},
        suite=suite,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A judge of one process without its server, and what it counted."""

    judging: judging.Judging
    judges: Sequence[verdicts.Judge]
    metrics: metrics.Metrics

    def counted(self, name: str, **labels: str) -> float:
        whole = {"rljob": "job", "rljob_namespace": "tests", **labels}
        return self.metrics.registry.get_sample_value(name, whole) or 0.0

    def calls(self, outcome: enums.JudgeCall, reward: str = "helpful") -> float:
        return self.counted("rljob_judge_calls_total", reward=reward, outcome=str(outcome))


def rig(post: transport.Post, clock: HurriedClock, *rewards: process_config.GraderConfig, waiting: int = 4096) -> Rig:
    """Return a judge of these rewards, or of one rubric named helpful."""
    rewards = rewards or (reward(),)
    counted = metrics.Metrics(role=enums.Role.JUDGE, job=JOB)
    judges = []
    for each in rewards:
        own = JudgeOptions.model_validate(each.config)
        door = calls.Calls(reward=each.name, options=own, key="", metrics=counted, clock=clock, post=post)
        judges.append(verdicts.Judge(options=own, door=door, clock=clock))
    made = judging.Judging(rewards=rewards, judges=judges, metrics=counted, max_waiting=waiting)
    return Rig(judging=made, judges=judges, metrics=counted)


def reward(
    name: str = "helpful", *, weight: float = 1.0, suite: str = "", **config: object
) -> process_config.GraderConfig:
    whole = {"url": "http://127.0.0.1:1/v1", "model": "judge", **config}
    return process_config.GraderConfig.model_validate(
        {"name": name, "type": "judge", "weight": str(weight), "suite": suite, "config": whole}
    )


Serve = Callable[[int, dict[str, Any]], Answer | str]


@contextlib.asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[str]:
    """Yield the URL of a server on loopback; `serve` gets the number of the call and the request's JSON."""
    number = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal number
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(re.search(r"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]  # there is one
            body = json.loads(await reader.readexactly(length))
            answer, number = serve(number, body), number + 1
            if answer == HANGS:
                await reader.read()
            if isinstance(answer, Answer):
                writer.write(_bytes(answer))
                await writer.drain()
        except (OSError, EOFError):
            return  # Who asked has gone.
        finally:
            writer.close()

    serving = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with serving:
        host, port = serving.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}/v1"


def _bytes(answer: Answer) -> bytes:
    body = json.dumps(answer.body).encode()
    headers = {"Content-Type": "application/json", **answer.headers}
    if answer.chunked:
        headers["Transfer-Encoding"] = "chunked"
        pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    else:
        headers["Content-Length"] = str(len(body))
    lines = [f"HTTP/1.1 {answer.status} Said", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
