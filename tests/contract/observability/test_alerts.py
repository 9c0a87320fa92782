"""Each alert fires when it should, and only then: promtool evaluates the chart's own rule files."""

import pathlib
import re
from typing import Any

import pytest
import yaml

from rljob_testing import promql, rules
from rljob_testing.alert_cases import CASES, INFO, Case, Input, condition, of_job, pods, setting
from rljob_testing.prometheus import Promtool, PromtoolError

ALERTS = {alert.name: alert for alert in rules.alerts()}
Test = dict[str, Any]
_LONG = "x2000"


def firing(name: str) -> str:
    """Return an expression for what fires of an alert, by the labels that people are sent."""
    labels = "alertname, severity, rljob_namespace, rljob"
    return f'group by ({labels}) (ALERTS{{alertname=~"{name}", alertstate="firing"}})'


def sample(name: str, case: Case) -> dict[str, Any]:
    job = "" if case.of_operator else ', rljob_namespace="team", rljob="run"'
    return {"labels": f'{{alertname="{name}", severity="{case.severity}"{job}}}', "value": 1}


def scene(inputs: Input, *, at: str, expr: str, expected: list[dict[str, Any]]) -> Test:
    return {
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in inputs.items()],
        "promql_expr_test": [{"expr": expr, "eval_time": at, "exp_samples": expected}],
    }


def run(promtool: Promtool, folder: pathlib.Path, *tests: Test, every: str = "1m", alert: str = "") -> None:
    """alert: what the tests look at alone; without it all alerts are evaluated."""
    path = folder / "tests.yaml"
    files = rules.with_alert(folder, alert) if alert else rules.FILES
    path.write_text(rules.unit_tests(tests, every=every, files=files))
    promtool.test_rules(path)


def test_promtool_finds_no_fault_in_the_rules(promtool: Promtool) -> None:
    promtool.check_rules(*rules.FILES)


def test_every_alert_has_cases_and_the_reverse() -> None:
    assert set(ALERTS) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_alert_fires_when_it_should_and_not_just_below(promtool: Promtool, tmp_path: pathlib.Path, name: str) -> None:
    case = CASES[name]
    job = {} if case.of_operator else {INFO: f"1{_LONG}"}
    run(
        promtool,
        tmp_path,
        scene({**job, **case.fires}, at=case.at, expr=firing(name), expected=[sample(name, case)]),
        scene({**job, **case.quiet}, at=case.at, expr=firing(name), expected=[]),
        every="5m" if "h" in case.at else "1m",
        alert=name,
    )


@pytest.mark.parametrize("gone", ["Suspended", "Complete", "Failed"])
def test_a_job_that_is_not_meant_to_progress_fires_nothing_else(
    promtool: Promtool, tmp_path: pathlib.Path, gone: str
) -> None:
    run(
        promtool,
        tmp_path,
        *(
            scene(
                {INFO: f"1{_LONG}", **case.fires, condition(gone): f"1{_LONG}"},
                at=case.at,
                expr=firing(name),
                expected=[],
            )
            for name, case in CASES.items()
            if not case.of_operator and not case.while_suspended
        ),
        every="5m",
    )


def test_without_any_data_only_the_absence_of_the_operator_is_told(promtool: Promtool, tmp_path: pathlib.Path) -> None:
    down = sample("RLJobOperatorDown", CASES["RLJobOperatorDown"])
    run(promtool, tmp_path, scene({}, at="7h", expr=firing(".+"), expected=[down]), every="5m")


