import pytest

from rljob_api import names
from rljob_api.manifest.lifecycle import FailureRuleSpec
from rljob_operator.policies import failure


def _end(code: int | None, reason: str = "") -> failure.PodEnd:
    return failure.PodEnd(role=names.Role.TRAINER, exit_code=code, reason=reason)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, "finished"),
        (80, "requested"),
        (75, "infrastructure"),
        (78, "configuration"),
        (79, "configuration"),
        (1, "application"),
        (137, "application"),
    ],
)
def test_exit_code_decides_the_class(code: int, expected: str) -> None:
    assert failure.classify(_end(code)) == expected


@pytest.mark.parametrize("reason", ["Evicted", "NodeLost", "NodeShutdown", "UnexpectedAdmissionError"])
def test_pod_that_the_cluster_took_is_infrastructure(reason: str) -> None:
    assert failure.classify(_end(None, reason)) is failure.FailureClass.INFRASTRUCTURE


def test_running_out_of_memory_is_the_applications_own_failure() -> None:
    end = failure.PodEnd(role=names.Role.TRAINER, exit_code=137, container_reason="OOMKilled")
    assert failure.classify(end) is failure.FailureClass.APPLICATION


def test_disruption_deletion_and_a_lost_node_are_infrastructure() -> None:
    ends = (
        failure.PodEnd(role=names.Role.TRAINER, exit_code=1, conditions=frozenset({("DisruptionTarget", "True")})),
        failure.PodEnd(role=names.Role.TRAINER, exit_code=143, deleted_by_others=True),
        failure.PodEnd(role=names.Role.TRAINER, exit_code=None, node_ready=False),
    )
    assert [failure.classify(end) for end in ends] == [failure.FailureClass.INFRASTRUCTURE] * 3


def test_third_attempt_without_a_step_is_the_applications_whatever_its_class() -> None:
    assert failure.classify(_end(75), fruitless_attempts=2) is failure.FailureClass.INFRASTRUCTURE
    assert failure.classify(_end(75), fruitless_attempts=3) is failure.FailureClass.APPLICATION


def test_first_matching_rule_wins_and_all_its_criteria_must_match() -> None:
    rules = tuple(
        FailureRuleSpec.model_validate_json(text)
        for text in (
            '{"action": "Ignore", "role": "rollout"}',
            '{"action": "Ignore", "exitCodes": {"operator": "In", "values": [3]}, "containerReasons": ["OOMKilled"]}',
            '{"action": "FailJob", "exitCodes": {"operator": "In", "values": [3]}}',
            '{"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [4]}}',
            '{"action": "Ignore", "podConditions": [{"type": "DisruptionTarget"}]}',
        )
    )
    actions = {code: getattr(failure.matching_rule(_end(code), rules), "action", None) for code in (3, 5, 4, None)}
    assert actions == {3: "FailJob", 5: "Restart", 4: None, None: None}


def test_backoff_doubles_from_ten_seconds_to_three_hundred() -> None:
    assert [failure.backoff_s(n) for n in (1, 2, 3, 4, 5, 6, 1000)] == [10, 20, 40, 80, 160, 300, 300]
    with pytest.raises(ValueError, match="at least 1"):
        failure.backoff_s(0)


def test_budget_is_exceeded_by_the_failure_after_the_last_allowed_restart() -> None:
    def reason(application: int, infrastructure: int) -> str | None:
        return failure.exceeded_budget(
            application=application, infrastructure=infrastructure, max_trainer_restarts=10, max_infra_restarts=100
        )

    assert [reason(10, 100), reason(11, 0), reason(0, 101)] == [None, "RestartLimitExceeded", "InfraLimitExceeded"]
