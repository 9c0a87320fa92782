"""The check of user code before a run, by real programs: it answers with file and line."""

import json
import pathlib

import pytest

from rljob_api.manifest.data import SuiteSpec
from rljob_api.manifest.job import JobSpec
from rljob_api.validation.load import load_manifest
from rljob_workers.local.checks import user_code

GAME = """class Game:
    def __init__(self, config: dict[str, object]) -> None:
        pass

    async def arun_episode(
        self, *, llm_client: object, gconfig: object, task: object, grader: object, seed: int
    ) -> None:
        return None
"""


def spec(template: str = "chat", **workflow: object) -> JobSpec:
    body = {
        "maxSteps": 1,
        "model": {"name": "builtin:smollm2-135m-instruct"},
        "data": {"template": template, "train": [{"name": "sums", "path": "sums.jsonl"}]},
        "verifier": {"rewards": [{"name": "right", "type": "exact"}]},
        "workflow": workflow or {"type": "game:Game", "code": {"path": "game.py"}},
    }
    return load_manifest(
        json.dumps({"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "job"}, "spec": body})
    ).spec


def test_code_that_fits_has_no_problem(tmp_path: pathlib.Path) -> None:
    (tmp_path / "game.py").write_text(GAME)
    assert user_code.problems(spec(), tmp_path) == []


def test_an_import_error_is_said_with_file_and_line(tmp_path: pathlib.Path) -> None:
    (tmp_path / "game.py").write_text("import no_such_module\n" + GAME)
    (problem,) = user_code.problems(spec(), tmp_path)
    assert problem.startswith(f"{tmp_path}/game.py:1: ModuleNotFoundError: No module named 'no_such_module'")


@pytest.mark.skipif(not user_code.can_check_types(), reason="mypy is not installed")
def test_a_type_error_is_said_with_file_and_line(tmp_path: pathlib.Path) -> None:
    (tmp_path / "game.py").write_text(GAME.replace("return None", "seed.append(1)"))
    (problem,) = user_code.problems(spec(), tmp_path)
    assert problem == f'{tmp_path}/game.py:8: error: "int" has no attribute "append"'


def test_a_template_in_the_file_is_looked_at_too(tmp_path: pathlib.Path) -> None:
    (tmp_path / "game.py").write_text(GAME + "\n\nask = 3\n")
    (problem,) = user_code.problems(spec("game:ask", type="rlvr", code={"path": "game.py"}), tmp_path)
    assert problem == "spec.data.template is 'game:ask', which is int and not a function"


def test_a_predicate_and_a_suites_template_are_looked_at_too(tmp_path: pathlib.Path) -> None:
    (tmp_path / "game.py").write_text(GAME + "\n\nkeep = 3\n")
    plain = spec(type="rlvr", code={"path": "game.py"})
    suite = SuiteSpec.model_validate({"name": "s", "path": "s.jsonl", "template": "game:keep"})
    suites = plain.evaluation.model_copy(update={"suites": (suite,)})
    (problem,) = user_code.problems(plain.model_copy(update={"evaluation": suites}), tmp_path)
    assert problem == "spec.evaluation.suites[0].template is 'game:keep', which is int and not a function"
    groups = plain.data.filter_groups.model_copy(update={"predicate": "game:keep"})
    data = plain.data.model_copy(update={"filter_groups": groups})
    (problem,) = user_code.problems(plain.model_copy(update={"data": data}), tmp_path)
    assert problem == "spec.data.filterGroups.predicate is 'game:keep', which is int and not a function"


@pytest.mark.covers("workflows 2.1")
def test_options_of_a_built_in_workflow_are_looked_at_too(tmp_path: pathlib.Path) -> None:
    found = user_code.problems(spec(type="multi_turn_math", config={"numTurns": 0, "turns": 3}), tmp_path)
    assert found == [
        "spec.workflow.config.numTurns is 0: Input should be greater than or equal to 1",
        "spec.workflow.config.turns does not belong to workflow 'multi_turn_math'; remove it",
    ]


def test_a_built_in_workflow_needs_no_check(tmp_path: pathlib.Path) -> None:
    assert user_code.problems(spec(type="rlvr"), tmp_path) == []
