"""`gsm8k` and `clevr_count_70k`: every row of docs/design/graders.md#s-7-3, in both modes, and what is refused."""

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_api import enums, errors, process_config
from rljob_testing import grader_rows
from rljob_workers.verifier.graders import base, registry

R = enums.VerdictReason
ROWS = grader_rows.GSM8K


def make_grader(type_: str, config: dict[str, object], mode: str) -> base.Grader:
    reward = process_config.GraderConfig.model_validate({"name": "r", "type": type_, "mode": mode, "config": config})
    return registry.build([reward], registry.BUILT_IN)[0]


def graded(grader: base.Grader, completion: str, gold: object) -> base.Grade:
    grade = grader.quick(base.Answer(prompt="", completion=completion, columns={"answer": gold}))
    assert grade is not None
    return grade


@pytest.mark.covers("graders 7.1", "graders 7.2", "graders 7.3")
@pytest.mark.parametrize("mode", ["Compat", "Strict"])
@pytest.mark.parametrize(("type_", "config", "completion", "gold", "compat", "strict"), ROWS)
def test_row_has_the_verdict_of_its_mode(
    type_: str, config: dict[str, object], completion: str, gold: object, compat: int, strict: int, mode: str
) -> None:
    grade = graded(make_grader(type_, config, mode), completion, gold)
    assert grade.score == (compat if mode == "Compat" else strict)


@pytest.mark.covers("reading_an_answer")
@pytest.mark.parametrize(
    ("method", "completion", "gold", "expected"),
    [
        ("strict", "#### 3/4", "#### 3", 0), ("strict", "#### .5", "#### 0.5", 1), ("strict", "#### 0.5", "#### .5", 1),
        ("strict", "#### 1,2", "#### 12", 0), ("strict", "#### 12,34", "#### 1234", 0),
        ("strict", "#### 5, 6", "#### 5", 0),
        ("strict", "#### 5 million", "#### 5", 0), ("strict", "#### 5 apples", "#### 5", 1),
        ("strict", "#### 1 2", "#### 1", 0),
        ("strict", "#### \u22125", "#### -5", 1), ("strict", "#### \u22125", "#### 5", 0),
        ("strict", "#### 10^6", "#### 10", 0),
        ("strict", "#### 5 or 6", "#### 5", 0), ("strict", "#### 50%", "#### 50", 1),
        ("strict", "#### 7 hours", "#### 7", 1),
        # A gold that mode compat reads is not an error.
        ("strict", "#### 1234", "#### 12,34", 1), ("strict", "#### 5", "#### 5,", 1),
        ("flexible", "it is 2,3.5", "#### 23.5", 0), ("flexible", "\u22125", "#### 5", 0),
        ("flexible", ".5", "#### 0.5", 1),
        ("strict", "#### **72**", "#### 72", 1), ("strict", r"#### \boxed{72}", "#### 72", 1),
        ("strict", "#### 2**3", "#### 2", 0), ("strict", "#### **72** or 73", "#### 72", 0),
        ("flexible", "in all 72 million", "#### 72", 0), ("flexible", "we get 72x", "#### 72", 0),
        ("flexible", "it is 3/4", "#### 4", 0), ("flexible", "it is 2^6", "#### 6", 0),
        ("flexible", "5 or 6", "#### 6", 0),
        ("flexible", "at 7:45", "#### 45", 0), ("flexible", "the rest, 80-8", "#### -8", 0),
        ("flexible", "100 - 28", "#### 28", 0), ("flexible", "9 \u00d7 8", "#### 8", 0),
        ("flexible", "2**6", "#### 6", 0),
        ("flexible", "**72**", "#### 72", 1), ("flexible", "6 * 12 = 72!", "#### 72", 1),
        ("flexible", r"so \boxed{72}.", "#### 72", 1), ("flexible", "- 72 apples", "#### 72", 1),
        ("flexible", "it falls from 5 to -72.", "#### -72", 1), ("flexible", "It is $72.", "#### 72", 1),
        ("flexible", "It is 72, as I said.", "#### 72", 1), ("flexible", "72% of them", "#### 72", 1),
    ],
)  # fmt: skip
def test_number_is_read_whole_in_strict_mode(method: str, completion: str, gold: str, expected: int) -> None:
    assert graded(make_grader("gsm8k", {"method": method}, "Strict"), completion, gold).score == expected


@pytest.mark.covers("graders 7.1")
@pytest.mark.parametrize("mode", ["Compat", "Strict"])
@pytest.mark.parametrize(("type_", "completion"), [("gsm8k", "I give up"), ("gsm8k", "72"), ("clevr_count_70k", "3")])
def test_answer_in_another_form_is_no_answer(type_: str, completion: str, mode: str) -> None:
    grade = graded(make_grader(type_, {}, mode), completion, "#### 3" if type_ == "gsm8k" else "3")
    assert (grade.reason, grade.formatted) == (R.NO_ANSWER, False)


@pytest.mark.covers("graders 1")
def test_format_score_goes_to_a_found_but_wrong_answer_only() -> None:
    grader = make_grader("gsm8k", {"formatScore": 0.25}, "Strict")
    assert graded(grader, "#### 5", "#### 6").score == 0.25
    assert graded(grader, "five", "#### 6").score == 0.0


@pytest.mark.covers("graders 7.1")
@pytest.mark.parametrize("columns", [{}, {"answer": ""}, {"answer": []}, {"answer": "72"}])
def test_gold_without_a_mark_is_an_error_that_names_the_key(columns: dict[str, object]) -> None:
    with pytest.raises(errors.DataError, match="answer"):
        make_grader("gsm8k", {}, "Strict").check(columns)


@pytest.mark.parametrize(
    "config", [{"method": "other"}, {"formatScore": 2}, {"precision": 0}, {"answerFormat": "hashes"}]
)
def test_option_that_is_not_served_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(errors.ManifestError, match="config"):
        make_grader("gsm8k", config, "Strict")


@pytest.mark.covers("graders 7.2")
@hypothesis.given(value=st.integers(-(10**40), 10**40), other=st.integers(-(10**40), 10**40))
def test_strict_compares_values_whatever_the_commas(value: int, other: int) -> None:
    grader = make_grader("gsm8k", {}, "Strict")
    assert graded(grader, f"#### {other:,}", f"#### {value}").score == float(value == other)


@pytest.mark.covers("graders 3.2")
@pytest.mark.parametrize(
    "text", ["#" * 65536, "[" * 65536, "9," * 32768, "####" + " " * 65536, "#### " + "9" * 100_000]
)
def test_hostile_text_ends_without_reward(text: str) -> None:
    for type_, gold in (("gsm8k", "#### 5"), ("clevr_count_70k", "5")):
        assert graded(make_grader(type_, {}, "Strict"), text, gold).score == 0.0
