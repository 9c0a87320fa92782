"""Rules for tests that provoke alerts: those of the chart, with shorter durations and nothing else changed."""

import pathlib
import re

import pytest
import yaml

from rljob_testing import rules
from rljob_testing.prometheus import Promtool

DURATION = re.compile(r"\b\d+(?:ms|s|m|h|d)\b")


def test_every_duration_is_divided_and_nothing_else_changes(tmp_path: pathlib.Path) -> None:
    made = rules.scaled(tmp_path, factor=10)
    assert [path.name for path in made] == [path.name for path in rules.FILES]
    for own, short in zip(rules.FILES, made, strict=True):
        with_durations, without = own.read_text(encoding="utf-8"), short.read_text(encoding="utf-8")
        assert DURATION.sub("T", with_durations) == DURATION.sub("T", without)


@pytest.mark.parametrize(
    ("alert", "own", "short"),
    [
        ("RLJobStalled", "1m", "6000ms"),
        ("RLJobTrainerStarved", "30m", "180000ms"),
        ("RLJobQueuedTooLong", "6h", "2160000ms"),
    ],
)
def test_alert_holds_a_tenth_as_long(alert: str, own: str, short: str, tmp_path: pathlib.Path) -> None:
    found = {}
    for path in (*rules.FILES, *rules.scaled(tmp_path, factor=10)):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            found |= {(path.parent, rule["alert"]): rule.get("for", "") for rule in group["rules"] if "alert" in rule}
    assert (found[rules.FOLDER, alert], found[tmp_path, alert]) == (own, short)


def test_windows_of_recording_rules_follow(tmp_path: pathlib.Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in rules.scaled(tmp_path, factor=10))
    assert "rate(rljob_trainer_wait_seconds_total[30000ms])" in text
    assert not re.search(r"\[\d+[smhd]\]|offset \d+[smhd]\b", text)


def test_prometheus_takes_them(promtool: Promtool, tmp_path: pathlib.Path) -> None:
    promtool.check_rules(*rules.scaled(tmp_path, factor=30))
