"""A panel as a question, and dashboards of them, made with Grafana's own builders. Panels are laid out here.

What the model of the dashboards leaves to the Prometheus data source (the words and the interval of annotations, the
text that an editor shows of a variable) is added to its JSON: Grafana keeps and loads both.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog import encoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as queries

Json = dict[str, Any]
GrafanaPanel = timeseries.Panel | stat.Panel | heatmap.Panel | table.Panel
WIDTH = 24
TAG = "rljob"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")


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


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label."""

    name: str
    label: str
    query: str
    several: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """A line on every time axis where an expression has a value."""

    name: str
    expr: str
    colour: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A dashboard. Its first variable chooses the data source: none is fixed."""

    name: str
    title: str
    rows: Sequence[Row]
    variables: Sequence[Variable]
    marks: Sequence[Mark]


def board(definition: Board) -> Json:
    """Return the JSON of a dashboard. Ids count from 1; panels fill lines from the left."""
    builder = (
        dashboard.Dashboard(definition.title)
        .uid(f"rljob-{definition.name}")
        .tags([TAG])
        .version(1)
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .timezone("utc")
        .time("now-6h", "now")
        .link(
            dashboard.DashboardLink("rljob")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in definition.variables:
        builder.with_variable(_variable(variable))
    for mark in definition.marks:
        builder.annotation(
            dashboard.AnnotationQuery()
            .name(mark.name)
            .datasource(SOURCE)
            .enable(True)
            .expr(mark.expr)
            .icon_color(mark.colour)
        )
    top = num_panels = 0
    for row in definition.rows:
        num_panels += 1
        builder.with_row(dashboard.Row(row.title).id(num_panels).grid_pos(models.GridPos(h=1, w=WIDTH, x=0, y=top)))
        top += 1
        left = height = 0
        for panel in row.panels:
            num_panels += 1
            if left + panel.width > WIDTH:
                top, left, height = top + height, 0, 0
            place = models.GridPos(h=panel.height, w=panel.width, x=left, y=top)
            builder.with_panel(_panel(panel).id(num_panels).grid_pos(place))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    whole: Json = json.loads(json.dumps(builder.build(), cls=encoder.JSONEncoder))
    for variable, written in zip(definition.variables, whole["templating"]["list"][1:], strict=True):
        written["definition"] = variable.query
    for mark, written in zip(definition.marks, whole["annotations"]["list"], strict=True):
        written |= {"step": "60s", "titleFormat": mark.name, "textFormat": mark.text}
    return whole


def _variable(variable: Variable) -> dashboard.QueryVariable:
    builder = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query({"query": variable.query, "refId": "StandardVariableQuery"})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(variable.several)
        .include_all(variable.several)
    )
    if variable.several:
        builder.all_value(".+").current(models.VariableOption(text="All", value="$__all"))
    return builder


def _panel(panel: Panel) -> GrafanaPanel:
    builder = (
        _KINDS[panel.kind](panel)
        .title(panel.title)
        .description(f"{panel.question}\n\nGood: {panel.good}\n\nOtherwise: {panel.otherwise}")
        .datasource(SOURCE)
        .unit(panel.unit)
    )
    if panel.most is not None:
        builder.min(0).max(panel.most)
    for index, query in enumerate(panel.queries):
        builder.with_target(_target(panel, query, index))
    return builder


def _timeseries(panel: Panel) -> timeseries.Panel:
    mode = options.StackingMode.NORMAL if panel.stacked else options.StackingMode.NONE
    legend = (
        common.VizLegendOptions()
        .display_mode(options.LegendDisplayMode.LIST)
        .placement(options.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    tooltip = common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.DESCENDING)
    return (
        timeseries.Panel()
        .fill_opacity(30 if panel.stacked else 0)
        .show_points(options.VisibilityMode.NEVER)
        .stacking(common.StackingConfig().mode(mode).group("A"))
        .legend(legend)
        .tooltip(tooltip)
    )


def _stat(_: Panel) -> stat.Panel:
    return (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
        .text_mode(options.BigValueTextMode.VALUE_AND_NAME)
        .color_mode(options.BigValueColorMode.NONE)
        .graph_mode(options.BigValueGraphMode.NONE)
    )


def _heatmap(panel: Panel) -> heatmap.Panel:
    return heatmap.Panel().calculate(False).y_axis(heatmap.YAxisConfig().unit(panel.unit)).cell_gap(1)


def _table(panel: Panel) -> table.Panel:
    # With one query, Grafana calls its column just Value.
    keys = ["Value"] if len(panel.queries) == 1 else [f"Value #{_letter(n)}" for n in range(len(panel.queries))]
    organized = {"excludeByName": {"Time": True}, "renameByName": dict(zip(keys, panel.columns, strict=True))}
    builder = table.Panel().show_header(True)
    for name, chosen in (("merge", {}), ("organize", organized)):
        builder.with_transformation(models.DataTransformerConfig(id_val=name, options=chosen))
    return builder


_KINDS: Mapping[str, Callable[[Panel], GrafanaPanel]] = {
    "timeseries": _timeseries,
    "stat": _stat,
    "heatmap": _heatmap,
    "table": _table,
}


def _target(panel: Panel, query: Query, index: int) -> prometheus.Dataquery:
    builder = (
        prometheus.Dataquery()
        .ref_id(_letter(index))
        .datasource(SOURCE)
        .expr(query.expr)
        .legend_format(query.legend or "__auto")
    )
    if panel.kind in ("table", "stat"):
        builder.instant()
        return builder.format(queries.PromQueryFormat.TABLE) if panel.kind == "table" else builder
    is_heatmap = panel.kind == "heatmap"
    formats = queries.PromQueryFormat
    return builder.range().format(formats.HEATMAP if is_heatmap else formats.TIME_SERIES)


def _letter(index: int) -> str:
    return chr(ord("A") + index)
