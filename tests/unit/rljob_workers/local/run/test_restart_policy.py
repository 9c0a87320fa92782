"""Expected decisions are those of docs/design/operator.md#s-9-5 to #s-9-8, worked by hand."""

import dataclasses

import pytest

from rljob_api import enums
from rljob_api.lifecycle import Failure, FailureClass
from rljob_api.manifest.lifecycle import ExitCodesSpec, FailureRuleSpec
from rljob_workers.local.run import restart_policy
from rljob_workers.local.run.restart_policy import Done, Ending, History, Policy, Restart

TRAINER, ROLLOUT, COORDINATOR = enums.Role.TRAINER, enums.Role.ROLLOUT, enums.Role.COORDINATOR


def ending(role: enums.Role = TRAINER, code: int = 1, **changes: float) -> Ending:
    return dataclasses.replace(Ending(role=role, code=code, ran_s=5.0, steps_gained=1), **changes)  # type: ignore[arg-type]  # a test's shorthand


def decide(
    what: Ending, *, history: History | None = None, policy: Policy | None = None, run_finished: bool = False
) -> restart_policy.Decision:
    return restart_policy.decide(what, history or History(), policy or Policy(), run_finished=run_finished)


def test_trainer_that_ends_with_zero_has_finished_the_run() -> None:
    assert decide(ending(code=0)) == Done(finished=True)


def test_trainer_that_stopped_on_request_is_done_without_finishing() -> None:
    assert decide(ending(code=80)) == Done(finished=False)


def test_rollout_that_leaves_a_finished_run_is_done() -> None:
    assert decide(ending(ROLLOUT, code=0), run_finished=True) == Done(finished=True)


def test_rollout_that_leaves_an_unfinished_run_is_started_again_as_infrastructure() -> None:
    decision = decide(ending(ROLLOUT, code=0))
    assert isinstance(decision, Restart)
    assert decision.failure is FailureClass.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("code", "reason"), [(78, "ConfigurationError"), (79, "IsolationUnverified"), (2, "ConfigurationError")]
)
def test_configuration_and_isolation_errors_are_never_retried(code: int, reason: str) -> None:
    decision = decide(ending(ROLLOUT, code=code))
    assert isinstance(decision, Failure)
    assert decision.reason == reason


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (75, FailureClass.INFRASTRUCTURE),
        (-9, FailureClass.INFRASTRUCTURE),
        (-15, FailureClass.INFRASTRUCTURE),
        (1, FailureClass.APPLICATION),
        (-11, FailureClass.APPLICATION),
        (-6, FailureClass.APPLICATION),
        (80, FailureClass.REQUESTED),
    ],
)
def test_exit_codes_and_signals_have_a_class(code: int, expected: FailureClass) -> None:
    assert restart_policy.classify(ending(code=code)) is expected


def test_backoff_doubles_from_the_first_delay_and_stops_at_the_cap() -> None:
    history, delays = History(), []
    for _ in range(6):
        decision = decide(ending(), history=history, policy=Policy(first_delay_s=1.0, most_delay_s=10.0))
        assert isinstance(decision, Restart)
        delays.append(decision.delay_s)
        history = decision.history
    assert delays == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_backoff_of_the_trainer_starts_again_after_a_checkpoint() -> None:
    decision = decide(ending(checkpoints_gained=1), history=History(in_a_row=5))
    assert isinstance(decision, Restart)
    assert decision.delay_s == 1.0


def test_backoff_of_a_rollout_starts_again_after_a_minute_of_work() -> None:
    decision = decide(ending(ROLLOUT, ran_s=60.0), history=History(in_a_row=5))
    assert isinstance(decision, Restart)
    assert decision.delay_s == 1.0


def test_application_failures_are_counted_against_max_trainer_restarts() -> None:
    policy = Policy(max_app_restarts=2)
    first = decide(ending(), policy=policy)
    assert isinstance(first, Restart)
    second = decide(ending(), history=first.history, policy=policy)
    assert isinstance(second, Restart)
    assert second.history.application == 2
    third = decide(ending(), history=second.history, policy=policy)
    assert isinstance(third, Failure)
    assert third.reason == "RestartLimitExceeded"
    assert "spec.failurePolicy.maxTrainerRestarts = 2" in third.message


def test_infrastructure_failures_have_a_budget_of_their_own() -> None:
    policy = Policy(max_app_restarts=0, max_infra_restarts=1)
    first = decide(ending(code=-9), policy=policy)
    assert isinstance(first, Restart)
    second = decide(ending(code=-9), history=first.history, policy=policy)
    assert isinstance(second, Failure)
    assert second.reason == "InfraLimitExceeded"


