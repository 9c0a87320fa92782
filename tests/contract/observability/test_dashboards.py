"""Dashboards are what their module makes, in Grafana's shape, and ask only for what a process exports."""

import itertools
import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
import yaml
from generators import dashboards, metric_catalog
from generators import panels as panel_model
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models import dashboard as grafana_model

from rljob_testing import promql, rules
from rljob_testing.charts import Helm, only
from rljob_testing.prometheus import Promtool, PromtoolError

BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(dashboards.FOLDER.glob("*.json"))}
# Units of Grafana that ours use: https://github.com/grafana/grafana, packages/grafana-data, valueFormats.
UNITS = {"short", "s", "bytes", "percentunit", "ops", "reqps", "Bps"}
VARIABLES = {"$__rate_interval": "5m", "$__interval": "1m"}
_SOURCE = {
    "type": "object",
    "required": ["type", "uid"],
    "properties": {"type": {"const": "prometheus"}, "uid": {"const": "${datasource}"}},
}
_PANEL = {
    "type": "object",
    "required": ["id", "type", "title", "gridPos"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "type": {"enum": ["row", "timeseries", "stat", "table", "heatmap"]},
        "title": {"type": "string", "minLength": 1},
        "gridPos": {
            "type": "object",
            "required": ["x", "y", "w", "h"],
            "properties": {
                "x": {"type": "integer", "minimum": 0, "maximum": 23},
                "y": {"type": "integer", "minimum": 0},
                "w": {"type": "integer", "minimum": 1, "maximum": 24},
                "h": {"type": "integer", "minimum": 1},
            },
        },
        "datasource": _SOURCE,
        "targets": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["refId", "expr", "datasource"],
                "properties": {
                    "refId": {"type": "string", "pattern": "^[A-Z]$"},
                    "expr": {"type": "string", "minLength": 1},
                    "datasource": _SOURCE,
                },
            },
        },
    },
    "if": {"properties": {"type": {"const": "row"}}},
    "else": {"required": ["description", "datasource", "targets", "fieldConfig", "options"]},
}
SCHEMA = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "annotations", "time", "tags", "links"],
    "properties": {
        # Grafana's own limit of a uid.
        "uid": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"},
        "title": {"type": "string", "minLength": 1},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "id": False,
        "panels": {"type": "array", "minItems": 1, "items": _PANEL},
        "timezone": {"const": "utc"},
        "templating": {
            "type": "object",
            "required": ["list"],
            "properties": {"list": {"items": {"type": "object", "required": ["name", "type", "query"]}}},
        },
        "annotations": {
            "type": "object",
            "required": ["list"],
            "properties": {"list": {"items": {"type": "object", "required": ["name", "expr", "datasource"]}}},
        },
    },
}


# What Grafana's model leaves to the Prometheus data source: what its editor shows of a variable's query, and how often
# and under which words it looks for annotations. Grafana itself keeps and loads both.
# https://github.com/grafana/grafana, public/app/plugins/datasource/prometheus.
OF_THE_SOURCE = re.compile(
    r"templating\.list\[\d+\]\.definition|annotations\.list\[\d+\]\.(step|titleFormat|textFormat)"
)

plugins.register_default_plugins()


def through_grafana(made: dict[str, Any]) -> dict[str, Any]:
    """Return what is left of a dashboard that Grafana's model has read and written."""
    written: dict[str, Any] = json.loads(json.dumps(grafana_model.Dashboard.from_json(made), cls=encoder.JSONEncoder))
    return written


