"""A reward function of the user's own: how it is called, what it may return, what is refused."""

import contextlib
import math
import pathlib
from collections.abc import Callable

import pytest

from rljob_api import enums, errors, process_config, types
from rljob_api.manifest.base import Decimal
from rljob_workers.verifier import code_check, service
from rljob_workers.verifier.graders import base, custom, registry

R = enums.VerdictReason
FUNCTIONS = """
import asyncio, decimal

def length(query_id, prompt, completion, prompt_ids, completion_ids, **row):
    return len(completion_ids) + len(prompt_ids) / 10

def seen(query_id, prompt, completion, prompt_ids, completion_ids, **row):
    assert (query_id, prompt, completion) == ("q7", "2+3=", "5"), (query_id, prompt, completion)
    assert (prompt_ids, completion_ids) == ([1, 2, 3], [4, 5]), (prompt_ids, completion_ids)
    assert row == {"answer": "5", "level": 2, "id": "x"}, row
    return True

async def patient(completion, **row):
    await asyncio.sleep(0)
    return decimal.Decimal("0.5")

def named(completion, **row):
    return {"form": 1, "value": 0.5}

def configured(completion, config, **row):
    return config["bonus"]

def configured_in_row(completion, **row):
    return row["config"]["bonus"]

def raising(completion, **row):
    raise RuntimeError(completion)

def returning(answer, **row):
    return {"none": None, "text": "1", "nan": float("nan"), "infinite": float("inf"), "list": [1], "part": {"a": None},
            "nothing": {}}[answer]

def quoting(answer, **row):
    return {"text": "what was asked", "named by the answer": {"what was asked": 1.0}}[answer]

def narrow(prompt, completion, answer):
    return 1

number = 3
"""


@pytest.fixture
def make_grader(tmp_path: pathlib.Path) -> "MakeGrader":
    return MakeGrader(tmp_path / f"rewards_{tmp_path.name}.py")


