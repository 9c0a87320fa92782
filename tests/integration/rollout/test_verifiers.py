"""The library verifiers itself, in an environment of its own, as agents of the real gateway and of a whole run."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from rljob_testing import agent_scene, examples
from rljob_testing.runs import RunFolder

PYTHON = os.environ.get("RLJOB_VERIFIERS_PYTHON", "")
INTEGRATION = examples.ROOT / "integrations/verifiers"
LOCAL = {"agent": {"runtime": {"type": "subprocess"}}}
# A chat program of the library's own for each run, which uv gives an environment from the package index.
NULL = {"agent": {"runtime": {"type": "subprocess"}, "harness": {"id": "null"}}}

# Two tries with a hint between them, by the library's own exchange of turns.
GUESSING = """
import addition
import verifiers.v1 as vf

__all__ = ["GuessingEnv", "GuessingTaskset"]


class GuessingTaskset(addition.AdditionTaskset):
    pass


class GuessingConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessingEnv(vf.Env[GuessingConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            if not segment.terminated and segment.last_reply != task.data.answer:
                await interaction.turn("wrong")
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not PYTHON,
        reason="needs RLJOB_VERIFIERS_PYTHON: a Python with integrations/verifiers/requirements.txt",
    ),
]


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a folder with the integration's files and the library's environment at `.venv`."""
    for name in ("agent.py", "addition.py", "one_call.py", "addition-cpu.yaml"):
        shutil.copy(INTEGRATION / name, tmp_path)
    (tmp_path / ".venv").symlink_to(pathlib.Path(PYTHON).absolute().parents[1])
    return tmp_path


def exported(
    folder: pathlib.Path, environment: str = "addition", options: Mapping[str, Any] = LOCAL
) -> list[dict[str, Any]]:
    """Return the records that the command of the page writes."""
    command = [
        ".venv/bin/python",
        "agent.py",
        "export",
        f"--environment={environment}",
        f"--args={json.dumps(options)}",
    ]
    subprocess.run([*command, "--out=addition.jsonl"], cwd=folder, check=True, timeout=900)
    return [json.loads(line) for line in (folder / "addition.jsonl").read_text().splitlines()]


@contextlib.asynccontextmanager
async def scene_of(folder: pathlib.Path, environment: str, options: dict[str, Any]) -> AsyncIterator[agent_scene.Scene]:
    """Play an environment for a gateway for the length of the block."""
    command = [".venv/bin/python", "agent.py", "run", f"--environment={environment}", f"--args={json.dumps(options)}"]
    async with agent_scene.scene_of([*command, "--sessions=2"], folder, key_file=folder / "key") as scene:
        yield scene


@pytest.mark.parametrize("options", [LOCAL, NULL], ids=["harness-in-process", "library-s-own-harness"])
async def test_the_library_plays_a_session_and_its_reward_is_that_of_the_row(
    folder: pathlib.Path, options: dict[str, Any]
) -> None:
    first, second, *_ = exported(folder)
    right, wrong = first["answer"], second["answer"]
    assert right != wrong
    async with scene_of(folder, "addition", options) as scene:
        assert await scene.rows(first, right) == [(1.0, 1, len(right) + 1)]
        assert await scene.rows(first, wrong) == [(0.0, 1, len(wrong) + 1)]


async def test_turns_of_the_library_become_one_row(folder: pathlib.Path) -> None:
    (folder / "guessing.py").write_text(GUESSING)
    local = {"player": {**LOCAL["agent"], "harness": {"id": "one_call"}}}
    first, second, *_ = exported(folder, "guessing", local)
    right, wrong = first["answer"], second["answer"]
    async with scene_of(folder, "guessing", local) as scene:
        assert await scene.rows(first, wrong, right) == [(1.0, 2, len(wrong) + len(right) + 2)]


def test_a_whole_run_trains_on_the_rewards_of_the_environment(folder: pathlib.Path) -> None:
    exported(folder)
    runs = RunFolder(folder)
    settings = ["spec.maxSteps=2", "spec.algorithm.promptsPerStep=4", "spec.algorithm.groupSize=4"]
    code, output = runs.run(folder / "addition-cpu.yaml", timeout_s=1500, settings=settings)
    assert code == 0, output[-4000:]
    steps = runs.steps()
    assert [step["step"] for step in steps] == [1, 2]
    assert runs.audit() == ""
    assert "gave an attempt up" not in (folder / "run/logs/agents.jsonl").read_text()
    print(json.dumps([{key: step[key] for key in step if "reward" in key} for step in steps]))
