r"""The example tables of docs/design/graders.md as data, for every path to a verdict."""

import dataclasses
from collections.abc import Iterator, Mapping

from rljob_api import process_config

# Completion, gold, compat (None: the original's verdict depends on the release of its parser), strict.
AREAL_MATH = [
    (r"\boxed{0.5}", r"\boxed{\frac12}", 1, 1),
    (r"\boxed{5000}", r"\boxed{50}", 1, 0),
    (r"\boxed{100.001}", r"\boxed{100}", 1, 1),
    (r"\boxed{1,000}", r"\boxed{1000}", 1, 1),
    (r"\boxed{[1,2]}", r"\boxed{(1,2)}", 1, 0),
    (r"\boxed{two}", r"\boxed{2}", 1, 1),
    (r"\boxed{x^2+2x+1}", r"\boxed{(x+1)^2}", 1, 1),
    (r"\boxed{3\frac12}", r"\boxed{7/2}", None, 1),
    (r"\boxed{x+y=3}", r"\boxed{3=x+y}", 0, 1),
    (r"\boxed{a+b}", r"\boxed{b+a}", None, 1),
    ("The answer is 42.", r"\boxed{42}", 1, 1),
    (r"first \boxed{41} then \boxed{42}", r"\boxed{42}", 1, 1),
    (r"\boxed{a+b}", r"\boxed{c+b}", 1, 0),
    (r"\boxed{m^2}", r"\boxed{s^2}", 1, 0),
    (r"\boxed{__import__('pathlib').Path('owned').write_text('x')}", r"\boxed{5}", 0, 0),
    (r"\boxed{100001}", r"\boxed{100000}", 1, 0),
    (r"\boxed{(1,2]}", r"\boxed{[1,2)}", 1, 0),
    (r"\boxed{\{1,2\}}", r"\boxed{(1,2)}", 1, 0),
    (r"\boxed{5 cm}", r"\boxed{5}", 1, 1),
    (r"\boxed{n=5}", r"\boxed{5}", 1, 1),
    (r"\boxed{2,1}", r"\boxed{1,2}", 0, 0),
    (r"\boxed{0.33333}", r"\boxed{1/3}", 1, 1),
    (r"\boxed{3.14159}", r"\boxed{\pi}", 0, 0),
    (r"\boxed{42}", "we get 7*6=42.", 1, 1),
]

IO = '{"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}'
# Answer in a fenced block, tests, compat, strict, case results, error code.
AREAL_CODE = [
    ("a, b = map(int, input().split())\nprint(a + b)", IO, 1, 1, (1, 1), None),
    ("a, b = map(int, input().split())\nprint(str(a + b) + ' ')", IO, 1, 1, (1, 1), None),
    (
        "a, b = map(float, input().split())\nprint(a + b)",
        '{"inputs": ["0.1 0.2"], "outputs": ["0.3"]}', 1, 1, (1,), None,
    ),
    (
        "first = input()\nsecond = input()\nprint(second)\nprint(first)",
        r'{"inputs": ["a\nb"], "outputs": ["a\nb"]}', 0, 0, (0,), -2,
    ),
    ("import sys\na, b = map(int, input().split())\nprint(a + b)\nsys.exit()", IO, 1, 1, (1, 1), None),
    ("a, b = map(int, input().split())\nwhile True:\n    pass", IO, 0, 0, (-1,), -3),
    ("The sum is a + b.", IO, 0, 0, (0, 0), None),
    (
        "def first(a):\n    return a[0]\n# one value",
        '{"fn_name": "first", "inputs": ["[1, 2]"], "outputs": ["[1]"]}', 1, 1, (1,), None,
    ),
]  # fmt: skip

GSM8K_STRICT: dict[str, object] = {"method": "strict"}
GSM8K_FLEXIBLE: dict[str, object] = {"method": "flexible"}
GSM8K: list[tuple[str, dict[str, object], str, object, int, int]] = [
    ("gsm8k", GSM8K_STRICT, "#### 72", "#### 72", 1, 1),
    ("gsm8k", GSM8K_STRICT, "#### $72", "#### 72", 0, 1),
    ("gsm8k", GSM8K_STRICT, "#### 1,234", "#### 1234", 1, 1),
    ("gsm8k", GSM8K_STRICT, "#### 5 #### 6", "#### 6", 1, 1),
    ("gsm8k", GSM8K_FLEXIBLE, "The answer is 72.", "#### 72", 0, 1),
    ("gsm8k", GSM8K_FLEXIBLE, "1,000", "#### 1000", 0, 1),
    ("clevr_count_70k", {}, "[3]", "3", 1, 1),
    ("clevr_count_70k", {}, "[ 3 ]", "3", 0, 1),
    ("clevr_count_70k", {}, "3", "3", 0, 0),
    # G1, G2 and the gold's forms (docs/design/graders.md#s-7-1, #s-7-2).
    ("gsm8k", GSM8K_STRICT, "####72", "#### 72", 0, 1),
    ("gsm8k", GSM8K_STRICT, "#### -$5 left", "#### -5", 0, 1),
    ("gsm8k", GSM8K_STRICT, "#### 72.", "#### 72", 0, 1),
    ("gsm8k", GSM8K_STRICT, "#### 72.0", "#### 72", 0, 1),
    ("gsm8k", GSM8K_STRICT, "#### 71", "#### 72", 0, 0),
    ("clevr_count_70k", {}, "[+3]", 3, 0, 1),
    ("clevr_count_70k", {"answerFormat": "hashes"}, "#### 3", "#### 3", 1, 1),
]

