r"""Whatever a policy writes, the look that runs in the serving process ends at once, for every grader and mode."""

import time

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_api import process_config
from rljob_testing import attack_repositories, fuzzing
from rljob_workers.verifier.graders import base, registry

pytestmark = pytest.mark.timeout(fuzzing.TIMEOUT_S)
# CPU seconds of one look at 70,000 characters: 0.2 on an idle machine, and hours by a pattern that backtracks.
# Ordinary answers take under a thousandth.
MOST_S = 2.0
COLUMNS = {
    "answer": "#### 5",
    "solutions": [r"\boxed{5}", r"\boxed{(1,2)}", r"\boxed{x+1}"],
    "input_output": '{"inputs": ["1"], "outputs": ["1"]}',
    "metadata": {"source_dataset": "chain_sum"},
    "repository": attack_repositories.REPOSITORY,
    "id": "q",
}
CONFIGS: list[tuple[str, dict[str, object]]] = [
    ("exact", {}), ("math", {}), ("reasoning_gym", {}), ("code", {}), ("areal-code", {}), ("areal-math", {}),
    ("repository-tests", {}),
    ("gsm8k", {}), ("gsm8k", {"method": "flexible"}), ("gsm8k", {"method": "math_verify"}), ("clevr_count_70k", {}),
    ("clevr_count_70k", {"answerFormat": "hashes"}), ("boxed", {}), ("boxed", {"verifierVersion": "math_verify"}),
    ("answer_tag", {}), ("answer_tag", {"tagRule": "loose", "verifierVersion": "math_verify"}),
]  # fmt: skip
OWN = ("exact", "math", "reasoning_gym", "code", "repository-tests")
GRADERS = [
    (type_, config, mode)
    for type_, config in CONFIGS
    for mode in ("Strict", "Compat")
    if mode == "Strict" or type_ not in OWN
]
FRAGMENTS = [
    *"9 ( ) [ ] { } {( ! ^ 9^ 9! (9!)! 1/ , 1, ,000 . - $ $1 & # [1 = x= x ab".split(),  # noqa: SIM905
    *"% 1e9 __ ' e ```".split(),  # noqa: SIM905
    *r"\ \( \frac \frac{1} \sqrt{ \text{ \text{a} \left( \begin{pmatrix} \\ \boxed{ \boxed \%".split(),  # noqa: SIM905
    "million",
    "- ", " ", "\n", "#### ", "1 ", "<answer>", "</answer>", "</think> <answer>", "```py\n",
    "\n```py a/b.py\n# path: a\n", "\n```\n",
    "answer is ", "he answer is",
    "and ", "two ", "hundred ", "cm ", "5 cm", "m east", " or ", "\u7b54\u6848\u662f", "\x00", "\ud800", "\U0001f600",
]  # fmt: skip
WRAPPERS = ["{}", r"\boxed{{{}}}", "</think> <answer>{}</answer>", "#### {}", "[{}]", "The answer is {}", "${}$", "{}%"]


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Draw a text of up to 70,000 characters out of few fragments, wrapped as some grader wants it."""
    unit = "".join(draw(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4)))
    size = draw(st.sampled_from([10, 300, 1_000, 4_000, 5_000, 70_000]))
    tail = "".join(draw(st.lists(st.sampled_from(FRAGMENTS), max_size=3)))
    body = unit * (size // len(unit) + 1) + tail
    return draw(st.sampled_from(WRAPPERS)).format(body)


@pytest.mark.covers("graders 3.2")
@pytest.mark.parametrize(("type_", "config", "mode"), GRADERS, ids=lambda value: str(value))
@hypothesis.given(text=texts())
@fuzzing.settings
def test_quick_look_ends_at_once_and_never_raises(type_: str, config: dict[str, object], mode: str, text: str) -> None:
    reward = process_config.GraderConfig.model_validate({"name": "r", "type": type_, "mode": mode, "config": config})
    (grader,) = registry.build([reward], registry.BUILT_IN)
    answer = base.Answer(prompt="", completion=text, columns=COLUMNS)
    # What is imported at the first look is not the text's doing.
    base.guarded(grader.quick, base.Answer(prompt="", completion="", columns=COLUMNS))
    started_s = time.process_time()
    grade = base.guarded(grader.quick, answer)
    assert time.process_time() - started_s < MOST_S
    assert grade is None or grade.reason.value != "crash", grade