def lost(made: object, kept: object, path: str = "") -> Iterator[str]:
    """Yield where the first says something that the second does not."""
    if isinstance(made, dict) and isinstance(kept, dict):
        for key, value in made.items():
            yield from lost(value, kept.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(made, list) and isinstance(kept, list) and len(made) == len(kept):
        for index, (one, other) in enumerate(zip(made, kept, strict=True)):
            yield from lost(one, other, f"{path}[{index}]")
    elif made != kept:
        yield path


def panels(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield panels that show something."""
    yield from (panel for panel in made["panels"] if panel["type"] != "row")


def expressions(made: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield where an expression is and the expression."""
    for panel in panels(made):
        yield from ((f"{panel['title']} {target['refId']}", target["expr"]) for target in panel["targets"])
    yield from ((mark["name"], mark["expr"]) for mark in made["annotations"]["list"])


def resolved(expr: str) -> str:
    """Return an expression with Grafana's own variables replaced."""
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def parse(promtool: Promtool, folder: pathlib.Path, *exprs: str) -> None:
    """Let promtool parse expressions, each as a recording rule. Raises PromtoolError."""
    path = folder / "rules.yaml"
    parsed = [{"record": f"panel:number:n{index}", "expr": expr} for index, expr in enumerate(exprs)]
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": parsed}]}))
    promtool.check_rules(path)


def test_files_are_what_their_module_makes() -> None:
    made = {name: dashboards.text(board) for name, board in dashboards.boards().items()}
    kept = {path.stem: path.read_text() for path in sorted(dashboards.FOLDER.glob("*.json"))}
    assert kept == made, "run `make gen` and commit"


@pytest.mark.parametrize("name", BOARDS)
def test_dashboard_has_the_shape_that_grafana_loads(name: str) -> None:
    assert [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(BOARDS[name])] == []


def test_a_dashboard_with_a_fixed_source_or_without_a_description_has_another_shape() -> None:
    made = json.loads(json.dumps(BOARDS["run"]))
    panel = next(panels(made))
    panel["datasource"]["uid"] = "P1809F7CD0C75ACF3"
    del panel["description"]
    messages = [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(made)]
    assert len(messages) == 2


@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_own_model_reads_a_dashboard_and_loses_nothing_of_it(name: str) -> None:
    left_out = lost(BOARDS[name], through_grafana(BOARDS[name]))
    assert [path for path in left_out if not OF_THE_SOURCE.fullmatch(path)] == []


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("panels[1].fieldConfg", lambda made: made["panels"][1].update(fieldConfg={"defaults": {}})),
        ("panels[1].options.grafMode", lambda made: made["panels"][1]["options"].update(grafMode="none")),
        ("panels[1].targets[0].expresion", lambda made: made["panels"][1]["targets"][0].update(expresion="up")),
        ("templating.list[1].refesh", lambda made: made["templating"]["list"][1].update(refesh=2)),
    ],
)
def test_field_that_grafana_does_not_know_is_found(path: str, change: Callable[[dict[str, Any]], None]) -> None:
    made = json.loads(json.dumps(BOARDS["run"]))
    change(made)
    assert path in set(lost(made, through_grafana(made)))


