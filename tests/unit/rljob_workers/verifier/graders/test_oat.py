r"""`boxed` and `answer_tag`: every row of docs/design/graders.md#s-8-4, in both modes and versions; each correction."""

import pathlib

import pytest

from rljob_api import enums, errors, process_config
from rljob_testing import grader_rows
from rljob_workers.verifier.graders import base, registry
from rljob_workers.verifier.graders.oat import oat_grader
from rljob_workers.verifier.graders.symbolic import screen

R = enums.VerdictReason
ROWS = grader_rows.OAT


def make_grader(type_: str, mode: str, **config: object) -> oat_grader.OatGrader:
    reward = process_config.GraderConfig.model_validate({"name": "r", "type": type_, "mode": mode, "config": config})
    grader = registry.build([reward], registry.BUILT_IN)[0]
    assert isinstance(grader, oat_grader.OatGrader)
    return grader


@pytest.fixture(scope="module")
def warm() -> dict[tuple[str, str, str], oat_grader.OatGrader]:
    graders = {
        (type_, mode, version): make_grader(type_, mode, verifierVersion=version)
        for type_ in ("boxed", "answer_tag")
        for mode in ("Compat", "Strict")
        for version in ("fast", "math_verify")
    }
    for grader in graders.values():
        grader.warm()
    return graders


def answered(completion: str, gold: object) -> base.Answer:
    return base.Answer(prompt="", completion=completion, columns={"answer": gold})


@pytest.mark.covers("graders 8.2", "graders 8.3", "graders 8.4")
@pytest.mark.parametrize(("mode", "version", "column"), [
    ("Compat", "fast", 0), ("Compat", "math_verify", 1), ("Strict", "fast", 2), ("Strict", "math_verify", 3),
])  # fmt: skip
@pytest.mark.parametrize("row", ROWS, ids=[f"{row[1]}-{row[2]}" for row in ROWS])
def test_row_has_the_verdict_of_its_mode_and_version(
    warm: dict[tuple[str, str, str], oat_grader.OatGrader],
    row: tuple[str, str, object, int, int, int, int],
    mode: str,
    version: str,
    column: int,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    type_, completion, gold, *expected = row
    assert warm[type_, mode, version].grade(answered(completion, gold)).score == expected[column]
    assert not list(tmp_path.iterdir())


@pytest.mark.covers("graders 2.1", "graders 8.1")
@pytest.mark.parametrize(
    ("type_", "completion", "formatted"),
    [
        ("boxed", "5", False), ("boxed", r"\fbox{5}", False), ("boxed", r"\boxed{5", False),
        ("boxed", r"\boxed 5", False),
        ("boxed", r"\boxed{1} then \boxed{6}", True), ("answer_tag", "think</think>\n<answer>42</answer>", False),
        ("answer_tag", r"</think> <answer>\boxed 5</answer>", True), ("answer_tag", "<answer>5</answer>", False),
    ],
)  # fmt: skip
def test_formatted_says_whether_the_required_form_was_there(type_: str, completion: str, formatted: bool) -> None:
    grade = make_grader(type_, "Compat").quick(answered(completion, "5"))
    assert grade is not None
    assert (grade.score, grade.formatted) == (0.0, formatted)


@pytest.mark.covers("graders 8.3")
@pytest.mark.parametrize(("mode", "reason", "formatted"), [("Compat", R.WRONG, True), ("Strict", R.NO_ANSWER, False)])
def test_empty_box_is_formatted_in_compat_and_no_answer_in_strict(mode: str, reason: R, formatted: bool) -> None:
    grade = make_grader("boxed", mode).quick(answered(r"\boxed{}", "5"))
    assert grade is not None
    assert (grade.reason, grade.formatted) == (reason, formatted)


@pytest.mark.parametrize("mode", ["Compat", "Strict"])
@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"5 \text{ or } 6", "5,6"), (r"1\text{ and }-2", "1,-2"), (r"\mathrm{A}", "A"), ("1,000", "1000"),
        (r"30^\circ", "30"), ("3 1/2", "7/2"), (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
        (r"\pi/2", r"\frac{\pi}{2}"),
    ],
)  # fmt: skip
def test_plain_text_of_latex_is_what_is_compared(
    warm: dict[tuple[str, str, str], oat_grader.OatGrader], answer: str, gold: str, mode: str
) -> None:
    assert warm["boxed", mode, "fast"].grade(answered(rf"\boxed{{{answer}}}", gold)).score == 1.0


