r"""Each grader: a right answer, a wrong one, an absent one, and records that it cannot grade
(docs/design/graders.md#s-11).

What ends a worker, and what an answer over its limit gets, is the same for all of them: see test_pool and
test_worker_process.
"""

import dataclasses
import json
from collections.abc import Mapping

import pytest

from rljob_api import enums, errors, process_config
from rljob_testing import attack_repositories
from rljob_workers.verifier.graders import base, registry

R = enums.VerdictReason
ANSWER = {"answer": "5"}
NO_GOLD: tuple[Mapping[str, object], ...] = ({}, {"answer": ""}, {"answer": []}, {"answer": {"a": 1}})
NO_SOLUTION: tuple[Mapping[str, object], ...] = ({}, {"solutions": []}, {"solutions": [""]}, {"solutions": ["none"]})
SUM = json.dumps({"inputs": ["1 2"], "outputs": ["3"]})
NO_TESTS: tuple[Mapping[str, object], ...] = (
    {},
    {"input_output": "{}"},
    {"input_output": '{"inputs": [], "outputs": []}'},
)
REPOSITORY = attack_repositories.REPOSITORY
NO_REPOSITORY: tuple[Mapping[str, object], ...] = (
    {},
    {"repository": {**REPOSITORY, "tests": []}},
    {"repository": {**REPOSITORY, "test_files": {}}},
)
GYM = {"answer": "5", "question": "2 + 3", "metadata": {"source_dataset": "chain_sum"}}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A grader and what it is shown."""

    type: str
    record: Mapping[str, object]
    right: str
    wrong: str
    absent: str
    refused: tuple[Mapping[str, object], ...]
    config: Mapping[str, object] = dataclasses.field(default_factory=dict)
    modes: tuple[str, ...] = ("Strict", "Compat")


PROGRAM = "```python\n# adds what it is given\n{}\n```"
SHEETS = [
    Sheet(type="exact", record=ANSWER, right="5", wrong="6", absent=" ", refused=NO_GOLD, modes=("Strict",)),
    Sheet(
        type="math", record=ANSWER, right=r"\boxed{5}", wrong=r"\boxed{6}", absent="?", refused=NO_GOLD,
        modes=("Strict",),
    ),
    Sheet(
        type="reasoning_gym", record=GYM, right="<answer>5</answer>", wrong="<answer>6</answer>", absent="5",
        refused=({}, {"answer": "5"}, {"answer": "5", "metadata": {}}), config={"requireTags": True},
        modes=("Strict",),
    ),
    Sheet(
        type="code", record={"input_output": SUM}, right=PROGRAM.format("print(sum(map(int, input().split())))"),
        wrong=PROGRAM.format("print(4)"), absent="print(3)", refused=NO_TESTS, modes=("Strict",),
    ),
    Sheet(
        type="areal-code", record={"input_output": SUM}, right=PROGRAM.format("print(sum(map(int, input().split())))"),
        wrong=PROGRAM.format("print(4)"), absent="print(3)", refused=NO_TESTS,
    ),
    Sheet(
        type="repository-tests", record={"repository": json.dumps(REPOSITORY)},
        right=attack_repositories.completion(attack_repositories.RIGHT),
        wrong=attack_repositories.completion(attack_repositories.WRONG), absent="```python\nreturn a + b\n```",
        refused=NO_REPOSITORY, modes=("Strict",),
    ),
    Sheet(
        type="areal-math", record={"solutions": [r"\boxed{5}"]}, right=r"\boxed{5}", wrong=r"\boxed{6}", absent="five",
        refused=NO_SOLUTION,
    ),
    Sheet(
        type="gsm8k", record={"answer": "#### 5"}, right="#### 5", wrong="#### 6", absent="5",
        refused=(*NO_GOLD, {"answer": "5"}),
    ),
    Sheet(
        type="gsm8k", record={"answer": "#### 5"}, right="so 5", wrong="so 6", absent="so",
        config={"method": "flexible"}, refused=(*NO_GOLD, {"answer": "5"}),
    ),
    Sheet(
        type="gsm8k", record={"answer": "#### 5"}, right="so 5", wrong="so 6", absent="...",
        config={"method": "math_verify"}, refused=NO_GOLD,
    ),
    Sheet(type="clevr_count_70k", record={"answer": 5}, right="[5]", wrong="[6]", absent="5", refused=NO_GOLD),
    Sheet(
        type="clevr_count_70k", record={"answer": "#### 5"}, right="#### 5", wrong="#### 6", absent="[5]",
        config={"answerFormat": "hashes"}, refused=(*NO_GOLD, {"answer": "5"}),
    ),
    Sheet(type="boxed", record=ANSWER, right=r"\boxed{5}", wrong=r"\boxed{6}", absent="5", refused=NO_GOLD),
    Sheet(
        type="boxed", record=ANSWER, right=r"\boxed{5}", wrong=r"\boxed{6}", absent="5", refused=NO_GOLD,
        config={"verifierVersion": "math_verify"},
    ),
    Sheet(
        type="answer_tag", record=ANSWER, right="</think> <answer>5</answer>", wrong="</think> <answer>6</answer>",
        absent="<answer>5</answer>", refused=NO_GOLD,
    ),
    Sheet(
        type="answer_tag", record=ANSWER, right="<answer>5</answer>", wrong="<answer>6</answer>", absent="5",
        config={"tagRule": "loose"}, refused=NO_GOLD,
    ),
]  # fmt: skip
CASES = [(sheet, mode) for sheet in SHEETS for mode in sheet.modes]
IDS = ["-".join([sheet.type, *map(str, sheet.config.values()), mode]) for sheet, mode in CASES]


def make_grader(sheet: Sheet, mode: str) -> base.Grader:
    reward = {"name": "r", "type": sheet.type, "mode": mode, "config": sheet.config, "wall_limit_s": 100.0}
    (grader,) = registry.build([process_config.GraderConfig.model_validate(reward)], registry.BUILT_IN)
    return grader


@pytest.mark.covers("graders 1", "graders 11")
@pytest.mark.parametrize(("sheet", "mode"), CASES, ids=IDS)
def test_right_wrong_and_absent_answers_are_told_apart(sheet: Sheet, mode: str) -> None:
    grader = make_grader(sheet, mode)
    grader.check(sheet.record)
    grader.warm()
    for completion, score, reason in (
        (sheet.right, 1.0, R.OK),
        (sheet.wrong, 0.0, R.WRONG),
        (sheet.absent, 0.0, R.NO_ANSWER),
    ):
        grade = grader.grade(base.Answer(prompt="", completion=completion, columns=sheet.record))
        assert (grade.score, grade.reason) == (score, reason)
        assert grade.formatted is (reason is not R.NO_ANSWER)


@pytest.mark.covers("graders 11")
@pytest.mark.parametrize(("sheet", "mode"), CASES, ids=IDS)
def test_record_without_a_usable_gold_is_an_error_and_no_zero(sheet: Sheet, mode: str) -> None:
    grader = make_grader(sheet, mode)
    for columns in sheet.refused:
        with pytest.raises(errors.DataError):
            grader.check(columns)


def test_every_built_in_grader_has_a_sheet() -> None:
    assert {sheet.type for sheet in SHEETS} == set(registry.BUILT_IN)