# Type, completion, gold, then compat fast / math_verify, strict fast / math_verify.
OAT = [
    ("boxed", r"\boxed{\frac12}", "0.5", 1, 1, 1, 1),
    ("boxed", r"\boxed{.25}", "1/4", 1, 1, 1, 1),
    ("boxed", r"\boxed{27}", 27.0, 1, 1, 1, 1),
    ("boxed", r"\boxed{50\%}", "0.5", 0, 1, 0, 1),
    ("boxed", r"\boxed{[1,2)}", "(1,2)", 0, 0, 0, 0),
    ("boxed", r"\boxed{x=5}", "5", 1, 1, 1, 1),
    ("boxed", r"\boxed{5\text{ cm}}", "5", 1, 1, 1, 1),
    ("boxed", r"\boxed{\text{Yes}}", "yes", 1, 1, 1, 1),
    ("boxed", r"\boxed{x^2+2x+1}", "(x+1)^2", 1, 1, 1, 1),
    ("boxed", r"\boxed{10^3}", "1000", 0, 1, 0, 1),
    ("boxed", r"\boxed{3.0000000001}", "3", 1, 1, 1, 1),
    ("boxed", r"\boxed{0.3333}", "1/3", 0, 0, 0, 0),
    ("boxed", r"\boxed{x\in[1,2]}", "[1,2]", 0, 1, 0, 1),
    ("boxed", r"\boxed{}", "5", 0, 0, 0, 0),
    ("boxed", r"\boxed{five}", "5", 0, 0, 0, 0),
    ("answer_tag", "think</think> <answer>42</answer>", "42", 1, 1, 1, 1),
    ("answer_tag", "think</think>\n<answer>42</answer>", "42", 0, 0, 0, 0),
    ("answer_tag", "think</think> <answer>The answer is 42</answer>", "42", 0, 1, 0, 1),
    ("boxed", r"\boxed{a+b}", "c+b", 1, 1, 0, 0),
    ("boxed", r"\boxed{x+c}", "x+s", 1, 1, 0, 0),
    ("boxed", r"\boxed{(a,1)}", "(c,1)", 1, 1, 0, 0),
    ("boxed", r"\boxed{(((((9!)!)!)!)!)}", "5", 0, 0, 0, 0),
    ("boxed", r"\boxed{__import__('os').system('touch owned')}", "5", 0, 0, 0, 0),
]

GSM8K_VERIFY = [
    ("The answer is 72", "6 x 12 = 72\n#### 72", 1),
    (r"I get 71 but \boxed{72} is final, checked 70", "#### 72", 1),
    ("The answer is 50%", "#### 0.5", 1),
    ("The answer is 0.3333", "1/3", 0),
    ("2.232", "2.23", 0),
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One example in one mode: the reward that grades it, a record, a completion, and the score it must get."""

    reward: process_config.GraderConfig
    columns: dict[str, object]
    completion: str
    score: float


def cases() -> Iterator[Case]:
    """Yield every example in every mode and version that the reference asserts."""
    for completion, gold, compat, strict in AREAL_MATH:
        columns: dict[str, object] = {"solutions": [gold]}
        yield from _both("areal-math", {}, columns, completion, compat, strict)
    for text, tests, compat, strict, _, _ in AREAL_CODE:
        completion = text if text == "The sum is a + b." else f"```python\n{text}\n```"
        yield from _both("areal-code", {}, {"input_output": tests}, completion, compat, strict)
    for type_, config, completion, answer, compat, strict in GSM8K:
        yield from _both(type_, config, {"answer": answer}, completion, compat, strict)
    for type_, completion, answer, *scores in OAT:
        for version, at in (("fast", 0), ("math_verify", 1)):
            config = {"verifierVersion": version}
            yield from _both(type_, config, {"answer": answer}, completion, scores[at], scores[at + 2])
    for completion, answer, score in GSM8K_VERIFY:
        yield from _both("gsm8k", {"method": "math_verify"}, {"answer": answer}, completion, score, score)


def _both(
    type_: str,
    config: Mapping[str, object],
    columns: dict[str, object],
    completion: str,
    compat: int | None,
    strict: int,
) -> Iterator[Case]:
    for mode, score in (("Compat", compat), ("Strict", strict)):
        if score is None:
            continue
        options = "-".join(str(value) for value in config.values())
        reward = process_config.GraderConfig.model_validate(
            {"name": "-".join(filter(None, (type_, options, mode))), "type": type_, "mode": mode, "config": config}
        )
        yield Case(reward=reward, columns={"id": "q", **columns}, completion=completion, score=float(score))
