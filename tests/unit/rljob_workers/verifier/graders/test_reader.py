r"""The reader of LaTeX and arithmetic: values worked by hand, what is outside its grammar, and arithmetic at random."""

from fractions import Fraction

import hypothesis
import pytest
import sympy
from hypothesis import strategies as st

from rljob_workers.verifier.graders.symbolic import reader

x, y = sympy.symbols("x y")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/2", sympy.Rational(1, 2)), (r"\frac12", sympy.Rational(1, 2)), (r"\dfrac{x}{2}", x / 2), ("-2^2", -4),
        ("2^{-3}", sympy.Rational(1, 8)), ("2^2^3", 256), ("5!", 120), ("-3!", -6), ("2xy^2", 2 * x * y**2),
        (".5", sympy.Rational(1, 2)),
        (r"\sqrt{12}", 2 * sympy.sqrt(3)), (r"\sqrt[3]{8}", 2), (r"2\pi", 2 * sympy.pi), ("|-3|", 3), ("(1,2)", (1, 2)),
        (r"\sin^2(x)", sympy.sin(x) ** 2), (r"\log_2{8}", 3), (r"3\cdot4\times5", 60), (r"i^2", -1), ("x**2", x**2),
        (r"\infty", sympy.oo), (r"e^x", sympy.exp(x)), (r"\{2,1\}", {1, 2}), ("(x+1)(x-1)", (x + 1) * (x - 1)),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", sympy.Matrix([[1, 2], [3, 4]])), ("6/2*3", 9), ("1-2-3", -4),
        ("x_1+x_{1}", 2 * sympy.Symbol("x_1")),
    ],
)  # fmt: skip
def test_text_becomes_the_value_that_mathematics_gives_it(text: str, value: object) -> None:
    node = reader.read(text)
    assert node is not None
    # The values of this table are our own, not text of a policy.
    expected = sympy.sympify(value)
    assert node == expected or sympy.simplify(node - expected) == 0


@pytest.mark.covers("graders 2.1", "graders 3.1")
@pytest.mark.parametrize(
    "text",
    [
        "", "1+", "(", ")", "1/0", r"\frac{1}{0}", "x.y", "x'", '"x"', "x__class__", "a;b", "`ls`", "x[0", r"\input{x}",
        "9!!!", "2^{2^{2^{2}}}", "9" * 1001, "(" * 65 + ")" * 65, "exec", "lambda", "\\", "^2", "\u0660",
    ],
)  # fmt: skip
def test_text_outside_the_grammar_or_over_a_bound_is_not_read(text: str) -> None:
    assert reader.read(text) is None


@pytest.mark.covers("graders 3.1")
@hypothesis.given(st.text(alphabet="0123456789.+-*/^!(){}[]xyie,=<>|\\ _&fracsqt", max_size=24))
@hypothesis.settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_refused_and_never_raises(text: str) -> None:
    reader.read(text)


_SUMS = st.recursive(
    st.integers(0, 99).map(lambda value: (str(value), Fraction(value))),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
        lambda parts: (
            f"({parts[0][0]}{parts[1]}{parts[2][0]})",
            {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__}[parts[1]](parts[0][1], parts[2][1]),
        )
    ),
    max_leaves=8,
)


@hypothesis.given(_SUMS, st.integers(1, 99))
@hypothesis.settings(max_examples=100, deadline=None)
def test_arithmetic_has_its_exact_value(written: tuple[str, Fraction], divisor: int) -> None:
    text, value = written
    expected = value / divisor
    assert reader.read(rf"\frac{{{text}}}{{{divisor}}}") == sympy.Rational(expected.numerator, expected.denominator)