def test_a_failure_is_told_for_a_day(promtool: Promtool, tmp_path: pathlib.Path) -> None:
    inputs = {condition("Failed"): "1x1600"}
    failed = sample("RLJobFailed", CASES["RLJobFailed"])
    run(
        promtool,
        tmp_path,
        scene(inputs, at="23h", expr=firing("RLJobFailed"), expected=[failed]),
        scene(inputs, at="25h", expr=firing("RLJobFailed"), expected=[]),
        every="10m",
        alert="RLJobFailed",
    )


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        pytest.param(
            "RLJobCoordinatorDown", {of_job("rljob_state", state="Starting"): "1x200"}, id="a job that starts"
        ),
        pytest.param(
            "RLJobPodsUnschedulable",
            {pods("rollout", "pending"): "1x200", condition("Running"): "1x200"},
            id="a job that runs while it scales up",
        ),
        pytest.param(
            "RLJobCheckpointStale",
            {
                of_job("rljob_checkpoint_last_success_timestamp_seconds"): "0x200",
                of_job("rljob_step"): "0+0.1x200",
                setting("checkpoint_every_steps"): "10x200",
            },
            id="six steps an hour, and a checkpoint every ten",
        ),
        pytest.param(
            "RLJobOperatorWriteStorm",
            {
                'rljob_operator_api_requests_total{verb="patch",resource="pods",code="2xx"}': "0+600x200",
                condition("Running"): "0 1 " * 100,
            },
            id="many writes because jobs change",
        ),
        pytest.param(
            "RLJobOperatorWriteStorm",
            {
                'rljob_operator_api_requests_total{verb="list",resource="all",code="2xx"}': "0+600x200",
                condition("Running"): "1x200",
            },
            id="many reads",
        ),
    ],
)
def test_alert_stays_quiet_for(promtool: Promtool, tmp_path: pathlib.Path, name: str, inputs: Input) -> None:
    run(promtool, tmp_path, scene({INFO: f"1{_LONG}", **inputs}, at="140m", expr=firing(name), expected=[]), alert=name)


def test_groups_that_a_filter_takes_out_count_as_those_that_teach_nothing(
    promtool: Promtool, tmp_path: pathlib.Path
) -> None:
    """19 of 20 groups a minute are alike throughout and filtered; the one that is left teaches."""
    inputs = {
        of_job("rljob_zero_advantage_groups_total"): "0x60",
        of_job("rljob_groups_dropped_total", reason="zero_spread"): "0+19x60",
        of_job("rljob_groups_dropped_total", reason="stale"): "0+50x60",
        of_job("rljob_group_seconds_count", phase="packed"): "0+1x60",
    }
    expected = [{"labels": of_job("rljob:zero_advantage:share30m"), "value": 0.95}]
    run(promtool, tmp_path, scene(inputs, at="50m", expr="rljob:zero_advantage:share30m", expected=expected))


def test_shares_are_zero_and_not_absent_where_nothing_of_the_kind_happened(
    promtool: Promtool, tmp_path: pathlib.Path
) -> None:
    inputs = {of_job("rljob_trajectories_total", outcome="accepted"): "0+10x60"}
    run(
        promtool,
        tmp_path,
        *(
            scene(inputs, at="30m", expr=name, expected=[{"labels": of_job(name), "value": 0}])
            for name in ("rljob:infra_failure:share15m", "rljob:stale:share15m")
        ),
    )


def test_a_case_that_expects_the_wrong_thing_fails(promtool: Promtool, tmp_path: pathlib.Path) -> None:
    case = CASES["RLJobDegraded"]
    with pytest.raises(PromtoolError, match="RLJobDegraded"):
        run(
            promtool,
            tmp_path,
            scene({INFO: f"1{_LONG}", **case.fires}, at=case.at, expr=firing("RLJobDegraded"), expected=[]),
            alert="RLJobDegraded",
        )


@pytest.mark.parametrize("rule", rules.rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_rule_reads_only_what_a_process_exports(rule: dict[str, Any]) -> None:
    assert promql.faults(rule["expr"], rules.recorded()) == []


@pytest.mark.parametrize("alert", ALERTS.values(), ids=lambda alert: alert.name)
def test_alert_says_what_happened_and_where_to_read_on(alert: rules.Alert) -> None:
    assert re.fullmatch(r"RLJob[A-Z][A-Za-z]+", alert.name)
    assert alert.severity in ("critical", "warning", "info")
    assert set(alert.annotations) == {"summary", "description", "runbook_url"}
    assert alert.annotations["runbook_url"] == f"docs/runbooks/README.md#{alert.name.lower()}"
    if not alert.name.startswith("RLJobOperator"):
        assert "{{ $labels.rljob_namespace }}/{{ $labels.rljob }}" in alert.annotations["summary"]


def test_groups_are_evaluated_in_an_order_that_names_all_of_them() -> None:
    named = [group["name"] for path in rules.FILES for group in yaml.safe_load(path.read_text())["groups"]]
    assert sorted(named) == sorted(rules.GROUPS)


def test_no_rule_reads_what_an_alert_says() -> None:
    assert [rule for rule in rules.rules() if "ALERTS" in rule["expr"]] == []


def test_names_of_rules_are_unique() -> None:
    named = [rule.get("alert") or rule["record"] for rule in rules.rules()]
    assert sorted(named) == sorted(set(named))
