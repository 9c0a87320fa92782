"""Each alert has a section of the runbooks, and nothing in them is about what does not exist."""

import re

import yaml
from generators import CHART, metric_catalog

from rljob_api.conditions import STALLS
from rljob_testing import rules

PAGE = rules.RUNBOOKS.read_text(encoding="utf-8")
SECTIONS = re.findall(r"^### (\w+)\n(.+?)(?=^##|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_each_alert_has_one_section_in_the_order_of_the_rules() -> None:
    assert [name for name, _ in SECTIONS] == [alert.name for alert in rules.alerts()]


def test_each_section_says_something() -> None:
    assert [name for name, text in SECTIONS if len(text.split()) < 20] == []


def test_stalls_are_explained_by_reason_all_of_them() -> None:
    (stalled,) = (text for name, text in SECTIONS if name == "RLJobStalled")
    rows = [
        f"| `{reason}` | {stall.means} | {stall.do}"
        + (f"; [{stall.runbook}](#{stall.runbook.lower()})" if stall.runbook else "")
        + " |"
        for reason, stall in STALLS.items()
    ]
    assert [line for line in stalled.splitlines() if line.startswith("| `")] == rows


def test_links_within_the_page_lead_to_a_section() -> None:
    anchors = {name.lower() for name, _ in SECTIONS}
    assert set(re.findall(r"\(#(\w+)\)", PAGE)) <= anchors


def test_metrics_that_runbooks_name_exist() -> None:
    named = set(re.findall(r"`(rljob_[a-z_]+)`", PAGE)) - set(metric_catalog.JOB_LABELS)
    assert named <= set(metric_catalog.exported())


def test_fields_of_a_job_and_values_of_the_chart_that_runbooks_name_exist() -> None:
    definition = yaml.safe_load((CHART / "files" / "rljob.dev_rljobs.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    heads = set(schema["spec"]["properties"]) | set(values)
    named = [name for name in re.findall(r"`([a-z]\w+(?:\.\w+)+)`", PAGE) if name.split(".")[0] in heads]
    assert len(named) > 20
    assert [name for name in named if not (_in_schema(schema["spec"], name) or _in_values(values, name))] == []


def _in_schema(schema: object, path: str) -> bool:
    for part in path.split("."):
        properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
        if part not in properties:
            return False
        schema = properties[part]
    return True


def _in_values(values: object, path: str) -> bool:
    for part in path.split("."):
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True
