"""`math`: right, wrong, absent, and every stage of the ladder. In one process, with the real symbolic engine."""

import re

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_api import enums, errors, process_config
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.math import math_grader
from rljob_workers.verifier.graders.symbolic import library

R = enums.VerdictReason


def make_grader(**config: object) -> math_grader.MathGrader:
    return math_grader.MathGrader(process_config.GraderConfig(name="r", type="math", config=config))


def answered(completion: str, gold: object) -> base.Answer:
    return base.Answer(prompt="", completion=completion, columns={"answer": gold})


@pytest.fixture(scope="module")
def grader() -> math_grader.MathGrader:
    warm = make_grader()
    warm.warm()
    return warm


@pytest.mark.parametrize(
    ("boxed", "gold"),
    [
        ("5", "5"), ("5", 5), ("27", 27.0), (r"\frac12", "0.5"), (".25", "1/4"), (r"50\%", "0.5"), ("x=5", "5"),
        (r"5\text{ cm}", "5"), (r"\text{Yes}", "yes"), ("1,234", "1234"), ("3 1/2", "3.5"), ("3.0", "3"),
        ("x^2+2x+1", "(x+1)^2"), ("10^3", "1000"), ("0.1+0.2", "0.3"), (r"\frac{x-1}{2}", "0.5x-0.5"), ("2xy", "yx*2"),
        (r"\{2,1\}", r"\{1,2\}"), ("5!", "120"), (r"\binom{5}{2}", "10"), ("3>x", "x<3"), ("2 r \\pi", r"2\pi r"),
        (r"\frac{x}{x}", "1"), ("b", ["a", "b"]), ("72", "6 x 12 = 72\n#### 72"), (r"\boxed{5}", r"so \boxed{5}"),
    ],
)  # fmt: skip
def test_equal_answers_are_found_without_a_worker(boxed: str, gold: object) -> None:
    grade = make_grader().quick(answered(rf"so \boxed{{{boxed}}}", gold))
    assert grade is not None
    assert (grade.score, grade.reason, grade.formatted) == (1.0, R.OK, True)


@pytest.mark.parametrize(
    ("boxed", "gold"),
    [
        (r"2\sqrt{2}", r"\sqrt{8}"), ("0.333333", "1/3"), (r"\sin 30^\circ", "1/2"), (r"e^{i\pi}", "-1"),
        ("2x-y+1=0", "y=2x+1"), (r"\ln 4", r"2\ln 2"), ("2^x 2^y", "2^{x+y}"),
    ],
)  # fmt: skip
def test_roots_functions_and_equations_are_evaluated_in_a_worker(
    grader: math_grader.MathGrader, boxed: str, gold: str
) -> None:
    answer = answered(rf"\boxed{{{boxed}}}", gold)
    assert grader.quick(answer) is None
    assert grader.grade(answer).reason is R.OK


@pytest.mark.parametrize(
    ("boxed", "gold"),
    [
        ("6", "5"), ("50", "5000"), ("(1,2)", "[1,2]"), ("s^2", "m^2"), ("a+b", "c+b"), ("x+c", "x+s"),
        ("2.23", "2.232"),
        ("0.3333", "1/3"), ("31/2", "3 1/2"), ("50%", "50"), ("silent", "listen"), (r"\frac{1}{3}", r"\frac{1}{2}"),
        ("x", "0"), ("5", ["6", "7"]),
    ],
)  # fmt: skip
def test_other_values_are_wrong(grader: math_grader.MathGrader, boxed: str, gold: object) -> None:
    grade = grader.grade(answered(rf"\boxed{{{boxed}}}", gold))
    assert (grade.score, grade.reason) == (0.0, R.WRONG)
    assert grade.extracted == boxed


@pytest.mark.parametrize("completion", ["", "I do not know", r"\boxed{}", r"\boxed{5"])
def test_absent_answer_is_no_answer(grader: math_grader.MathGrader, completion: str) -> None:
    grade = grader.grade(answered(completion, "5"))
    assert (grade.score, grade.reason) == (0.0, R.NO_ANSWER)


@pytest.mark.covers("graders 2.1")
def test_gold_never_shows_in_a_grade(grader: math_grader.MathGrader) -> None:
    grade = grader.grade(answered(r"\boxed{6}", "987654321"))
    assert "987654321" not in grade.extracted + grade.detail


