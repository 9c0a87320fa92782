"""The chart's PrometheusRule is the rule files, with what the values say of alerts."""

import pathlib
import re
from typing import Any

import pytest
import yaml
from generators import CHART

from rljob_testing import rules
from rljob_testing.charts import Helm, HelmError, only
from rljob_testing.prometheus import Promtool

API = "monitoring.coreos.com/v1"
Rule = dict[str, Any]


def rendered(helm: Helm, alerts: dict[str, Any] | None = None, **more: Any) -> dict[str, Rule]:
    """Return the rules of a render by name."""
    values = {"monitoring": {"prometheusRule": {"enabled": True, "alerts": alerts or {}, **more}}}
    groups = only(helm.template(values), "PrometheusRule")["spec"]["groups"]
    return {rule.get("alert") or rule["record"]: rule for group in groups for rule in group["rules"]}


def test_rules_are_rendered_as_their_files_have_them(helm: Helm) -> None:
    assert rendered(helm) == {rule.get("alert") or rule["record"]: rule for rule in rules.rules()}


@pytest.mark.parametrize(
    ("enabled", "apis", "expected"),
    [("auto", (), False), ("auto", (API,), True), (True, (), True), (False, (API,), False)],
)
def test_rules_are_made_where_they_are_wanted_and_served(
    helm: Helm, enabled: object, apis: tuple[str, ...], expected: bool
) -> None:
    made = helm.template({"monitoring": {"prometheusRule": {"enabled": enabled}}}, api_versions=apis)
    assert ("PrometheusRule" in [each["kind"] for each in made]) is expected


def test_values_replace_threshold_duration_and_severity_of_one_alert(helm: Helm) -> None:
    own = rendered(helm)
    made = rendered(helm, {"RLJobTrainerStarved": {"threshold": 0.35, "for": "1h", "severity": "info"}})
    changed = {name for name in own if own[name] != made[name]}
    assert changed == {"RLJobTrainerStarved"}
    starved = made["RLJobTrainerStarved"]
    assert starved["expr"] == own["RLJobTrainerStarved"]["expr"].removesuffix("0.5") + "0.35"
    assert (starved["for"], starved["labels"]) == ("1h", {"severity": "info"})


def test_an_alert_can_be_left_out(helm: Helm) -> None:
    assert set(rendered(helm)) - set(rendered(helm, {"RLJobDegraded": {"enabled": False}})) == {"RLJobDegraded"}


def test_runbooks_are_where_the_values_say(helm: Helm) -> None:
    made = rendered(helm, runbookBaseURL="https://wiki.example.org/rljob")
    assert made["RLJobStalled"]["annotations"]["runbook_url"] == "https://wiki.example.org/rljob#rljobstalled"


@pytest.mark.parametrize(
    ("alerts", "message"),
    [
        ({"RLJobStaled": {"for": "1m"}}, "RLJobStaled: unknown alert"),
        ({"RLJobFailed": {"threshold": 2}}, "RLJobFailed.threshold = 2: the expression of this alert has no threshold"),
        ({"RLJobStalled": {"fro": "1m"}}, "fro"),
        ({"RLJobStalled": {"for": "a minute"}}, "for"),
    ],
)
def test_what_no_alert_has_is_refused_by_name(helm: Helm, alerts: dict[str, Any], message: str) -> None:
    with pytest.raises(HelmError, match=message):
        rendered(helm, alerts)


def test_promtool_takes_every_threshold_that_the_values_can_set(
    helm: Helm, promtool: Promtool, tmp_path: pathlib.Path
) -> None:
    alerts = [alert.name for alert in rules.alerts() if re.search(r"[<>] [0-9.]+$", alert.expr)]
    made = rendered(helm, {name: {"threshold": 1234567.5} for name in alerts})
    assert len(alerts) > 20
    assert all(made[name]["expr"].split()[-1] == "1.2345675e+06" for name in alerts)
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "rendered", "rules": list(made.values())}]}))
    promtool.check_rules(path)


def test_the_values_of_ci_set_alerts(helm: Helm) -> None:
    made = only(helm.template(files=[CHART / "ci" / "monitoring-values.yaml"]), "PrometheusRule")
    assert made["metadata"]["labels"]["release"] == "prometheus"
