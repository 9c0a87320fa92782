r"""Polynomials are read exactly or not at all, and compared by value."""

import time
from fractions import Fraction

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_workers.verifier.graders import polynomials


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("x^2+2x+1", "(x+1)^2"), ("x^{2}-1", "(x-1)(x+1)"), ("-x^2", "0-x*x"), (r"\frac{x+1}{2}", r"x/2+1/2"),
        (r"\frac{1}{2}x", "0.5x"), ("2xy", "yx+xy"), (r"3\times(x)", "x+x+x"), ("--x", "x"), ("[x+1](2)", "2x+2"),
        ("(x+y)^3", "x^3+3x^2y+3xy^2+y^3"), ("x^0", "1"), ("n(n+1)/2", r"\frac{n^2+n}{2}"),
    ],
)  # fmt: skip
def test_same_polynomials_are_the_same(ours: str, theirs: str) -> None:
    left, right = polynomials.read(ours), polynomials.read(theirs)
    assert left is not None
    assert right is not None
    assert polynomials.difference(left, right) == {}


@pytest.mark.parametrize(
    ("ours", "theirs"), [("x+1", "x+2"), ("x", "y"), ("x^2", "x^3"), ("a+b", "c+b"), ("A", "a"), ("2x", "2")]
)
def test_other_polynomials_differ(ours: str, theirs: str) -> None:
    left, right = polynomials.read(ours), polynomials.read(theirs)
    assert left is not None
    assert right is not None
    assert polynomials.difference(left, right)


@pytest.mark.parametrize(
    "text",
    [
        "", "x=1", "1,2", "x^y", "x^{-1}", "1/x", "1/2x", "x2", "2^2^2", "x^{99}", "e^2", "i", r"\sqrt{x}", "x!", "(x",
        "x)", "(x]", "+", "x+", "x**2", "1/0", r"\frac{1}{0}", "x" * 201, "(" * 17 + "x" + ")" * 17, "x_1", "50%",
        "(a+b+c+d+f+g+h)^{16}", "9^{16}^2", "__import__",
    ],
)  # fmt: skip
def test_anything_else_is_not_read(text: str) -> None:
    assert polynomials.read(text) is None


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[str, Fraction]:
    """Draw a text and its value at x = 3/7, y = -5."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        number = draw(st.integers(0, 99))
        return draw(st.sampled_from([(str(number), Fraction(number)), ("x", Fraction(3, 7)), ("y", Fraction(-5))]))
    (one, first), (other, second) = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    kind = draw(st.sampled_from("+-*^"))
    if kind == "^":
        power = draw(st.integers(0, 3))
        return f"({one})^{power}", first**power
    values = {"+": first + second, "-": first - second, "*": first * second}
    return f"({one}){kind}({other})", values[kind]


@hypothesis.given(drawn=expressions())
def test_value_at_a_point_is_that_of_the_text(drawn: tuple[str, Fraction]) -> None:
    text, value = drawn
    found = polynomials.read(text)
    hypothesis.assume(found is not None)
    assert found is not None
    at = {"x": Fraction(3, 7), "y": Fraction(-5)}
    total = Fraction(0)
    for monomial, coefficient in found.items():
        for letter, power in monomial:
            coefficient *= at[letter] ** power
        total += coefficient
    assert total == value


@hypothesis.given(st.text(alphabet="x12()^+-*/{}.ab\\frac", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    polynomials.read(text)


HOSTILE = [
    "(a+b+c+d)^{16}" * 10, "((((a+b)^9+c)^9+d)^9+f)^9", "9" * 200, "(x+1)^{16}" * 15, "(99x+99)^{16}" * 12,
    "(x+1)^{16}(x-1)^{16}(x+2)^{16}+" * 6 + "1", "((x+1)^{15})^4*" * 11 + "1", "(a+b)^7(c+d)^6*" * 12 + "1",
    "(" * 15 + "x" + "+1)^2" * 15, "((((x+1)^2)^2)^2)^2" * 10, "(1/7x)^{16}" * 15,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_ends_at_once(text: str) -> None:
    started_s = time.process_time()
    polynomials.read(text)
    assert time.process_time() - started_s < 0.1
