"""Where the answer is in a completion."""

import time

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_workers.verifier.graders.math import spans


@pytest.mark.covers("sandbox A-58")
@pytest.mark.parametrize(
    ("completion", "text", "formatted"),
    [
        (r"so \boxed{5}", "5", True),
        (r"\boxed{1}, no: \boxed{2}", "2", True),
        (r"\boxed{\frac{1}{2}} as asked", r"\frac{1}{2}", True),
        (r"\boxed {7}", "7", True),
        (r"\boxed{a\}b}", r"a\}b", True),
        ("The answer is 72.", "72", True),
        ("The answer is 72 apples, because 5+7", r"72\text{ apples}", True),
        ("**Answer:** $x+1$, see above 5", "x+1", True),
        ("The answer is: Yes.", "Yes", True),
        ("6 x 12 = 72\n#### 72", "72", True),
        ("I get 7, then 1,234.", "1,234", False),
        ("first 3/4 then -2.5", "-2.5", False),
        (r"thus $\frac12$.", r"\frac12", False),
        ("version a1b2 has 40%", "40%", False),
    ],
)
def test_answer_is_found(completion: str, text: str, formatted: bool) -> None:
    assert spans.find_answer(completion, boxed_only=False) == spans.Extracted(text=text, formatted=formatted)


@pytest.mark.parametrize(
    "completion",
    ["", "no number here", r"\boxed{}", r"\boxed{1} and \boxed{2", r"\boxed{ }"],
    ids=["empty", "words", "empty box", "last box is open", "blank box"],
)
def test_there_is_no_answer(completion: str) -> None:
    assert spans.find_answer(completion, boxed_only=False) is None


def test_boxed_only_looks_nowhere_else() -> None:
    assert spans.find_answer("The answer is 72", boxed_only=True) is None
    assert spans.find_answer(r"\boxed{72}", boxed_only=True) == spans.Extracted(text="72", formatted=True)


def test_only_the_end_of_a_long_completion_is_looked_at() -> None:
    assert spans.find_answer(r"\boxed{5}" + " " * (64 << 10), boxed_only=True) is None
    assert spans.find_answer(" " * (1 << 20) + r"\boxed{5}", boxed_only=True) is not None


@pytest.mark.parametrize(
    ("gold", "text"), [(r"so \boxed{5}", "5"), ("6 x 12 = 72\n#### 72", "72"), (r"\frac12", r"\frac12")]
)
def test_gold_is_unboxed(gold: str, text: str) -> None:
    assert spans.unbox(gold) == text


@pytest.mark.covers("graders 3.2", "sandbox A-64")
@pytest.mark.parametrize(
    "pattern",
    ["{", "}", "$", "\\", "\\boxed{", "\\boxed{{", "answer is", "answer is ", "####", "1", "1,", "1.", "1/", "$1", " "],
)
def test_adversarial_text_takes_linear_time(pattern: str) -> None:
    text = pattern * ((64 << 10) // len(pattern))
    started_s = time.process_time()
    spans.find_answer(text, boxed_only=False)
    assert time.process_time() - started_s < 0.25


@hypothesis.given(before=st.text(max_size=50), content=st.from_regex(r"[0-9a-z+\-^ ]{1,20}", fullmatch=True))
def test_closed_box_at_the_end_is_always_found(before: str, content: str) -> None:
    hypothesis.assume(content.strip())
    found = spans.find_answer(f"{before} \\boxed{{{content}}}", boxed_only=True)
    assert found == spans.Extracted(text=content.strip(), formatted=True)
