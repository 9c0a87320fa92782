"""`exact`: trimmed text equality."""

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_api import enums, errors, process_config
from rljob_workers.verifier.graders import base, exact

R = enums.VerdictReason


def grade(completion: str, gold: object, **config: object) -> base.Grade:
    grader = exact.ExactGrader(process_config.GraderConfig(name="r", type="exact", config=config))
    return grader.grade(base.Answer(prompt="", completion=completion, columns={"answer": gold}))


@pytest.mark.parametrize(
    ("completion", "gold", "reason"),
    [
        (" 19\n", "19", R.OK),
        ("19", 19, R.OK),
        ("27.0", 27.0, R.OK),
        ("b", ["a", "b"], R.OK),
        ("19.0", "19", R.WRONG),
        ("19\n20", "19", R.WRONG),
        ("Yes", "yes", R.WRONG),
        (" \n\t", "19", R.NO_ANSWER),
        ("", "19", R.NO_ANSWER),
    ],
)
def test_whole_trimmed_completion_is_compared(completion: str, gold: object, reason: enums.VerdictReason) -> None:
    result = grade(completion, gold)
    assert result.reason is reason
    assert result.score == (1.0 if reason is R.OK else 0.0)


def test_first_line_option_ignores_what_follows_the_first_line_with_text() -> None:
    assert grade("\n 19 \n20", "19", firstLine=True).score == 1.0
    assert grade("18\n19", "19", firstLine=True).score == 0.0


def test_ignore_case_option_folds_both_sides() -> None:
    assert grade("YES", "yes", ignoreCase=True).score == 1.0


def test_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(errors.ManifestError, match="config.ignorecase"):
        grade("a", "a", ignorecase=True)


@hypothesis.given(text=st.text(min_size=1), padding=st.sampled_from(["", " ", "\n", "\t "]))
def test_an_answer_equals_itself_whatever_surrounds_it(text: str, padding: str) -> None:
    hypothesis.assume(text.strip())
    assert grade(padding + text + padding, text).score == 1.0
    assert grade(padding + text.strip() + "x" + padding, text).score == 0.0
