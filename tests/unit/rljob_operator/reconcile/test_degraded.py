"""Why a running job is degraded."""

import pytest

from rljob_api import enums, types
from rljob_api.conditions import DEGRADED_BY_RUN, REASONS, ConditionType
from rljob_operator.reconcile import conditions

R, V = enums.Role.ROLLOUT, enums.Role.VERIFIER
WANTED = {R: 3, V: 2}


def reason(rollouts: int = 3, verifiers: int = 2, said: str = "") -> str:
    return conditions.degraded_reason(ready={R: rollouts, V: verifiers}, desired=WANTED, run_reason=said)


def test_a_job_that_has_what_it_asked_for_is_not_degraded_nor_one_that_has_more() -> None:
    assert (reason(), reason(rollouts=4)) == ("", "")


def test_pods_that_are_missing_come_before_what_the_coordinator_says() -> None:
    assert reason(rollouts=2, said="LedgerLost") == "RolloutsBelowTarget"
    assert reason(verifiers=1, said="LedgerLost") == "VerifiersBelowTarget"


@pytest.mark.parametrize("said", DEGRADED_BY_RUN)
def test_what_the_coordinator_says_of_the_run_is_the_reason_with_a_sentence(said: str) -> None:
    assert reason(said=said) == said
    assert conditions.degraded_message(said, fraction="0.2")
    assert said in REASONS[ConditionType.DEGRADED]["True"]


def test_a_run_that_diverges_is_told_in_the_coordinator_s_own_sentence() -> None:
    concern = types.Concern(reason="LearningDiverged", message="lower the learning rate")
    told = conditions.degraded_message("LearningDiverged", fraction="0.2", concerns=[concern])
    assert told == "lower the learning rate"


def test_a_reason_of_another_condition_is_no_reason() -> None:
    assert reason(said="FilterStarvation") == ""


def test_the_share_that_was_asked_for_is_in_the_sentence() -> None:
    assert conditions.degraded_message("InfraFailureShareHigh", fraction="0.35").endswith(
        "maxInfraFailureFraction, 0.35"
    )
