import pytest

from rljob_api import enums, lifecycle
from rljob_api.manifest.lifecycle import FailureRuleSpec


def _end(code: int | None, reason: str = "") -> lifecycle.Exit:
    return lifecycle.Exit(role=enums.Role.TRAINER, exit_code=code, reason=reason)


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
        (-9, "infrastructure"),
        (-15, "infrastructure"),
        (-11, "application"),
        (-6, "application"),
    ],
)
def test_exit_code_decides_the_class(code: int, expected: str) -> None:
    assert lifecycle.classify(_end(code)) == expected


@pytest.mark.parametrize("reason", ["Evicted", "NodeLost", "NodeShutdown", "UnexpectedAdmissionError"])
def test_pod_that_the_cluster_took_is_infrastructure(reason: str) -> None:
    assert lifecycle.classify(_end(None, reason)) is lifecycle.FailureClass.INFRASTRUCTURE


def test_running_out_of_memory_is_the_applications_own_failure() -> None:
    end = lifecycle.Exit(role=enums.Role.TRAINER, exit_code=137, container_reason="OOMKilled")
    assert lifecycle.classify(end) is lifecycle.FailureClass.APPLICATION


def test_disruption_deletion_and_a_lost_node_are_infrastructure() -> None:
    ends = (
        lifecycle.Exit(role=enums.Role.TRAINER, exit_code=1, conditions=frozenset({("DisruptionTarget", "True")})),
        lifecycle.Exit(role=enums.Role.TRAINER, exit_code=143, deleted_by_others=True),
        lifecycle.Exit(role=enums.Role.TRAINER, exit_code=None, node_ready=False),
    )
    assert [lifecycle.classify(end) for end in ends] == [lifecycle.FailureClass.INFRASTRUCTURE] * 3


def test_third_attempt_without_a_step_is_the_applications_whatever_its_class() -> None:
    assert lifecycle.classify(_end(75), attempts_without_step=2) is lifecycle.FailureClass.INFRASTRUCTURE
    assert lifecycle.classify(_end(75), attempts_without_step=3) is lifecycle.FailureClass.APPLICATION


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
    actions = {code: getattr(lifecycle.matching_rule(_end(code), rules), "action", None) for code in (3, 5, 4, None)}
    assert actions == {3: "FailJob", 5: "Restart", 4: None, None: None}


def test_backoff_doubles_from_ten_seconds_to_three_hundred() -> None:
    assert [lifecycle.backoff_s(n) for n in (1, 2, 3, 4, 5, 6, 1000)] == [10, 20, 40, 80, 160, 300, 300]
    with pytest.raises(ValueError, match="at least 1"):
        lifecycle.backoff_s(0)


def test_budget_is_exceeded_by_the_failure_after_the_last_allowed_restart() -> None:
    def reason(application: int, infrastructure: int) -> str | None:
        return lifecycle.exceeded_budget(
            application=application, infrastructure=infrastructure, max_trainer_restarts=10, max_infra_restarts=100
        )

    assert [reason(10, 100), reason(11, 0), reason(0, 101)] == [None, "RestartLimitExceeded", "InfraLimitExceeded"]


def test_backoff_has_the_bounds_that_are_asked_for() -> None:
    assert [lifecycle.backoff_s(n, first_s=1.0, max_s=10.0) for n in (1, 2, 3, 4, 5, 1000)] == [1, 2, 4, 8, 10, 10]


def test_a_deadline_counts_from_what_began_and_is_none_without_a_limit_or_a_beginning() -> None:
    assert lifecycle.deadline(100.0, 60) == 160.0
    assert lifecycle.deadline(900.0, 60) == 960.0, "a segment that was resumed has its whole limit again"
    assert lifecycle.deadline(100.0, None) is None
    assert lifecycle.deadline(None, 60) is None


def test_a_deadline_is_reached_at_its_second_and_never_by_a_clock_that_jumped_back() -> None:
    end = lifecycle.deadline(1000.0, 60)
    assert [lifecycle.is_over(end, now) for now in (1059.0, 1060.0, 10.0)] == [False, True, False]
    assert not lifecycle.is_over(None, 1e12)


def test_a_failure_by_time_names_the_field_and_its_value() -> None:
    failures = (lifecycle.startup_exceeded(1800), lifecycle.scheduling_exceeded(60), lifecycle.active_exceeded(3600.0))
    assert [(failure.reason, failure.message.split("spec.")[1]) for failure in failures] == [
        ("StartupDeadlineExceeded", "startupDeadlineSeconds = 1800"),
        ("SchedulingDeadlineExceeded", "schedulingDeadlineSeconds = 60"),
        ("ActiveDeadlineExceeded", "activeDeadlineSeconds = 3600"),
    ]


def test_codes_and_signals_are_described_in_words() -> None:
    assert lifecycle.describe_exit(1) == "exit code 1"
    assert lifecycle.describe_exit(-9) == "signal SIGKILL"
