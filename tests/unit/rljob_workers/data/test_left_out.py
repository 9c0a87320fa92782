import pytest

from rljob_api import types
from rljob_api.manifest.data import DataSourceSpec
from rljob_testing.sections import section
from rljob_workers.data import left_out, records

LOADED = records.LoadedSource(
    name="train",
    weight=1.0,
    where="d.jsonl",
    records=tuple(types.PromptRecord(prompt_id=name, source="train", columns={}) for name in "abc"),
    lines=(1, 2, 4),
)


def judged(wrong: list[tuple[int, str]], *, drop: bool) -> left_out.Findings:
    source = section(
        DataSourceSpec, name="train", path="/d.jsonl", max_prompt_tokens=9, on_invalid_record="Drop" if drop else "Fail"
    )
    return left_out.judged(source, LOADED, wrong, drops=drop)


def test_each_record_that_cannot_be_used_is_a_problem_with_its_line() -> None:
    found = judged([(0, "no gold"), (2, "too long")], drop=False)
    assert found == left_out.Findings(problems=["d.jsonl:1: no gold", "d.jsonl:4: too long"])


def test_records_that_a_source_drops_are_one_warning_with_their_number() -> None:
    found = judged([(0, "no gold"), (2, "too long"), (2, "no gold")], drop=True)
    told = "d.jsonl:1: no gold; d.jsonl:4: too long; d.jsonl:4: no gold"
    assert found == left_out.Findings(warnings=[f"source 'train': 2 of 3 records are left out: {told}"])


@pytest.mark.covers("graders 4.3")
def test_a_source_that_would_drop_all_its_records_is_a_problem() -> None:
    found = judged([(0, "x"), (1, "x"), (2, "x")], drop=True)
    assert (len(found.problems), found.warnings) == (1, ())
    assert found.problems[0].startswith("source 'train': none of its 3 records can be used: d.jsonl:1: x; ")


@pytest.mark.parametrize("drop", [False, True])
def test_a_source_whose_records_can_all_be_used_is_not_mentioned(drop: bool) -> None:
    assert judged([], drop=drop).lines == []


def test_no_more_than_twenty_are_told_one_by_one() -> None:
    (warning,) = judged([(0, f"reason {number}") for number in range(21)], drop=True).warnings
    assert "reason 19; ..." in warning
    assert "reason 20" not in warning


def test_problems_are_printed_before_warnings() -> None:
    both = [left_out.Findings(warnings=["w"]), left_out.Findings(problems=["p"])]
    assert left_out.joined(both).lines == ["error: p", "warning: w"]