@pytest.mark.parametrize("role", [TRAINER, ROLLOUT, COORDINATOR])
@pytest.mark.parametrize("code", [-9, 1])
def test_run_that_passes_checkpoints_outlives_any_number_of_failures(role: enums.Role, code: int) -> None:
    history, policy = History(), Policy(max_app_restarts=2, max_infra_restarts=2)
    for _ in range(100):
        for checkpoints_gained in (0, 1):
            decision = decide(
                ending(role, code=code, checkpoints_gained=checkpoints_gained), history=history, policy=policy
            )
            assert isinstance(decision, Restart)
            history = decision.history
    assert max(history.application, history.infrastructure) == 1


@pytest.mark.parametrize("role", [TRAINER, ROLLOUT, COORDINATOR])
def test_run_that_passes_no_checkpoint_ends_when_its_restarts_are_used(role: enums.Role) -> None:
    history, policy = History(), Policy(max_infra_restarts=2)
    for _ in range(2):
        decision = decide(ending(role, code=-9, steps_gained=1), history=history, policy=policy)
        assert isinstance(decision, Restart)
        history = decision.history
    decision = decide(ending(role, code=-9, steps_gained=1), history=history, policy=policy)
    assert isinstance(decision, Failure)
    assert "spec.failurePolicy.maxInfraRestarts = 2 restarts since the last checkpoint are used" in decision.message


def test_third_trainer_attempt_without_a_step_counts_as_application_whatever_its_class() -> None:
    history, failures = History(), []
    for _ in range(3):
        decision = decide(ending(code=75, steps_gained=0), history=history)
        assert isinstance(decision, Restart)
        failures.append(decision.failure)
        history = decision.history
    assert failures == [FailureClass.INFRASTRUCTURE, FailureClass.INFRASTRUCTURE, FailureClass.APPLICATION]


def test_a_step_between_failures_resets_the_count_of_fruitless_attempts() -> None:
    decision = decide(ending(code=75, steps_gained=1), history=History(fruitless=2))
    assert isinstance(decision, Restart)
    assert decision.failure is FailureClass.INFRASTRUCTURE
    assert decision.history.fruitless == 0


def test_first_matching_rule_wins() -> None:
    codes = ExitCodesSpec(operator="In", values=(3,))
    rules = (
        FailureRuleSpec(action="Ignore", role="trainer", exitCodes=codes),
        FailureRuleSpec(action="FailJob", exitCodes=codes),
    )
    ignored = decide(ending(code=3), policy=Policy(rules=rules, max_app_restarts=0))
    assert isinstance(ignored, Restart)
    assert ignored.history.application == 0
    failed = decide(ending(ROLLOUT, code=3), policy=Policy(rules=rules))
    assert isinstance(failed, Failure)
    assert failed.reason == "FailJobRule"


def test_rule_about_codes_that_are_not_listed_matches_the_others() -> None:
    rule = FailureRuleSpec(action="FailJob", exitCodes=ExitCodesSpec(operator="NotIn", values=(75,)))
    assert isinstance(decide(ending(code=1), policy=Policy(rules=(rule,))), Failure)
    assert isinstance(decide(ending(code=75), policy=Policy(rules=(rule,))), Restart)


@pytest.mark.parametrize("code", [2, 78, 79, 75, -9, 1])
def test_agents_are_started_again_whatever_their_code_says_and_however_often(code: int) -> None:
    worn = History(application=1000, infrastructure=1000, in_a_row=3)
    decision = decide(ending(enums.Role.AGENTS, code=code), history=worn)
    assert isinstance(decision, Restart)
    assert decision.delay_s == 8.0
    assert decision.history == dataclasses.replace(worn, in_a_row=4)


def test_agents_that_end_well_are_started_again_without_a_longer_wait() -> None:
    decision = decide(ending(enums.Role.AGENTS, code=0), history=History(in_a_row=5))
    assert isinstance(decision, Restart)
    assert decision.delay_s == 1.0


def test_a_rule_may_end_a_run_by_a_code_of_its_agents() -> None:
    rule = FailureRuleSpec(action="FailJob", exitCodes=ExitCodesSpec(operator="In", values=(3,)))
    assert isinstance(decide(ending(enums.Role.AGENTS, code=3), policy=Policy(rules=(rule,))), Failure)