def test_uids_and_titles_are_unique() -> None:
    for key in ("uid", "title"):
        assert len({made[key] for made in BOARDS.values()}) == len(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_ids_and_places_of_their_own(name: str) -> None:
    ids = [panel["id"] for panel in BOARDS[name]["panels"]]
    assert len(ids) == len(set(ids))
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in BOARDS[name]["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < panel_model.WIDTH


@pytest.mark.parametrize("name", BOARDS)
def test_panel_asks_a_question_has_a_unit_and_says_what_is_good(name: str) -> None:
    for panel in panels(BOARDS[name]):
        question, good, otherwise = panel["description"].split("\n\n")
        assert question.endswith("?"), panel["title"]
        assert (good[:6], otherwise[:10]) == ("Good: ", "Otherwise:"), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_dashboard_reads_only_what_a_process_exports(name: str) -> None:
    found = {where: promql.faults(resolved(expr), rules.recorded()) for where, expr in expressions(BOARDS[name])}
    assert {where: faults for where, faults in found.items() if faults} == {}


@pytest.mark.parametrize("name", BOARDS)
def test_promtool_parses_every_expression(promtool: Promtool, tmp_path: pathlib.Path, name: str) -> None:
    parse(promtool, tmp_path, *(resolved(expr) for _, expr in expressions(BOARDS[name])))


def test_promtool_finds_an_expression_that_does_not_parse(promtool: Promtool, tmp_path: pathlib.Path) -> None:
    with pytest.raises(PromtoolError, match="parse error"):
        parse(promtool, tmp_path, "sum by (rljob) (rljob_step")


@pytest.mark.parametrize("name", BOARDS)
def test_variables_that_expressions_use_are_declared(name: str) -> None:
    made = BOARDS[name]
    text = json.dumps([made["panels"], made["annotations"], made["templating"]])
    used = set(re.findall(r"\$\{?([a-zA-Z_]\w*)", text)) - {"__rate_interval", "__interval", "__all"}
    assert used <= {variable["name"] for variable in made["templating"]["list"]}


@pytest.mark.parametrize("name", [name for name in BOARDS if name not in ("fleet", "operator")])
def test_dashboard_of_a_job_asks_for_that_job_alone(name: str) -> None:
    for where, expr in expressions(BOARDS[name]):
        ours = [selector for selector in promql.selectors(expr) if selector.name.startswith("rljob")]
        for selector in ours:
            assert {("rljob", ("$rljob",)), ("rljob_namespace", ("$rljob_namespace",))} <= set(selector.matchers), where


def test_runbooks_that_dashboards_name_exist() -> None:
    named = set(re.findall(r"Runbook of (\w+)", json.dumps(BOARDS)))
    assert named
    assert named <= {alert.name for alert in rules.alerts()}


def test_chart_has_each_dashboard_in_a_config_map_of_its_own(helm: Helm) -> None:
    made = helm.template()
    for name, board in BOARDS.items():
        found = only(made, "ConfigMap", f"rljob-operator-dashboard-{name}")
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["annotations"] == {"grafana_folder": "rljob"}
        assert json.loads(found["data"][f"rljob-{name}.json"]) == board
        assert len(found["data"][f"rljob-{name}.json"]) < 500_000


def test_dashboards_can_be_left_out_and_labelled_otherwise(helm: Helm) -> None:
    def shown(**values: Any) -> list[dict[str, Any]]:
        made = helm.template({"monitoring": {"dashboards": values}})
        return [each for each in made if "-dashboard-" in each["metadata"]["name"]]

    assert shown(enabled=False) == []
    labelled = shown(labels={"grafana_dashboard": None, "team": "a"}, annotations={"grafana_folder": None})
    assert len(labelled) == len(BOARDS)
    for each in labelled:
        assert each["metadata"]["labels"]["team"] == "a"
        assert "grafana_dashboard" not in each["metadata"]["labels"]
        assert "annotations" not in each["metadata"]


def everything() -> dict[str, str]:
    """Return input for promtool: all series that a job and the operator can have, growing where they can."""
    made = {}
    for entry in metric_catalog.exported().values():
        own = {**metric_catalog.VALUES.get(entry.metric.name, {}), "rljob_namespace": ["team"], "rljob": ["run"]}
        where = {"pod": f"{entry.process}-0", "instance": f"{entry.process}-0:8080"}
        grows = entry.metric.kind != "g" or entry.metric.name == "rljob_step"
        for values in itertools.product(*(own[label] or ["one"] for label in entry.labels)):
            labels = {**dict(zip(entry.labels, values, strict=True)), **where}
            for name in metric_catalog.series(entry):
                for le in ("1", "10", "+Inf") if name.endswith("_bucket") else (None,):
                    made[written(name, labels if le is None else {**labels, "le": le})] = "0+1x60" if grows else "1x60"
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        made[written(name, {"pod": "rollout-0", "instance": "rollout-0:8080"})] = "1x60"
    for process in ("operator", "trainer"):
        for name in ("process_resident_memory_bytes", "process_cpu_seconds_total"):
            made[written(name, {"pod": f"{process}-0", "instance": f"{process}-0:8080"})] = "0+1x60"
    return made


def written(name: str, labels: dict[str, str]) -> str:
    matchers = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{matchers}}}"


def test_every_query_is_evaluated_and_has_data_where_all_series_are_there(
    promtool: Promtool, tmp_path: pathlib.Path
) -> None:
    queries = {target["expr"] for made in BOARDS.values() for panel in panels(made) for target in panel["targets"]}
    chosen = {"$rljob_namespace": "team", "$rljob": "run"}
    tests = []
    for query in sorted(queries):
        expr = resolved(query)
        for name, value in chosen.items():
            expr = expr.replace(f'"{name}"', f'"{value}"')
        tests.append(
            {"expr": f"count({expr}) > bool 0", "eval_time": "45m", "exp_samples": [{"labels": "{}", "value": 1}]}
        )
    series = [{"series": name, "values": values} for name, values in everything().items()]
    scene = {"interval": "1m", "input_series": series, "promql_expr_test": tests}
    path = tmp_path / "tests.yaml"
    path.write_text(rules.unit_tests([scene]))
    assert len(tests) > 100
    promtool.test_rules(path)