@pytest.mark.parametrize("columns", [{}, {"answer": ""}, {"answer": []}, {"answer": None}])
def test_missing_gold_is_an_error_and_no_zero(columns: dict[str, object]) -> None:
    with pytest.raises(errors.DataError, match="answer"):
        make_grader().check(columns)


def test_boxed_only_option_wants_a_box() -> None:
    grade = make_grader(boxedOnly=True).quick(answered("The answer is 5", "5"))
    assert grade is not None
    assert grade.reason is R.NO_ANSWER


@pytest.mark.covers("graders 2.1")
def test_answer_outside_a_box_counts_but_is_unformatted() -> None:
    grade = make_grader().quick(answered("so I get 5", "5"))
    assert grade is not None
    assert (grade.score, grade.formatted) == (1.0, False)


@pytest.mark.covers("graders 3.2")
def test_overlong_answer_matches_by_text_only() -> None:
    text = "1+" * 4000 + "1"
    right = make_grader().quick(answered(rf"\boxed{{{text}}}", text))
    wrong = make_grader().quick(answered(rf"\boxed{{{text}}}", "5"))
    assert right is not None
    assert right.reason is R.OK
    assert wrong is not None
    assert wrong.reason is R.PARSE_ERROR


@hypothesis.given(value=st.integers(), other=st.integers())
def test_integers_are_decided_by_value_alone_and_at_once(value: int, other: int) -> None:
    grade = make_grader().quick(answered(f"The answer is {other:,}.", str(value)))
    assert grade is not None
    assert grade.score == (1.0 if value == other else 0.0)


class RecordedError(Exception):
    """Ends the evaluation that is being recorded."""


@pytest.mark.covers("graders 3.1")
@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch owned')", "open('owned','w')", "1+__import__('os').getpid()", "(1).__class__",
        "1 + exec('x')", "2*(3+abs(4))", "1+1 for x in y", "0x10+0x20", "1_000+1", "10j+1", "1e5+1", "3+4",
    ],
)  # fmt: skip
def test_math_verify_hands_only_digits_and_operators_to_an_evaluator(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import math_verify
    import math_verify.parser

    seen: list[str] = []

    def record(expression: str, **_: object) -> None:
        seen.append(expression)
        raise RecordedError

    monkeypatch.setattr(math_verify.parser, "parse_expr", record)
    monkeypatch.setattr(math_verify.parser, "parse_expr_cached", math_verify.parser.parse_expr_cached.__wrapped__)
    for wrapped in (text, f"${text}$", f"= {text} ", f"answer: {text}"):
        math_verify.parse(wrapped, parsing_timeout=None)
    assert all(re.fullmatch(r"[0-9.\s+\-*\u00d7/÷()]*", expression) for expression in seen), seen
    if text == "3+4":
        assert seen, "the recorder is in the path that it means to watch"


@pytest.mark.covers("graders 3.1")
def test_math_verify_is_the_version_whose_evaluator_was_read() -> None:
    import importlib.metadata

    assert importlib.metadata.version("math-verify") == "0.8.0"


FORMULAS = [
    ("x^2+4x+4", "(x+2)^2"), ("x^2+4x+3", "(x+2)^2"), ("2n+1", "2k+1"), ("3x-5", "3x-5"), ("A", "B"), ("A", "A"),
    ("x", "-x"), (r"\frac{x}{2}", r"\frac{1}{2}x"), ("2(x+y)", "2x+2y"), ("x^3-1", "(x-1)(x^2+x+1)"), ("n(n+1)", "n^2"),
    ("a+b", "b+a"), ("2ab", "a^2+b^2"), ("7", "x"), ("x^2", "x^4"), ("10^6", "1000000"), ("2^{10}", "1024"),
    ("100x", "100x+1"),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs"), FORMULAS)
def test_what_is_decided_as_a_polynomial_is_what_math_verify_says(
    grader: math_grader.MathGrader, ours: str, theirs: str
) -> None:
    decided = grader.quick(answered(rf"\boxed{{{ours}}}", theirs))
    assert decided is not None, "no worker is asked"
    assert decided.score == float(library.MathVerify().compare([theirs], ours) is True)
