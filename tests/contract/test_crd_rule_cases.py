"""Every CEL rule of the CRD has a pair of cases for the real API server, and every case speaks of one rule."""

from rljob_api.validation import crd
from rljob_testing.cluster import rule_cases

# Rules about the name and about changes; the cluster tests of the same words hold them.
_OF_THEIR_OWN = {"metadata.name must be", "maxSteps may only", "managedBy is immutable"}


def test_every_rule_about_one_state_has_a_case() -> None:
    open_rules = [
        rule.message
        for rule in crd.RULES
        if not any(rule_cases.covers(message, field, rule) for message, field, _, _ in rule_cases.CASES)
        and not any(rule.message.startswith(start) for start in _OF_THEIR_OWN)
    ]
    assert not open_rules, f"add to rule_cases.CASES what these take and refuse: {open_rules}"


def test_every_case_speaks_of_one_rule() -> None:
    for message, field, _, _ in rule_cases.CASES:
        found = [rule.message for rule in crd.RULES if rule_cases.covers(message, field, rule)]
        assert len(found) == 1, f"{message!r} at {field} is the beginning of {found}"


def test_every_frozen_field_has_two_states() -> None:
    assert set(rule_cases.FROZEN) == set(crd.frozen(crd.root_schema()))
    assert set(rule_cases.FROZEN_WITH_CHECKPOINT) == set(crd.FROZEN_WITH_CHECKPOINT)
