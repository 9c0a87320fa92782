"""docs/metrics.md says what the code exports: every metric, its type, its labels, and what is still open."""

import pytest
from generators import ROOT, metric_catalog, metrics_page

from rljob_api import enums, process_config
from rljob_operator.telemetry import metrics as operator_metrics
from rljob_testing import full_pages
from rljob_testing.prometheus import Promtool, PromtoolError
from rljob_workers.runtime import metrics as worker_metrics

ENTRIES = metric_catalog.entries()
SOURCES = "\n".join(
    path.read_text() for folder in ("operator", "workers", "proto") for path in sorted((ROOT / folder).rglob("*.py"))
)
JOB = process_config.JobIdentity(name="j", namespace="n", uid="u")


def test_the_page_is_made_from_the_declarations() -> None:
    written = metrics_page.PAGE.read_text(encoding="utf-8")
    assert written == metrics_page.text(), "run `make gen` and commit"


def test_a_name_is_declared_by_one_process() -> None:
    declared = [entry.metric.name for entry in ENTRIES]
    assert sorted(declared) == sorted(set(declared))
    assert not set(declared) & set(metric_catalog.OPEN), "what is declared is not open"


@pytest.mark.parametrize("role", list(enums.Role))
def test_a_registry_of_a_role_has_what_is_declared_for_it_with_its_type(role: enums.Role) -> None:
    registry = worker_metrics.Metrics(role=role, job=JOB).registry
    made = {family.name: family.type for family in registry.collect() if family.name.startswith("rljob_")}
    kinds = {"c": "counter", "g": "gauge", "h": "histogram"}
    declared = {
        entry.metric.name.removesuffix("_total"): kinds[entry.metric.kind]
        for entry in ENTRIES
        if entry.process == role or (role is enums.Role.TRAINER and entry.metric.name == "rljob_tokens_total")
    }
    assert made == declared


def test_the_operators_registry_has_what_is_declared_but_for_gauges_that_others_hold() -> None:
    made = {family.name for family in operator_metrics.Metrics().registry.collect()}
    declared = {entry.metric.name.removesuffix("_total") for entry in ENTRIES if entry.process == enums.OPERATOR}
    held = {
        f"rljob_operator_{what}"
        for what in (
            "leader",
            "queue_depth",
            "queue_oldest_seconds",
            "refused_lists",
            "status_streams",
            "report_age_seconds",
            "cache_objects",
            "watch_lag_seconds",
        )
    }
    assert declared - made == held
    assert {name for name in made - declared if not name.startswith("process_")} == set()


def test_an_unlabelled_counter_that_nothing_writes_is_not_declared() -> None:
    idle = [entry.metric.name for entry in ENTRIES if not entry.written and entry.metric.kind == "c"]
    assert idle == [], "it would be shown as 0 for ever"


def test_every_label_has_its_values_or_is_a_name_of_a_user() -> None:
    for entry in ENTRIES:
        own = [label for label in entry.metric.labels if label not in metric_catalog.JOB_LABELS]
        assert sorted(metric_catalog.VALUES.get(entry.metric.name, {})) == sorted(own), entry.metric.name


def test_values_are_described_of_declared_metrics_alone() -> None:
    assert set(metric_catalog.VALUES) <= {entry.metric.name for entry in ENTRIES}


def test_every_value_of_a_label_is_a_word_of_the_code() -> None:
    absent = [
        (name, label, value)
        for name, labels in metric_catalog.VALUES.items()
        for label, values in labels.items()
        for value in values
        if f'"{value}"' not in SOURCES and value not in ("true", "false")
    ]
    assert absent == [], "no code writes that word"


def test_labels_leave_those_of_the_scraper_alone() -> None:
    taken = {"job", "namespace", "pod", "instance", "container"}
    assert [entry.metric.name for entry in ENTRIES if taken & set(entry.labels)] == []


# docs/design/chart.md#s-8-4; a rollout's is without vLLM's own.
BUDGETS = {
    enums.Role.COORDINATOR: 400,
    enums.Role.ROLLOUT: 155,
    enums.Role.VERIFIER: 120,
    enums.Role.TRAINER: 300,
}


def full(role: enums.Role) -> bytes:
    """Return the exposition with every closed label value at once, and one name for each label that is a user's."""
    made = worker_metrics.Metrics(role=role, job=JOB)
    full_pages.fill(made, role)
    return made.exposition()


@pytest.mark.parametrize("role", list(BUDGETS))
def test_all_series_that_a_process_can_have_stay_within_its_budget(role: enums.Role) -> None:
    lines = full(role).decode().splitlines()
    assert 0 < len([line for line in lines if not line.startswith(("#", "process_"))]) <= BUDGETS[role]


@pytest.mark.parametrize("role", list(enums.Role))
def test_promtool_finds_no_fault_in_what_a_role_shows(promtool: Promtool, role: enums.Role) -> None:
    promtool.check_metrics(full(role))


def test_promtool_finds_no_fault_in_what_the_operator_shows(promtool: Promtool) -> None:
    made = operator_metrics.Metrics()
    made.answered("get", "pods", 200)
    made.reconciled("ok", 0.1)
    made.reported(True)
    promtool.check_metrics(made.exposition())


def test_promtool_finds_a_counter_without_its_suffix(promtool: Promtool) -> None:
    with pytest.raises(PromtoolError, match="_total"):
        promtool.check_metrics(b"# HELP rljob_a A.\n# TYPE rljob_a counter\nrljob_a 1\n")
