import itertools

import pytest

from rljob_api.conditions import REASONS, STALL_REASONS
from rljob_api.conditions import ConditionType as Type
from rljob_operator.reconcile import status
from rljob_testing import condition_rules

HEALTHY = {Type.ACCEPTED: "True", Type.RUNNING: "True"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Complete", "Failed"),
        ("Suspending", "Suspended"),
        ("Running", "Suspended"),
        ("Running", "Complete"),
        ("Running", "Failed"),
        ("Reconciling", "Stalled"),
    ],
)
def test_pairs_that_exclude_each_other_are_found(one: str, other: str) -> None:
    found = condition_rules.contradictions({Type(one): "True", Type(other): "True"})
    assert any(one in line and other in line and "both" in line for line in found)


@pytest.mark.parametrize(
    "statuses",
    [
        {Type.DEGRADED: "True"},
        {Type.RUNNING: "True"},
        {Type.FAILED: "True"},
        {Type.ACCEPTED: "False"},
        {Type.COMPLETE: "True", Type.STALLED: "True"},
        {Type.COMPLETE: "True", Type.RECONCILING: "True"},
        {Type.ACCEPTED: "False", Type.STALLED: "True", Type.RUNNING: "True"},
    ],
)
def test_broken_implication_is_found(statuses: dict[Type, str]) -> None:
    assert condition_rules.contradictions(statuses)


def test_conditions_that_agree_have_no_contradiction() -> None:
    assert condition_rules.contradictions(HEALTHY) == []
    assert condition_rules.contradictions({Type.ACCEPTED: "True", Type.FAILED: "True", Type.STALLED: "True"}) == []


@pytest.mark.parametrize(
    ("statuses", "reasons", "word"),
    [
        ({Type.COMPLETE: "True"}, {}, "Succeeded"),
        ({Type.FAILED: "True", Type.STALLED: "True"}, {}, "Failed"),
        ({Type.ACCEPTED: "False", Type.STALLED: "True"}, {}, "Invalid"),
        ({Type.SUSPENDING: "True"}, {}, "Suspending"),
        ({Type.SUSPENDED: "True"}, {Type.SUSPENDED: "UserRequested"}, "Suspended"),
        (
            {Type.SUSPENDED: "True", Type.QUOTA_RESERVED: "False"},
            {Type.SUSPENDED: "WaitingForQuota"},
            "Queued",
        ),
        ({**HEALTHY, Type.STALLED: "True"}, {}, "Stalled"),
        ({Type.ACCEPTED: "True", Type.TRAINER_READY: "False"}, {Type.TRAINER_READY: "BackingOff"}, "Restarting"),
        ({Type.ACCEPTED: "True", Type.RUNNING: "False"}, {Type.RUNNING: "Starting"}, "Starting"),
        ({**HEALTHY, Type.DEGRADED: "True"}, {}, "Degraded"),
        (HEALTHY, {}, "Running"),
        ({}, {}, "Pending"),
    ],
)
def test_summary_is_the_first_word_that_fits(statuses: dict[Type, str], reasons: dict[Type, str], word: str) -> None:
    assert status.summary(statuses, reasons) == word
    assert status.summary(statuses, reasons, deleting=True) == "Terminating"


def test_stalled_is_failed_for_generic_clients_once_the_generation_is_observed() -> None:
    concluded = {
        (stalled, reconciling, lag): condition_rules.kstatus(
            {Type.STALLED: stalled, Type.RECONCILING: reconciling}, generation=2, observed_generation=2 - lag
        )
        for stalled, reconciling, lag in itertools.product(("True", "False"), ("True", "False"), (0, 1))
    }
    assert {key for key, word in concluded.items() if word == "Current"} == {("False", "False", 0)}
    assert {key for key, word in concluded.items() if word == "Failed"} == {("True", "False", 0)}


def test_only_complete_and_failed_are_terminal() -> None:
    assert [kind for kind in Type if status.is_terminal({kind: "True"})] == [Type.COMPLETE, Type.FAILED]


def test_every_type_has_reasons_for_true_and_false_and_all_are_camel_case() -> None:
    assert list(REASONS) == list(Type)
    for by_status in REASONS.values():
        assert {"True", "False"} <= set(by_status)
        for reason in itertools.chain.from_iterable(by_status.values()):
            assert reason[0].isupper()
            assert reason.isalpha()


def test_ready_types_have_the_reason_ready_and_stalls_are_a_closed_set() -> None:
    assert {REASONS[kind]["True"] for kind in Type if kind.endswith("Ready")} == {("Ready",)}
    assert len(set(STALL_REASONS)) == 20
    assert REASONS[Type.STALLED]["True"] == (*STALL_REASONS, "Failed", "NotAccepted")
