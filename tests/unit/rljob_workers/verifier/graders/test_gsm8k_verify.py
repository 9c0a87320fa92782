r"""`gsm8k` with `method: math_verify`: every row of docs/design/graders.md#s-9, in both modes."""

import pytest

from rljob_api import enums, process_config
from rljob_testing import grader_rows
from rljob_workers.verifier.graders import base, gsm8k, registry

R = enums.VerdictReason
ROWS = grader_rows.GSM8K_VERIFY


@pytest.fixture(scope="module", params=["Compat", "Strict"])
def grader(request: pytest.FixtureRequest) -> base.Grader:
    config = {"name": "r", "type": "gsm8k", "mode": request.param, "config": {"method": "math_verify"}}
    made = registry.build([process_config.GraderConfig.model_validate(config)], registry.BUILT_IN)[0]
    assert isinstance(made, gsm8k.Gsm8kVerifyGrader)
    made.warm()
    return made


def answered(completion: str, gold: str) -> base.Answer:
    return base.Answer(prompt="", completion=completion, columns={"answer": gold})


@pytest.mark.covers("graders 9")
@pytest.mark.parametrize(("completion", "gold", "score"), ROWS)
def test_row_has_its_verdict(grader: base.Grader, completion: str, gold: str, score: int) -> None:
    assert grader.grade(answered(completion, gold)).score == score


@pytest.mark.covers("graders 9")
@pytest.mark.parametrize("completion", ["...", "I do not know"])
def test_completion_without_an_expression_is_no_answer(grader: base.Grader, completion: str) -> None:
    assert grader.grade(answered(completion, "#### 72")).reason is R.NO_ANSWER


@pytest.mark.parametrize(
    "text", ["(((((9!)!)!)!)!)", "it is 9^9^9^9", "9" * 6000, "(" * 500, "2**1000000", "__import__('os')", "1e999999"]
)
def test_text_with_a_huge_value_never_reaches_the_library(grader: base.Grader, text: str) -> None:
    grade = grader.quick(answered(f"The answer is {text}", "#### 72"))
    assert grade is not None
    assert (grade.score, grade.reason) == (0.0, R.PARSE_ERROR)
