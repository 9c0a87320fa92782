import pytest

from rljob_api import errors, names, roles, types
from rljob_testing import rollout as fakes
from rljob_workers.rollout import filters

DROPS, FAILS = (roles.RecordRules(max_prompt_tokens=4, drops=drops) for drops in (True, False))
RECORD = types.PromptRecord(prompt_id="q1", source="train", columns={})


@pytest.mark.parametrize("rules", [DROPS, FAILS])
def test_a_prompt_of_just_the_bound_is_used(rules: roles.RecordRules) -> None:
    assert filters.too_long(RECORD, 4, rules) == ""


@pytest.mark.parametrize("rules", [DROPS, FAILS])
def test_why_a_longer_prompt_is_not_used_names_record_source_length_and_bound(rules: roles.RecordRules) -> None:
    why = filters.too_long(RECORD, 5, rules)
    assert why == "record 'q1' has 5 prompt tokens, but maxPromptTokens of source 'train' is 4"


def test_a_source_without_rules_has_no_bound() -> None:
    assert filters.too_long(RECORD, 10_000, None) == ""


def test_a_suite_has_rules_of_its_own_though_it_has_the_name_of_a_source() -> None:
    rules = filters.RecordRules(by_source={"train": FAILS}, by_suite={"train": DROPS})
    train, suite = fakes.make_lease(), fakes.make_lease(kind=names.GroupKind.EVALUATION)
    assert (rules.of(train), rules.of(suite)) == (FAILS, DROPS)
    assert filters.NO_RULES.of(train) is None


@pytest.mark.parametrize(
    ("error", "rules", "expected"),
    [
        pytest.param(errors.RecordError("no gold"), DROPS, "invalid_record", id="no grader can judge it, dropped"),
        pytest.param(errors.DataError("no prompt"), DROPS, "invalid_record", id="it makes no prompt, dropped"),
        pytest.param(errors.RecordError("no gold"), FAILS, "RecordError", id="no grader can judge it, not dropped"),
        pytest.param(errors.RecordError("no gold"), None, "RecordError", id="no rules"),
        pytest.param(errors.GraderError("nan"), DROPS, "GraderError", id="a reward function that gives no score"),
        pytest.param(errors.EngineError("lost"), DROPS, "EngineError", id="the engine"),
    ],
)
def test_only_what_is_the_records_fault_drops_it(
    error: errors.RLJobError, rules: roles.RecordRules | None, expected: str
) -> None:
    assert filters.failure_reason(error, rules) == expected