# Answer, gold, strict. The classes of docs/reading_an_answer.md (O4, O5).
READ = [
    (r"\boxed{-3\frac12}", "-7/2", 1), (r"\boxed{-3\frac12}", "-5/2", 0), (r"\boxed{-3 1/2}", "-3.5", 1),
    (r"\boxed{5\text{ or }6}", "5", 0), (r"\boxed{50\%}", "50", 0), (r"\boxed{x=3}", "y=3", 0),
    (r"\boxed{2,3.5}", "23.5", 0),
    (r"\boxed{5 m}", "5 cm", 0), (r"\boxed{1,1,2}", "1,2", 0), (r"\boxed{\{1,2\}}", "(1,2)", 0),
    (r"\boxed{5}", "x=5", 1),
    (r"\boxed{5} or \boxed{6}", "6", 0), (r"it is not \boxed{5}", "5", 0), (r"\boxed{50}\%", "50", 1),
    (r"first \boxed{41} then \boxed{42}", "42", 1), (r"\boxed{bca}", "abc", 0), (r"\boxed{silent}", "listen", 0),
    (r"\boxed{no}", "on", 0), (r"\boxed{5\text{ squared}}", "5", 0), (r"\boxed{5\text{ or more}}", "5", 0),
]  # fmt: skip


@pytest.mark.covers("reading_an_answer")
@pytest.mark.parametrize("version", ["fast", "math_verify"])
@pytest.mark.parametrize(("completion", "gold", "expected"), READ)
def test_strict_refuses_what_says_something_else(
    warm: dict[tuple[str, str, str], oat_grader.OatGrader], completion: str, gold: str, expected: int, version: str
) -> None:
    assert warm["boxed", "Strict", version].grade(answered(completion, gold)).score == expected


def test_comma_that_groups_no_thousands_separates_in_compat_mode_too(
    warm: dict[tuple[str, str, str], oat_grader.OatGrader],
) -> None:
    assert warm["boxed", "Compat", "fast"].grade(answered(r"\boxed{2,3.5}", "23.5")).score == 0.0


@pytest.mark.covers("graders 8.1")
def test_loose_rule_needs_only_the_answer_tags() -> None:
    grade = make_grader("answer_tag", "Strict", tagRule="loose").quick(answered(r"<answer>\boxed{5}</answer>", "5"))
    assert grade is not None
    assert grade.reason is R.OK


@pytest.mark.covers("graders 8.3")
def test_tagged_answer_ends_at_the_first_closing_tag_in_strict_mode_only() -> None:
    completion = "</think> <answer>5</answer>, or 6</answer>"
    strict, compat = (make_grader("answer_tag", mode).quick(answered(completion, "5")) for mode in ("Strict", "Compat"))
    assert strict is not None
    assert strict.reason is R.OK
    assert compat is None or compat.score == 0.0


@pytest.mark.covers("graders 4.2", "graders 8.2")
def test_any_member_of_a_list_and_a_boxed_gold_count() -> None:
    grader = make_grader("boxed", "Strict")
    for gold in (["4", "5"], r"\boxed{5}", 5):
        grade = grader.quick(answered(r"\boxed{5}", gold))
        assert grade is not None
        assert grade.reason is R.OK


@pytest.mark.parametrize("columns", [{}, {"answer": []}, {"answer": ["5", ""]}, {"answer": None}])
def test_record_without_gold_is_an_error_naming_the_key(columns: dict[str, object]) -> None:
    with pytest.raises(errors.DataError, match="answer"):
        make_grader("boxed", "Strict").check(columns)


def test_tag_rule_is_no_option_of_boxed() -> None:
    with pytest.raises(errors.ManifestError, match="tagRule"):
        make_grader("boxed", "Strict", tagRule="loose")


@pytest.mark.parametrize("version", ["fast", "math_verify"])
@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^{9}}}", "(" * 500 + ")" * 500, "9" * 6000, "9" * 3000, "2^{1000000}", "see 9^9^9^9 there",
        "so (9!)!)!", "1e999999", r"\binom{99999}{9999}", "a" * 5000,
        "x^{" * 30 + "2" + "}" * 30, "x^" * 30 + "x", "\u03c0^" * 30 + "2", "e^{" * 30 + "e" + "}" * 30,
    ],
)  # fmt: skip
def test_hostile_answer_ends_without_reward_and_without_a_worker(version: str, text: str) -> None:
    grade = make_grader("boxed", "Strict", verifierVersion=version).quick(answered(rf"\boxed{{{text}}}", "7"))
    assert grade is not None
    assert (grade.score, grade.reason in (R.PARSE_ERROR, R.WRONG)) == (0.0, True)


@pytest.mark.parametrize("text", ["The answer is 42", "5! apples", "x^2 of $y^3$ and 10^6", "Wow! 7 days!"])
def test_prose_with_small_formulas_is_no_hazard(text: str) -> None:
    assert screen.first_hazard(text) == ""


@pytest.mark.covers("graders 8.2")
def test_repetition_is_told_from_variety() -> None:
    assert screen.is_repetitive("1+" * 100)
    assert not screen.is_repetitive("1+" * 64)
    assert not screen.is_repetitive("".join(chr(33 + index % 90) + str(index) for index in range(60)))
