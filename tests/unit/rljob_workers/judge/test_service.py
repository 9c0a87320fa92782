"""The judge as others meet it: the program itself, asked by the rollout's own client."""

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rljob_api import enums, errors, process_config
from rljob_testing import judges
from rljob_testing.judges import Answer, HurriedClock
from rljob_testing.ports import free_ports
from rljob_workers.judge import service
from rljob_workers.rpc import verify
from rljob_workers.runtime import clock

KEY = {"name": "openai", "key": "token"}
VARIABLE = "RLJOB_JUDGE_KEY_OPENAI_TOKEN"


def config(url: str, **changes: object) -> process_config.JudgeConfig:
    return process_config.JudgeConfig.model_validate(
        {
            "job": judges.JOB,
            "role": enums.Role.JUDGE,
            "pod": "judge-0",
            "health_host": "127.0.0.1",
            "health_port": 0,
            "scratch_dir": "/nonexistent",
            "bind_host": "127.0.0.1",
            "port": 0,
            "rewards": [judges.reward(url=url, apiKey=KEY)],
            **changes,
        }
    )


def client_of(port: int, *, max_attempts: int = 1) -> verify.GradingClient:
    return verify.GradingClient(
        addresses=[f"127.0.0.1:{port}"],
        tls=None,
        timeout_s=20.0,
        max_attempts=max_attempts,
        clock=clock.SystemClock(),
        role=enums.Role.JUDGE,
    )


@contextlib.asynccontextmanager
async def running(url: str, folder: pathlib.Path) -> AsyncIterator[service.Service]:
    made = service.Service(
        config(url, scratch_dir=str(folder)), environment={VARIABLE: "secret-key"}, clock=HurriedClock()
    )
    await made.start()
    run = asyncio.ensure_future(made.run())
    try:
        yield made
    finally:
        made.stop()
        await run
        await made.close()


@pytest.mark.parametrize("environment", [{}, {VARIABLE: " "}, {VARIABLE: "a\r\nX: b"}])
def test_a_key_that_is_missing_or_no_header_is_refused_without_being_shown(environment: dict[str, str]) -> None:
    with pytest.raises(errors.ManifestError, match=f"from {VARIABLE}; that variable (is not|has)") as refused:
        service.Service(config("https://example.com"), environment=environment)
    assert "X: b" not in str(refused.value)


async def test_a_judge_is_ready_once_its_model_has_answered(tmp_path: pathlib.Path) -> None:
    answers, asked = asyncio.Event(), asyncio.Event()

    def serve(number: int, body: dict[str, Any]) -> Answer:
        asked.set()
        return Answer(body=judges.said("Score: 7")) if answers.is_set() else Answer(401)

    async with judges.server(serve) as url, running(url, tmp_path) as made:
        await asked.wait()
        assert made.ready()[0] is False
        answers.set()
        while not made.ready()[0]:
            await asyncio.sleep(0.01)


async def test_verdicts_go_over_the_wire_and_a_judge_that_is_gone_is_unavailable(tmp_path: pathlib.Path) -> None:
    async with judges.server(lambda number, body: Answer(body=judges.said("Score: 10"))) as url:
        async with running(url, tmp_path) as made:
            client = client_of(made.port)
            (verdict,) = await client.verify([judges.item("five")])
            assert (verdict.reward, verdict.parts) == (1.0, {"helpful": 1.0})
        (lost,) = await client.verify([judges.item("five")])
        assert (lost.reward, lost.reason) == (None, enums.VerdictReason.INFRA_FAILURE)
        assert lost.detail.startswith("judge_unavailable: ")
        await client.close()


@contextlib.contextmanager
def started(made: process_config.JudgeConfig, folder: pathlib.Path, *arguments: str) -> Any:
    path = folder / "judge.json"
    path.write_text(made.model_dump_json())
    command = [sys.executable, "-m", "rljob_workers.judge", "--config", str(path), *arguments]
    with subprocess.Popen(
        command,
        env={**os.environ, VARIABLE: "secret-key-of-the-judge"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


async def test_the_program_judges_until_it_is_asked_to_stop_and_says_what_it_cost(
    tmp_path: pathlib.Path,
) -> None:
    port, health_port = free_ports(2)
    seen = []

    def serve(number: int, body: dict[str, Any]) -> Answer:
        seen.append(body)
        return Answer(body=judges.said("Score: 1")) if number % 2 else Answer(429)

    async with judges.server(serve) as url:
        made = config(url, port=port, health_port=health_port, scratch_dir=str(tmp_path))
        with started(made, tmp_path) as process:
            while not await asyncio.to_thread(is_ready, health_port):
                assert process.poll() is None
                await asyncio.sleep(0.1)
            client = client_of(port)
            (verdict,) = await client.verify([judges.item("five")])
            await client.close()
            process.send_signal(signal.SIGTERM)
            output = await asyncio.to_thread(process.communicate)
    assert (verdict.reward, process.returncode) == (0.0, 0)
    assert len(seen) == 4
    assert "secret-key-of-the-judge" not in output[0]
    costs = json.loads((tmp_path / "costs.json").read_text())
    assert {name: costs["helpful"][name] for name in ("calls", "cached", "prompt_tokens", "completion_tokens")} == {
        "calls": 4,
        "cached": 0,
        "prompt_tokens": 22,
        "completion_tokens": 6,
    }


@pytest.mark.parametrize(
    ("answer", "unfit"),
    [
        (Answer(body=judges.said("Score: 7")), None),
        (Answer(body=judges.said("Hm.")), "the judge answers, but its first reply had no verdict that can be read"),
        (Answer(401), "the judge does not answer: status 401"),
    ],
)
async def test_a_judge_is_asked_once_whether_it_is_fit(answer: Answer, unfit: str | None) -> None:
    post = judges.ScriptedPost(lambda number, body: answer)
    (judge,) = judges.rig(post, HurriedClock()).judges
    said = await service.first_answer("helpful", judge)
    assert len(post.bodies) == 1
    assert (said is None) if unfit is None else (said is not None and said.sentence == f"reward 'helpful': {unfit}")


async def test_a_check_names_the_judge_that_does_not_answer(tmp_path: pathlib.Path) -> None:
    async with judges.server(lambda number, body: Answer(401)) as url:
        with started(config(url), tmp_path, "--check") as process:
            output, _ = await asyncio.to_thread(process.communicate)
    assert process.returncode == 2
    assert output.splitlines()[-1] == "error: reward 'helpful': the judge does not answer: status 401"
