"""Agents of other packages, as they are, at the real gateway: what they send is served, what they earn is trained."""

import json
import os
import pathlib
import sys

import pytest

from rljob_testing import examples
from rljob_testing.agent_scene import scene_of

AGENTS = examples.ROOT / "integrations/agents"
VENVS = os.environ.get("RLJOB_FOREIGN_VENVS", "")
RECORD = {"id": "0", "prompt": "12 + 7 = 19\n46 + 31 = 77\n33 + 47 = ", "answer": "80"}
RIGHT, WRONG = "80", "81"
# An answer of one call has the characters and the end of its turn.
LONG = len(RIGHT) + 1
MAX_MODEL_LEN = 32768

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
needs_venvs = pytest.mark.skipif(
    not VENVS, reason="needs RLJOB_FOREIGN_VENVS: a folder with the environments of docs/integrations.md"
)


def command(program: str, venv: str = "") -> list[str]:
    """Return what starts a program with the worker's Python, or with that of an environment of its own."""
    python = sys.executable if not venv else str(pathlib.Path(VENVS).absolute() / venv / "bin/python")
    return [python, f"{program}.py"]


def called(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def test_an_agent_of_the_openai_package_is_served_and_its_two_turns_are_one_row(tmp_path: pathlib.Path) -> None:
    async with scene_of(command("openai_chat"), AGENTS, key_file=tmp_path / "key") as scene:
        assert await scene.rows(RECORD, RIGHT) == [(1.0, 1, LONG)]
        assert await scene.rows(RECORD, WRONG, RIGHT) == [(0.5, 2, 2 * LONG)]
        assert await scene.rows(RECORD, WRONG, WRONG) == [(0.125, 2, 2 * LONG)]
        assert scene.requests[0] == "u:12 + 7 =;a:19;u:46 + 31 =;a:77;u:33 + 47 =;a:"


async def test_an_agent_of_the_anthropic_package_reads_a_stream(tmp_path: pathlib.Path) -> None:
    async with scene_of(command("anthropic_stream"), AGENTS, key_file=tmp_path / "key") as scene:
        assert await scene.rows(RECORD, RIGHT) == [(1.0, 1, LONG)]
        assert await scene.rows(RECORD, WRONG) == [(0.25, 1, LONG)]
        assert scene.requests[0].startswith("s:Answer with a number.;u:12 + 7 =;")


@needs_venvs
async def test_a_tool_calling_agent_of_smolagents_calls_its_tool_and_gives_a_final_answer(
    tmp_path: pathlib.Path,
) -> None:
    async with scene_of(
        command("smolagents_tools", "smolagents"), AGENTS, key_file=tmp_path / "key", max_model_len=MAX_MODEL_LEN
    ) as scene:
        add, final = called("add", first=33, second=47), called("final_answer", answer=RIGHT)
        rows = await scene.rows(RECORD, add, final)
        # It writes each call again in words of its own, so the second is a fork; the reward is run back to the first.
        assert [(reward, turns) for reward, turns, _ in rows] == [(1.0, 1), (1.0, 1)]


@needs_venvs
async def test_an_agent_of_langchain_calls_a_tool_of_a_server_of_mcp(tmp_path: pathlib.Path) -> None:
    async with scene_of(
        command("langchain_mcp", "langchain"), AGENTS, key_file=tmp_path / "key", max_model_len=MAX_MODEL_LEN
    ) as scene:
        calculate = called("calculate", expression="33 + 47")
        assert await scene.rows(RECORD, calculate, RIGHT) == [(1.0, 2, len(calculate) + 1 + LONG)]
        # The server has computed it.
        assert scene.requests[-1].endswith(";t:80;a:")
        assert await scene.rows(RECORD, WRONG) == [(0.0, 1, LONG)]


@needs_venvs
async def test_the_command_of_mini_swe_agent_runs_in_a_confined_shell(tmp_path: pathlib.Path) -> None:
    async with scene_of(
        command("mini_swe", "mini-swe-agent"), AGENTS, key_file=tmp_path / "key", max_model_len=MAX_MODEL_LEN
    ) as scene:
        peek = "```mswea_bash_command\nls /root /home /etc; cat /proc/net/dev; id -u; env\n```"
        add = "```mswea_bash_command\necho $((33 + 47))\n```"
        done = "```mswea_bash_command\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"
        assert [row[:2] for row in await scene.rows(RECORD, add, done)] == [(1.0, 2)]
        assert [row[:2] for row in await scene.rows(RECORD, peek, done)] == [(0.25, 2)]
        seen = scene.requests[-1].split(peek)[-1]
        assert "cannot access '/root'" in seen
        assert "65534" in seen
        assert "eth" not in seen
        assert "OPENAI" not in seen
        assert [row[:2] for row in await scene.rows(RECORD, "no", "no")] == [(0.0, 2)]
