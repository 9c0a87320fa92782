"""Spellings of one value, and values of plain numbers."""

import time
from fractions import Fraction

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_workers.verifier.graders import normalise


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234", Fraction(1234)),
        ("-1,234.50", Fraction(-2469, 2)),
        (r"\frac12", Fraction(1, 2)),
        (r"-\dfrac{1}{2}", Fraction(-1, 2)),
        (r"3\frac{1}{2}", Fraction(7, 2)),
        ("3 1/2", Fraction(7, 2)),
        ("-3 1/2", Fraction(-7, 2)),
        ("31/2", Fraction(31, 2)),
        (r"50\%", Fraction(1, 2)),
        (r"\$5", Fraction(5)),
        (r"5\text{ cm}", Fraction(5)),
        (r"5\text{ m}^2", Fraction(5)),
        ("x = 5", Fraction(5)),
        (".5", Fraction(1, 2)),
        ("12.", Fraction(12)),
        ("{7}", Fraction(7)),
        ("+3", Fraction(3)),
        ("\u22125", Fraction(-5)),
        (r"90^\circ", Fraction(90)),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_plain_number_has_its_exact_value(text: str, value: Fraction) -> None:
    assert normalise.rational(normalise.normalise(text)) == value


@pytest.mark.parametrize(
    "text", ["1/0", r"\frac{1}{0}", "x", "1,23", "(1,234)", "1 234", "2^10", "", "1e3", "٣", "9" * 1001]
)
def test_anything_else_is_no_plain_number(text: str) -> None:
    assert normalise.rational(normalise.normalise(text)) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\left( 1, 2 \right)", "(1,2)"),
        (r"\text{Yes}", "Yes"),
        (r"2\cdot x", "2 \u00d7 x"),
        (r"x \leq 3", "x≤3"),
        (r"\tfrac{a}{b}", r"\frac{a}{b}"),
    ],
)
def test_spellings_of_one_value_become_one(one: str, other: str) -> None:
    assert normalise.normalise(one) == normalise.normalise(other)


def test_list_of_numbers_keeps_its_commas() -> None:
    assert normalise.normalise("1,234, 5") == "1,234,5"
    assert normalise.normalise("1,2") == "1,2"


@hypothesis.given(value=st.fractions())
def test_fraction_written_out_is_read_back(value: Fraction) -> None:
    assert normalise.rational(f"{value.numerator}/{value.denominator}") == value
    assert normalise.rational(normalise.normalise(rf"\frac{{{value.numerator}}}{{{value.denominator}}}")) == value


@hypothesis.given(value=st.integers(-(10**12), 10**12))
def test_thousands_commas_do_not_change_an_integer(value: int) -> None:
    assert normalise.rational(normalise.normalise(f"{value:,}")) == value


@hypothesis.given(text=st.text(max_size=200))
def test_normalising_any_text_ends_and_is_bounded(text: str) -> None:
    assert len(normalise.normalise(text)) <= 8 * len(text) + 8


@pytest.mark.parametrize("pattern", ["{", "}", " ", "1 ", "1,", r"\text{", r"\frac1", "$", "\\", "1,234", "\\text{a}"])
def test_adversarial_text_takes_linear_time(pattern: str) -> None:
    text = pattern * ((64 << 10) // len(pattern))
    started_s = time.process_time()
    normalise.rational(normalise.normalise(text))
    assert time.process_time() - started_s < 0.1
