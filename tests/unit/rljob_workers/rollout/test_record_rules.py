import pytest

from rljob_api import enums, errors, types
from rljob_api.manifest.data import DataSourceSpec
from rljob_testing import rollout as fakes
from rljob_testing.sections import section
from rljob_workers.rollout import filters

DROPS, FAILS = (
    section(DataSourceSpec, name="train", path="d", max_prompt_tokens=4, on_invalid_record=invalid)
    for invalid in ("Drop", "Fail")
)
RECORD = types.PromptRecord(prompt_id="q1", source="train", columns={})


@pytest.mark.parametrize("source", [DROPS, FAILS])
def test_a_prompt_of_just_the_bound_is_used(source: DataSourceSpec) -> None:
    assert filters.too_long(RECORD, 4, source) == ""


@pytest.mark.parametrize("source", [DROPS, FAILS])
def test_why_a_longer_prompt_is_not_used_names_record_source_length_and_bound(source: DataSourceSpec) -> None:
    why = filters.too_long(RECORD, 5, source)
    assert why == "record 'q1' has 5 prompt tokens, but maxPromptTokens of source 'train' is 4"


def test_a_prompt_of_no_source_has_no_bound() -> None:
    assert filters.too_long(RECORD, 10_000, None) == ""


def test_a_suite_is_told_from_a_source_of_its_name() -> None:
    sources = filters.Sources([FAILS], [DROPS])
    train, suite = fakes.make_lease(), fakes.make_lease(kind=enums.GroupKind.EVALUATION)
    assert (sources.of(train), sources.of(suite)) == (FAILS, DROPS)
    assert filters.Sources().of(train) is None


@pytest.mark.parametrize(
    ("error", "source", "expected"),
    [
        pytest.param(errors.RecordError("no gold"), DROPS, "invalid_record", id="no grader can judge it, dropped"),
        pytest.param(errors.DataError("no prompt"), DROPS, "invalid_record", id="it makes no prompt, dropped"),
        pytest.param(errors.RecordError("no gold"), FAILS, "RecordError", id="no grader can judge it, not dropped"),
        pytest.param(errors.RecordError("no gold"), None, "RecordError", id="no source"),
        pytest.param(errors.GraderError("nan"), DROPS, "GraderError", id="a reward function that gives no score"),
        pytest.param(errors.EngineError("lost"), DROPS, "EngineError", id="the engine"),
    ],
)
def test_only_what_is_the_records_fault_drops_it(
    error: errors.RLJobError, source: DataSourceSpec | None, expected: str
) -> None:
    assert filters.failure_reason(error, source) == expected
