r"""`areal-math`: every row of docs/design/graders.md#s-5-5, in both modes; each correction; what is refused."""

import pathlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import enums, errors, process_config
from rljob_testing import areal_sample, fuzzing, grader_rows
from rljob_workers.verifier.graders import base, registry
from rljob_workers.verifier.graders.areal import areal_grader, normalization

R = enums.VerdictReason
ROWS = grader_rows.AREAL_MATH


def make_grader(mode: str, **config: object) -> areal_grader.ArealMathGrader:
    reward = process_config.GraderConfig.model_validate(
        {"name": "r", "type": "areal-math", "mode": mode, "config": config}
    )
    grader = registry.build([reward], registry.BUILT_IN)[0]
    assert isinstance(grader, areal_grader.ArealMathGrader)
    return grader


@pytest.fixture(scope="module", params=["Compat", "Strict"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def warm() -> dict[str, areal_grader.ArealMathGrader]:
    graders = {mode: make_grader(mode) for mode in ("Compat", "Strict")}
    for grader in graders.values():
        grader.warm()
    return graders


def answered(completion: str, *golds: str) -> base.Answer:
    return base.Answer(prompt="", completion=completion, columns={"query_id": "q", "solutions": list(golds)})


@pytest.mark.covers("graders 5.1", "graders 5.3", "graders 5.5")
@pytest.mark.parametrize(("completion", "gold", "compat", "strict"), ROWS)
def test_row_has_the_verdict_of_its_mode(
    warm: dict[str, areal_grader.ArealMathGrader],
    mode: str,
    completion: str,
    gold: str,
    compat: int | None,
    strict: int,
) -> None:
    expected = compat if mode == "Compat" else strict
    grade = warm[mode].grade(answered(completion, gold))
    assert grade.formatted
    if expected is not None:
        assert grade.score == expected


@pytest.mark.covers("graders 11")
def test_published_sample_of_160_answers_has_its_83_right_ones(
    warm: dict[str, areal_grader.ArealMathGrader], mode: str
) -> None:
    sample = list(areal_sample.cases())
    assert (len(sample), sum(case.right for case in sample)) == (160, 83)
    others = [case for case in sample if warm[mode].grade(answered(case.completion, case.gold)).score != case.right]
    assert others == []


@pytest.mark.covers("graders 3.1")
def test_python_call_is_outside_the_grammar_and_writes_nothing(
    warm: dict[str, areal_grader.ArealMathGrader], mode: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    completion = r"\boxed{__import__('pathlib').Path('owned').write_text('x')}"
    assert warm[mode].grade(answered(completion, "5")).reason in (R.PARSE_ERROR, R.WRONG)
    assert not list(tmp_path.iterdir())


@pytest.mark.covers("graders 5.4")
@pytest.mark.parametrize(
    ("completion", "gold", "expected"),
    [
        # M1: outside text a unit follows a complete value and a space; a letter is a unit only where it is set as one.
        (r"\boxed{5\text{ cm}}", "5", 1), (r"\boxed{5\mathrm{m}}", "5", 1), (r"\boxed{5 m}", "5", 0),
        (r"\boxed{12 cm^2}", "12", 1), (r"\boxed{2m+1}", "2s+1", 0),
        # M2
        (r"\boxed{50\%}", "0.5", 1), (r"\boxed{50\%}", "50", 1), (r"\boxed{50}", "0.5", 0), (r"\boxed{5\%}", "50", 0),
        # M3
        (r"\boxed{1,2}", r"\boxed{(1,2)}", 1), (r"\boxed{1,2}", r"\boxed{[1,2]}", 0),
        (r"\boxed{(5)}", "5 = 5, so 5", 1),
        (r"\boxed{[5]}", "5", 0),
        # M4
        (r"\boxed{100001}", r"\boxed{100001.0001}", 1),
        (r"\boxed{-5}", "5", 0),
        # M5
        (r"\boxed{x=5}", r"\boxed{5}", 1), (r"\boxed{x=5}", r"\boxed{x=5}", 1), (r"\boxed{y=x+1}", r"\boxed{y=x+2}", 0),
        (r"\boxed{2x=4}", r"\boxed{4=2x}", 1), (r"\boxed{x\in[1,2]}", r"\boxed{[1,2]}", 1),
        # M6
        (r"\boxed{B}", r"\boxed{B}", 1), (r"\boxed{(B)}", r"\boxed{B}", 1), (r"\boxed{B. because}", r"\boxed{B}", 1),
        (r"\boxed{not A but B}", r"\boxed{B}", 0),
        # M7
        (r"so \boxed{5", r"\boxed{5}", 0),
        # M8
        (r"\boxed{\frac{a}{n d}}", r"\boxed{\frac{a}{nd}}", 1), (r"\boxed{2+3j}", r"\boxed{2+3i}", 1),
        (r"\boxed{infinity}", r"\boxed{\infty}", 1), (r"\boxed{twenty-one}", "21", 1),
        # M9
        (r"\boxed{-3\frac12}", r"\boxed{-3.5}", 1), (r"\boxed{3 1/2}", r"\boxed{\frac72}", 1),
        # M10
        ("The answer is 42. Check: 40+2=42 is 42", r"\boxed{42}", 1),
        ("The answer is 42\nand not 43", r"\boxed{42}", 1),
        # The classes of docs/reading_an_answer.md.
        (r"\boxed{(1,2)}", r"\boxed{12}", 0), (r"\boxed{12}", r"\boxed{(1,2)}", 0), (r"\boxed{1,2}", r"\boxed{12}", 0),
        (r"\boxed{{{42}}}", r"\boxed{42}", 1), (r"\boxed{\mathbf{5}}", r"\boxed{5}", 1),
        (r"\boxed{\frac12\%}", r"\boxed{0.005}", 1), (r"\boxed{bca}", r"\boxed{abc}", 0),
        (r"\boxed{\sqrt{10001}}", r"\boxed{100}", 0), (r"\boxed{\sqrt{2}}", r"\boxed{1.4142}", 1),
        (r"\boxed{\frac{10001}{10000}}", r"\boxed{1}", 0), (r"\boxed{1~2}", r"\boxed{12}", 0),
        (r"\boxed{x=3}", r"\boxed{y=3}", 0), (r"\boxed{5 or 6}", r"\boxed{5}", 0),
        (r"\boxed{1,1,2}", r"\boxed{1,2}", 0),
        (r"\boxed{10 AM}", r"\boxed{10 PM}", 0), ("The answer is 3 1/2 cups", r"\boxed{3}", 0),
        ("The answer is 3 1/2 cups", r"\boxed{\frac72}", 1), ("The final answer is 5 or 6", r"\boxed{5}", 0),
        ("The answer is not 5", r"\boxed{5}", 0), (r"\boxed{5} or \boxed{6}", r"\boxed{6}", 0),
    ],
)  # fmt: skip
def test_correction_decides_in_strict_mode(
    warm: dict[str, areal_grader.ArealMathGrader], completion: str, gold: str, expected: int
) -> None:
    assert warm["Strict"].grade(answered(completion, gold)).score == expected


@pytest.mark.covers("graders 5.1", "graders 5.2", "graders 5.3")
@pytest.mark.parametrize(
    ("completion", "gold", "expected"),
    [
        (r"so \boxed{5", r"\boxed{5}", 1), (r"\boxed{(A),(B)}", r"\boxed{B}", 1),
        (r"\boxed{0.5}", r"\boxed{50\%}", 1),
        (r"final answer is $7$. I hope it is correct", r"\boxed{7}", 1), (r"\boxed 7$ done", r"\boxed{7}", 1),
        ("\u7b54\u6848\u662f 7\n\nmore", r"\boxed{7}", 1), ("it is 7", r"\boxed{7}", 0),
        (r"\boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}", r"\boxed{\begin{pmatrix}1&2\\3&4.0001\end{pmatrix}}", 1),
        (r"\boxed{\begin{pmatrix}1&2\end{pmatrix}}", r"\boxed{\{1,2\}}", 1),
        (r"\boxed{(1,\frac12)}", r"\boxed{(1,0.5)}", 1), (r"\boxed{x=5}", r"\boxed{5}", 1), (r"\boxed{.5}", "0.5", 1),
    ],
)  # fmt: skip
def test_rule_of_the_original_decides_in_compat_mode(
    warm: dict[str, areal_grader.ArealMathGrader], completion: str, gold: str, expected: int
) -> None:
    assert warm["Compat"].grade(answered(completion, gold)).score == expected


@pytest.mark.covers("graders 2.1", "graders 5.1")
def test_any_solution_counts_and_no_answer_is_told_apart(
    warm: dict[str, areal_grader.ArealMathGrader], mode: str
) -> None:
    assert warm[mode].grade(answered(r"\boxed{7}", r"\boxed{5}", r"\boxed{7}")).reason is R.OK
    assert warm[mode].grade(answered("I give up", r"\boxed{5}")).reason is R.NO_ANSWER
    assert warm[mode].grade(answered(r"\boxed{}", r"\boxed{5}")).reason is R.NO_ANSWER


@pytest.mark.covers("graders 2.1")
def test_reason_over_several_solutions_is_the_gravest(warm: dict[str, areal_grader.ArealMathGrader], mode: str) -> None:
    hostile = r"\boxed{9^{9^{9^{9}}}+x}"
    assert warm[mode].grade(answered(hostile, r"\boxed{5}", r"\boxed{x+1}")).reason is R.PARSE_ERROR
    assert warm[mode].grade(answered(r"\boxed{6}", r"\boxed{5}", r"\boxed{x+1}")).reason is R.WRONG


@pytest.mark.parametrize(
    "text",
    [
        "(((((9!)!)!)!)!)", "9^{9^{9^{9}}}", "(" * 500 + ")" * 500, "9" * 6000, "{" * 65536, "2^{1000000}", "1e999",
        "a" * 4097, "((((((((((1,2),3),4),5),6),7),8),9),10)" * 50,
    ],
)  # fmt: skip
def test_hostile_answer_ends_without_reward_and_without_a_worker(mode: str, text: str) -> None:
    grade = make_grader(mode).quick(answered(rf"\boxed{{{text}}}", r"\boxed{5}"))
    assert grade is not None
    assert (grade.score, grade.reason in (R.PARSE_ERROR, R.WRONG, R.NO_ANSWER)) == (0.0, True)


@pytest.mark.covers("graders 2.2", "graders 4.1")
@pytest.mark.parametrize("columns", [{}, {"solutions": []}, {"solutions": ["no number"]}, {"solutions": [""]}])
def test_record_without_usable_solution_is_an_error(mode: str, columns: dict[str, object]) -> None:
    with pytest.raises(errors.DataError, match="answer|solutions"):
        make_grader(mode).check(columns)


@pytest.mark.covers("graders 2.2", "graders 4.1")
def test_solutions_come_from_the_file_and_ids_are_cut_at_the_first_at(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "id2info.jsonl"
    path.write_text('{"query_id": 7, "task": "stem", "prompt": "p", "solutions": ["\\\\boxed{5}"]}\n')
    grader = make_grader("Strict", solutionPath=str(path))
    answer = base.Answer(prompt="", completion=r"\boxed{5}", columns={"query_id": "7@idx:3-0"})
    grade = grader.quick(answer)
    assert grade is not None
    assert grade.reason is R.OK
    with pytest.raises(errors.DataError, match="'8' is not in the file"):
        grader.check({"query_id": "8"})


@pytest.mark.covers("graders 4.1")
def test_graders_with_different_files_never_see_each_others_records(tmp_path: pathlib.Path) -> None:
    graders = []
    for name, solution in (("one", "5"), ("two", "6")):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(f'{{"query_id": "7", "task": "math", "solutions": ["{solution}"]}}\n')
        graders.append(make_grader("Strict", solutionPath=str(path)))
    answer = base.Answer(prompt="", completion=r"\boxed{5}", columns={"query_id": "7"})
    assert [grade and grade.reason for grade in (grader.quick(answer) for grader in graders)] == [R.OK, R.WRONG]


@pytest.mark.covers("graders 4.1", "graders 4.3")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"query_id": "1", "solutions": ["5"]}\n{"query_id": 1, "solutions": ["6"]}', "on line 1"),
        ('{"solutions": ["5"]}', "'query_id' is None"), ('{"query_id": "a@b", "solutions": ["5"]}', "'@'"),
        ('{"query_id": "1", "solutions": []}', "not empty"), ('{"query_id": "1", "task": "art"}', "math, stem, code"),
        ("[1]", "not an object"), ("nonsense", "not JSON"), ('{"query_id": "1", "task": "code"}', "no record of task"),
    ],
)  # fmt: skip
def test_unusable_file_of_solutions_is_refused_naming_line_and_key(
    tmp_path: pathlib.Path, text: str, message: str
) -> None:
    path = tmp_path / "id2info.jsonl"
    path.write_text(text)
    with pytest.raises(errors.ManifestError, match=message):
        make_grader("Strict", solutionPath=str(path))


PIECES = st.one_of(
    st.sampled_from(normalization.UNITS), st.sampled_from([" ", ".", "-", "5", "x", "a b", "\u00b0", "s"])
)


@fuzzing.settings
@given(st.lists(PIECES, max_size=12).map("".join) | st.lists(PIECES, max_size=12).map(" ".join))
def test_units_are_deleted_as_the_original_tries_each_of_them(text: str) -> None:
    expected = text
    for _ in range(2):
        for unit in normalization.UNITS:
            expected = re.sub(rf"(^|\W){unit}($|\W)", r"\1\2", expected) or expected
    assert normalization.without_units(text) == expected
