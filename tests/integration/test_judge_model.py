"""The small model judges, served by vLLM's own server: calls that are answered by 429 or by nothing change no reward.

RLJOB_EVERY_EXAMPLE=1 runs it: a minute of two cores.
"""

import asyncio
import contextlib
import hashlib
import itertools
import os
import pathlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rljob_api import enums, process_config
from rljob_api.manifest.algorithm import NormalizeSpec
from rljob_testing import judges
from rljob_testing.ports import free_ports
from rljob_workers.coordinator.batching import advantage
from rljob_workers.judge import forms, transport
from rljob_workers.models import builtin
from rljob_workers.runtime import device

pytestmark = pytest.mark.skipif(
    not os.environ.get("RLJOB_EVERY_EXAMPLE"), reason="a model as judge was not asked for (RLJOB_EVERY_EXAMPLE=1)"
)
NAME = "small"
GROUPS = [[f"The sum of {first} and 5 is {first + member}." for member in range(3, 7)] for first in range(10)]
GRPO = NormalizeSpec(mean="Group", std="Group")
TEMPLATE = "Grade the answer to: {question}\n{answer}\n5 is for a right sum, 1 for a sum that is far off."
REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
_START_S = 400.0


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of `vllm serve` with the small model."""
    folder = tmp_path_factory.mktemp("judge")
    model = builtin.ensure_model(process_config.ModelFiles(name="builtin:smollm2-135m-instruct", cache_dir=str(folder)))
    (number,) = free_ports(1)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(number)]
    command += ["--enforce-eager", "--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "4"]
    # By itself it takes nearly all of the memory, or does not start where something else has some.
    command += ["--gpu-memory-utilization", "0.2"]
    log = pathlib.Path(folder, "server.log")
    with log.open("wb") as output:
        environment = {**os.environ, **device.engine_environment(num_threads=2, kind="cpu"), "HF_HUB_OFFLINE": "1"}
        server = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            _until_it_answers(server, number, log)
            yield number
        finally:
            server.terminate()
            server.wait(timeout=60)


def _until_it_answers(server: "subprocess.Popen[bytes]", number: int, log: pathlib.Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-4000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{number}/health", timeout=5):
            return
        time.sleep(0.5)
    raise AssertionError(log.read_text()[-4000:])


@contextlib.asynccontextmanager
async def shaken(port: int) -> AsyncIterator[str]:
    """Yield a URL before the server at `port`: one call in five is refused, closed or left without an answer."""
    numbers = itertools.count(1)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(numbers)
        with contextlib.closing(writer):
            if number % 5:
                await _passed_on(reader, writer, port)
            elif number // 5 % 3 == 0:
                writer.write(REFUSAL)
                await writer.drain()
            elif number // 5 % 3 == 1:
                await reader.read(1)
            else:
                while await reader.read(65_536):
                    pass

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as serving:
        host, own = serving.sockets[0].getsockname()[:2]
        yield f"http://{host}:{own}/v1"


async def _passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    theirs, to_them = await asyncio.open_connection("127.0.0.1", port)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()

    with contextlib.closing(to_them):
        sent = asyncio.create_task(copy(reader, to_them))
        await copy(theirs, writer)
        sent.cancel()


async def rewards(url: str) -> tuple[list[list[float | None]], judges.Rig]:
    reward = judges.reward(
        url=url, model=NAME, verdict="schema", scale=[1, 5], template=TEMPLATE, maxTokens=16, callSeconds=20,
        maxConcurrent=4,
    )  # fmt: skip
    rig = judges.rig(transport.post, judges.HurriedClock(), reward)
    graded = await asyncio.gather(
        *(rig.judging.verify([judges.item(answer, sample_id=answer) for answer in group]) for group in GROUPS)
    )
    return [[verdict.reward for verdict in group] for group in graded], rig


@pytest.mark.timeout(900)
async def test_calls_of_a_real_model_answered_by_429_or_by_nothing_change_no_advantage(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The random word that marks an answer is a part of the prompt, and a small model's verdict depends on it: here each
    # answer has its own.
    body = forms.body

    def marked(options: Any, question: forms.Question, *, marker: str, seed: int) -> dict[str, Any]:
        own = hashlib.sha256("".join(question.answers).encode()).hexdigest()[: len(marker)]
        return body(options, question, marker=own, seed=seed)

    monkeypatch.setattr(forms, "body", marked)
    calm, _ = await rewards(f"http://127.0.0.1:{port}/v1")
    async with shaken(port) as url:
        disturbed, rig = await rewards(url)
    assert disturbed == calm
    sizes = [len(group) for group in calm]
    all_rewards = [[reward for group in each for reward in group if reward is not None] for each in (calm, disturbed)]
    assert [len(each) for each in all_rewards] == [40, 40]
    first, second = (advantage.normalize(GRPO, each, sizes) for each in all_rewards)
    assert first == second
    assert len(set(all_rewards[0])) > 1, "the model tells answers apart"
    assert rig.calls(enums.JudgeCall.BUSY) >= 2
    print({str(outcome): rig.calls(outcome) for outcome in enums.JudgeCall}, sorted(set(all_rewards[0])))
