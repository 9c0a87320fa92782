r"""`math` against math-verify: the same verdicts on what math-verify publishes of itself, and the listed differences.

Each pair is judged by both: math-verify as its users call it, `math` in a warm grader. docs/reading_an_answer.md lists
the differences with their reasons; a row here that no longer differs fails, so that the list stays true.
"""

import math_verify
import pytest

from rljob_api import process_config
from rljob_testing import answer_pairs, examples
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.math import math_grader

PAGE = examples.ROOT / "docs/reading_an_answer.md"
# Completion, gold: kinds of answers that math-verify says it understands.
SAME = [
    ("so 7,425,000", "7425000"), ("1000.0", "1000"), ("which is 1,000.99€", "1000.99"), (r"Answer \[ 9 \]", "9"),
    (r"Answer \( (9+1) \)", "10"), ("Answer $ 9 $", "9"), (r"$\frac13$", "1/3"), (r"$\sqrt3$", r"\sqrt{3}"),
    (r"$k = \frac{1}{3}$", "1/3"), (r"$\frac{1}{3} \textbf{meters}$", "1/3"), ("28 percent", r"28\%"),
    ("28 %", r"28\%"), ("28", r"28\%"), ("28", "0.28"), ("0.28", r"28\%"),
    (r"\boxed{[0,1)}", "[0,9)"), (r"\boxed{(0,9)}", "[0,9)"), (r"\boxed{1,2}", r"\{1,2\}"), (r"\boxed{2,1}", "1,2"),
    (r"\boxed{x=5}", "5"), (r"\boxed{5}", "x=5"), (r"\boxed{x+y=3}", "3=x+y"), (r"\boxed{y=2x+1}", "2x-y+1=0"),
    (r"\boxed{x\in[1,2]}", "[1,2]"), (r"\boxed{3.14159}", r"\pi"),
    (r"\boxed{0.333333}", "1/3"), (r"\boxed{0.3333}", "1/3"), (r"\boxed{10^{-3}}", "0.001"),
    (r"\boxed{90^\circ}", "90"), (r"\boxed{\$5.00}", "5"), (r"\boxed{5 cm}", "5"), (r"\boxed{5\text{ cm}}", "5"),
    (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}"), (r"\boxed{(A)}", "A"),
    (r"\boxed{3\frac12}", "3.5"), (r"\boxed{\begin{bmatrix}1\\2\end{bmatrix}}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ("The answer is 42.", "42"), (r"\boxed{1/0}", "5"),
    (r"\boxed{\frac{x^2-1}{x-1}}", "x+1"), (r"\boxed{\sin^2 x+\cos^2 x}", "1"), (r"\boxed{\log_2 8}", "3"),
    (r"\boxed{5!}", "120"), (r"\boxed{\binom{5}{2}}", "10"), (r"\boxed{14{,}916}", "14916"),
    (r"\boxed{12\text{ and }13}", "12, 13"), (r"\boxed{1\pm\sqrt2}", r"1+\sqrt2,1-\sqrt2"), (r"\boxed{ab}", "ba"),
    (r"\boxed{1,23}", "1.23"), (r"\boxed{yes}", "no"),
    (r"\boxed{}", "5"), (r"\boxed{5", "5"),
    (r"\boxed{9^{9^{9}}}", "9^{9^9}"), (r"\boxed{0.333333x}", r"\frac{x}{3}"),
]  # fmt: skip
# Completion, gold, ours, math-verify's.
DIFFERENT = [
    ("it is 1 000", "1000", False, True),
    ("12,5", "12.5", False, True),
    (r"\boxed{3 1/2}", "7/2", True, False),
    (r"\boxed{41} no, \boxed{42}", "42", True, False),
    (r"\boxed{\sum_{n=1}^{3} n}", "6", False, True),
    (r"\boxed{5 ab}", "5", False, True),
    ("I think 5 or 6", "6", False, True),
    (r"\boxed{two}", "2", True, False),
    ("[0,1)", "[0,1)", True, False),
    (r"\boxed{x>3}", r"(3,\infty)", True, False),
    (r"\boxed{1,1,2}", "1,2", False, True),
    (r"\boxed{bca}", "abc", False, True),
]


@pytest.fixture(scope="module")
def grader() -> math_grader.MathGrader:
    made = math_grader.MathGrader(process_config.GraderConfig(name="r", type="math"))
    made.warm()
    return made


def ours(grader: math_grader.MathGrader, completion: str, gold: str) -> bool:
    return grader.grade(base.Answer(prompt="", completion=completion, columns={"answer": gold})).score == 1.0


def theirs(completion: str, gold: str) -> bool:
    return bool(math_verify.verify(math_verify.parse(f"${gold}$"), math_verify.parse(completion)))


@pytest.mark.parametrize(("completion", "gold"), SAME)
def test_published_behavior_is_shared(grader: math_grader.MathGrader, completion: str, gold: str) -> None:
    assert ours(grader, completion, gold) == theirs(completion, gold)


@pytest.mark.parametrize(("completion", "gold", "we", "they"), DIFFERENT)
def test_listed_difference_is_one(
    grader: math_grader.MathGrader, completion: str, gold: str, we: bool, they: bool
) -> None:
    assert (ours(grader, completion, gold), theirs(completion, gold)) == (we, they)
    assert f"`{completion}` against `{gold}`" in PAGE.read_text(), "list it with its reason"


@pytest.mark.covers("reading_an_answer")
def test_no_made_pair_is_judged_wrongly_and_math_verify_errs_in_each_direction(grader: math_grader.MathGrader) -> None:
    # A slice of `python -m tests.bench.reading`; the table of docs/reading_an_answer.md is of 20,000.
    pairs = answer_pairs.pairs(600, seed=7)
    assert len({pair.kind for pair in pairs}) == len(answer_pairs.MAKERS) + 1
    assert [pair for pair in pairs if ours(grader, pair.completion, pair.gold) != pair.right] == []
    others = {pair.right for pair in pairs[:200] if theirs(pair.completion, pair.gold) != pair.right}
    assert others == {True, False}
