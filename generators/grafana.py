"""Grafana's dashboard model, as little of it as ours need. Panels are laid out here: no position is kept by hand."""

import dataclasses
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]
# The model of Grafana 11; newer versions migrate it on loading.
SCHEMA_VERSION = 39
WIDTH = 24
TAG = "rljob"
SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and how its series are called, such as `{{pod}}`."""

    expr: str
    legend: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One question. `good`: what the answer looks like when all is well; `otherwise`: what to do when it does not.

    unit: Grafana's name of a unit. kind: timeseries, stat, table or heatmap. columns: titles of a table's values.
    """

    title: str
    question: str
    good: str
    otherwise: str
    unit: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    most: float | None = None
    columns: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Panels under a title."""

    title: str
    panels: Sequence[Panel]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A dashboard. per_job: it shows one job; otherwise all of the namespaces that are chosen, or the operator."""

    name: str
    title: str
    rows: Sequence[Row]
    variables: Sequence[Json]
    annotations: Sequence[Json]


def source_variable() -> Json:
    """Return the variable that chooses the data source: none is fixed."""
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def label_variable(name: str, label: str, query: str, *, several: bool = False) -> Json:
    """Return a variable whose values are those of a label."""
    made: Json = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "refresh": 2,
        "sort": 1,
        "multi": several,
        "includeAll": several,
    }
    return made | ({"allValue": ".+", "current": {"text": "All", "value": "$__all"}} if several else {})


def annotation(name: str, expr: str, colour: str, text: str) -> Json:
    """Return marks on every time axis where an expression has a value."""
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "expr": expr,
        "iconColor": colour,
        "step": "60s",
        "titleFormat": name,
        "textFormat": text,
    }


def board(made: Board) -> Json:
    """Return the JSON of a dashboard. Ids count from 1; panels fill lines from the left."""
    panels: list[Json] = []
    top = 0
    for row in made.rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
                "panels": [],
            }
        )
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left, height = top + height, 0, 0
            position = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            panels.append({"id": len(panels) + 1, **_panel(panel), "gridPos": position})
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return {
        "uid": f"rljob-{made.name}",
        "title": made.title,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "timezone": "utc",
        "time": {"from": "now-6h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "title": "rljob",
                "tags": [TAG],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [source_variable(), *made.variables]},
        "annotations": {"list": list(made.annotations)},
        "panels": panels,
    }


def _panel(panel: Panel) -> Json:
    defaults: Json = {"unit": panel.unit}
    if panel.most is not None:
        defaults |= {"min": 0, "max": panel.most}
    made: Json = {
        "type": panel.kind,
        "title": panel.title,
        "description": f"{panel.question}\n\nGood: {panel.good}\n\nOtherwise: {panel.otherwise}",
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {},
        "targets": [_target(panel, query, index) for index, query in enumerate(panel.queries)],
    }
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {"fillOpacity": 30 if panel.stacked else 0, "showPoints": "never", "stacking": stacking}
        made["options"] = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    elif panel.kind == "stat":
        made["options"] = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "value_and_name",
            "colorMode": "none",
            "graphMode": "none",
        }
    elif panel.kind == "heatmap":
        made["options"] = {"calculate": False, "yAxis": {"unit": panel.unit}, "cellGap": 1}
    elif panel.kind == "table":
        # With one query, Grafana calls its column just Value.
        keys = ["Value"] if len(panel.queries) == 1 else [f"Value #{_letter(n)}" for n in range(len(panel.queries))]
        names = dict(zip(keys, panel.columns, strict=True))
        made["transformations"] = [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": names}},
        ]
    return made


def _target(panel: Panel, query: Query, index: int) -> Json:
    target: Json = {
        "refId": _letter(index),
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
    }
    if panel.kind == "table":
        return target | {"format": "table", "instant": True, "range": False}
    if panel.kind == "stat":
        return target | {"instant": True, "range": False}
    return target | {"format": "heatmap" if panel.kind == "heatmap" else "time_series", "range": True}


def _letter(index: int) -> str:
    return chr(ord("A") + index)