class MakeGrader:
    """Makes graders of the functions above."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        path.write_text(FUNCTIONS)

    def __call__(self, function: str, **config: object) -> custom.CustomGrader:
        reward = process_config.GraderConfig(
            name="mine", type=f"{self.path.stem}:{function}", config=config, user_code=str(self.path)
        )
        (grader,) = registry.build([reward], registry.BUILT_IN)
        assert isinstance(grader, custom.CustomGrader)
        grader.warm()
        return grader


def answer(gold: str = "5") -> base.Answer:
    columns = {"query_id": "q7@idx:3-0", "id": "x", "prompt": "2+3", "answer": gold, "level": 2}
    return base.Answer(prompt="2+3=", completion="5", columns=columns, prompt_ids=(1, 2, 3), completion_ids=(4, 5))


@pytest.mark.covers("graders 2.3")
def test_function_sees_texts_ids_and_every_other_column(make_grader: MakeGrader) -> None:
    grade = make_grader("seen").grade(answer())
    assert (grade.score, grade.reason, grade.outcome) == (1.0, R.OK, enums.VerifyOutcome.PASS)


@pytest.mark.covers("graders 2.3")
@pytest.mark.parametrize(("function", "score"), [("length", 2.3), ("patient", 0.5), ("named", 1.5)])
def test_number_async_number_and_mapping_are_scores(make_grader: MakeGrader, function: str, score: float) -> None:
    assert make_grader(function).grade(answer()).score == pytest.approx(score)


@pytest.mark.covers("graders 2.3")
def test_mapping_is_weighted_by_the_manifest_and_its_members_become_parts(make_grader: MakeGrader) -> None:
    grade = make_grader("named", weights={"value": 4, "form": -1}).grade(answer())
    assert (grade.score, grade.parts) == (1.0, {"form": 1.0, "value": 0.5})
    with pytest.raises(errors.GraderError, match=r"named returned \['form', 'value'\].*'other'"):
        make_grader("named", weights={"other": 1}).grade(answer())


@pytest.mark.parametrize("function", ["configured", "configured_in_row"])
def test_config_is_handed_on_by_keyword(make_grader: MakeGrader, function: str) -> None:
    assert make_grader(function, bonus=0.25, weights={}).grade(answer()).score == 0.25


@pytest.mark.covers("graders 2.3")
@pytest.mark.parametrize("returned", ["none", "text", "nan", "infinite", "list", "part", "nothing"])
def test_other_return_value_is_an_error_that_names_the_function(make_grader: MakeGrader, returned: str) -> None:
    grader = make_grader("returning")
    with pytest.raises(errors.GraderError, match=":returning returned"):
        base.guarded(grader.grade, answer(returned))


@pytest.mark.parametrize("returned", ["text", "named by the answer"])
def test_what_the_function_returned_is_not_in_its_error(make_grader: MakeGrader, returned: str) -> None:
    with pytest.raises(errors.GraderError) as refused:
        make_grader("quoting").grade(answer(returned))
    assert "what was asked" not in str(refused.value)


def test_exception_in_the_function_is_a_verdict(make_grader: MakeGrader) -> None:
    grade = base.guarded(make_grader("raising").grade, answer())
    assert grade is not None
    assert (grade.score, grade.reason) == (0.0, R.CRASH)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("narrow", r"\*\*row by keyword, but its parameters are prompt"),
        ("number", "is not a function"),
        ("absent", "absent"),
    ],
)
def test_function_that_cannot_be_called_is_refused(make_grader: MakeGrader, function: str, message: str) -> None:
    with pytest.raises(errors.ManifestError, match=message):
        make_grader(function)


@pytest.mark.parametrize("weights", [3, {"a": "x"}, {"a": math.inf}, {"a": True}])
def test_weights_that_are_no_numbers_are_refused(make_grader: MakeGrader, weights: object) -> None:
    with pytest.raises(errors.ManifestError, match=r"config\.weights"):
        make_grader("named", weights=weights)


def test_record_without_an_id_is_an_error(make_grader: MakeGrader) -> None:
    with pytest.raises(errors.DataError, match="query_id"):
        make_grader("named").check({"answer": "5"})


@pytest.mark.covers("graders 1")
def test_mode_compat_reproduces_nothing(make_grader: MakeGrader) -> None:
    reward = process_config.GraderConfig(name="mine", type="rewards:named", mode="Compat")
    with pytest.raises(errors.ManifestError, match="no compat mode"):
        registry.build([reward], registry.BUILT_IN)


def test_check_of_a_file_says_where_it_fails(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken_reward.py"
    path.write_text("def reward(**row):\n    return 1\n\nimport no_such_module\n")
    assert code_check.main([str(path), "broken_reward:reward", "{}"]) == enums.ExitCode.BAD_INPUT
    assert f"error: {path}:4: ModuleNotFoundError" in capsys.readouterr().err
    path.write_text("def reward(**row):\n    return 1\n")
    assert code_check.main([str(path), "broken_reward:reward", "{}"]) == enums.ExitCode.OK


@pytest.mark.covers("graders 2.3")
async def test_worker_runs_the_function_and_its_error_reaches_the_caller(
    make_grader: MakeGrader,
    make_config: Callable[..., process_config.VerifierConfig],
    make_item: Callable[..., types.VerifyItem],
    running: Callable[..., contextlib.AbstractAsyncContextManager[service.Service]],
) -> None:
    path = make_grader.path
    path.write_text(
        "def reward(completion, answer, completion_ids, **row):\n"
        "    return {'right': completion == answer, 'ids': len(completion_ids)} if completion else None\n"
    )
    reward = process_config.GraderConfig(
        name="mine", type=f"{path.stem}:reward", weight=Decimal(2.0), user_code=str(path)
    )
    async with running(make_config(reward, wall_limit_s=60.0, num_slots=1)) as verifier:
        item = make_item("5", completion_ids=(7, 8, 9))
        (verdict,) = await verifier.grading.verify([item])
        assert (verdict.reward, verdict.parts) == (8.0, {"mine": 4.0, "mine.right": 1.0, "mine.ids": 3.0})
        with pytest.raises(errors.GraderError, match=f"{path.stem}:reward returned None"):
            await verifier.grading.verify([make_item("", sample_id="none")])
        (again,) = await verifier.grading.verify([make_item("6", sample_id="after")])
        assert again.parts["mine.right"] == 0.0
