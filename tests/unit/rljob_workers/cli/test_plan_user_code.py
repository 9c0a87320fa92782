"""`rljob plan` of a job whose agent, environment and reward are a user's, all in one file alongside the manifest."""

import importlib.util
import pathlib
from collections.abc import Callable

import pytest
import yaml
from typer.testing import Result

from rljob_workers.local.checks import user_code

Rljob = Callable[..., Result]

MINE = """from collections.abc import Mapping

from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import protocols


class Game:
    def __init__(self, config: Mapping[str, object]) -> None:
        self.answer = ""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, Mapping[str, object]]:
        self.answer = str((options or {})["answer"])
        return "Say it.", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, object]]:
        return "", float(action == self.answer), True, False, {}

    async def aclose(self) -> None:
        pass


class Player:
    def __init__(self, config: Mapping[str, object]) -> None:
        self.turn = 0

    async def areset(self) -> None:
        self.turn = 0

    async def aact(self, agent_input: protocols.AgentInput[str]) -> protocols.AgentOutput[str]:
        request = generation.GenerationRequest(
            rid=f"mine-{self.turn}", input_ids=(1,), sampling=agent_input.gconfig, seed=self.turn
        )
        result = await agent_input.llm_client.generate(request)
        return protocols.AgentOutput(action="", llm_req=request, llm_resp=result)


def short(
    query_id: str, prompt: str, completion: str, prompt_ids: object, completion_ids: object, **row: object
) -> float:
    return float(len(completion) < 9)
"""


@pytest.fixture
def manifest(tmp_path: pathlib.Path) -> pathlib.Path:
    spec = {
        "maxSteps": 4,
        "model": {"name": "builtin:smollm2-135m-instruct"},
        "data": {"train": [{"name": "t", "path": "t.jsonl", "maxPromptTokens": 32}]},
        "algorithm": {"groupSize": 4, "promptsPerStep": 2},
        "workflow": {"type": "mine:Game", "code": {"path": "mine.py"}, "config": {"agent": "mine:Player"}},
        "rollout": {"engine": {"maxModelLen": 64, "maxNumSeqs": 4}, "sampling": {"maxTokens": 8}},
        "verifier": {"rewards": [{"name": "short", "type": "mine:short"}]},
    }
    path = tmp_path / "job.yaml"
    path.write_text(
        yaml.safe_dump(
            {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "mine"}, "spec": spec}
        )
    )
    return path


@pytest.mark.covers("workflows 2.1")
def test_agent_environment_and_reward_of_one_file_are_taken(rljob: Rljob, manifest: pathlib.Path) -> None:
    manifest.with_name("mine.py").write_text(MINE)
    planned = rljob("plan", str(manifest))
    assert (planned.exit_code, planned.stderr) == (0, "")
    assert "mine:Game" in planned.stdout


@pytest.mark.covers("workflows 2.1")
def test_an_import_error_is_refused_with_its_line(rljob: Rljob, manifest: pathlib.Path) -> None:
    manifest.with_name("mine.py").write_text(MINE.replace("collections.abc", "collections.abcd"))
    refused = rljob("plan", str(manifest))
    assert refused.exit_code == 2
    place = manifest.with_name("mine.py")
    assert f"error: {place}:1: ModuleNotFoundError: No module named 'collections.abcd'" in refused.stderr


@pytest.mark.covers("workflows 2.1")
@pytest.mark.skipif(not user_code.can_check_types(), reason="mypy is not installed")
def test_a_type_error_is_refused_with_its_line(rljob: Rljob, manifest: pathlib.Path) -> None:
    wrong = MINE.replace("return float(len(completion) < 9)", "return completion")
    line = wrong.splitlines().index("    return completion") + 1
    place = manifest.with_name("mine.py")
    place.write_text(wrong)
    refused = rljob("plan", str(manifest))
    assert refused.exit_code == 2
    assert (
        f'error: {place}:{line}: error: Incompatible return value type (got "str", expected "float")' in refused.stderr
    )


def test_a_file_beside_the_manifest_that_it_does_not_name_is_not_found(rljob: Rljob, manifest: pathlib.Path) -> None:
    """Nor would a run find it, whose processes work elsewhere."""
    manifest.with_name("mine.py").write_text(MINE)
    spec = yaml.safe_load(manifest.read_text())
    spec["spec"]["workflow"] = {"type": "rlvr"}
    manifest.write_text(yaml.safe_dump(spec))
    refused = rljob("plan", str(manifest))
    assert refused.exit_code == 2
    assert "mine:short" in refused.stderr


def test_data_that_is_not_here_is_a_warning_of_the_plan_with_its_field(rljob: Rljob, manifest: pathlib.Path) -> None:
    manifest.with_name("mine.py").write_text(MINE)
    place = manifest.with_name("t.jsonl")
    sentence = f"warning: spec.data.train[0].path: {place} is not on this machine"
    assert sentence in rljob("plan", str(manifest)).stdout
    place.touch()
    assert sentence not in rljob("plan", str(manifest)).stdout


def test_package_that_is_not_here_is_a_warning_of_the_plan_with_its_field_and_what_there_is(
    rljob: Rljob, manifest: pathlib.Path
) -> None:
    spec = yaml.safe_load(manifest.read_text())
    spec["spec"]["workflow"] = {"type": "rlvr"}
    reward = {"name": "passes", "type": "code", "packages": ["numpy", "no_such_package.part"]}
    spec["spec"]["verifier"]["rewards"] = [reward]
    manifest.write_text(yaml.safe_dump(spec))
    planned = rljob("plan", str(manifest))
    assert planned.exit_code == 0
    (told,) = [line for line in planned.stdout.splitlines() if "packages[" in line]
    assert told.startswith(
        "warning: spec.verifier.rewards[0].packages[1]: no_such_package.part is not installed here; rljob run needs it"
    )
    assert told.endswith("Of the usual ones there are: networkx, numpy, sortedcontainers, sympy")


def test_tracker_whose_package_is_not_here_is_a_warning_of_the_plan_and_refused_by_a_run(
    rljob: Rljob, manifest: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest.with_name("mine.py").write_text(MINE)
    spec = yaml.safe_load(manifest.read_text())
    spec["spec"]["observability"] = {"trackers": [{"name": "board", "type": "wandb"}]}
    manifest.write_text(yaml.safe_dump(spec))
    sentence = "spec.observability.trackers[board].type is 'wandb', whose package is not installed here"
    assert sentence not in rljob("plan", str(manifest)).stdout
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else there(name))
    planned = rljob("plan", str(manifest))
    assert planned.exit_code == 0
    assert f"warning: {sentence}: pip install 'rljob[wandb]'" in planned.stdout
    run = rljob("run", str(manifest), "--run-dir", str(manifest.with_name("run")))
    assert run.exit_code == 2
    assert sentence in run.stderr
    assert not manifest.with_name("run").exists()
