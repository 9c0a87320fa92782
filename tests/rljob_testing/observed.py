"""A run as Prometheus saw it: each metric with the value that was seen, each panel's answer, a picture of a dashboard.

The queries are those of the chart's dashboards, for one job. Times are unix seconds.
"""

import dataclasses
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from generators import dashboards, metric_catalog

from rljob_testing.prometheus import Server

# As many points as a picture shows.
_POINTS = 120
_RATE = "2m"
_COLUMNS = 3
_WIDTH, _HEIGHT = 4.2, 2.3
# Rollouts have the engine's besides; the operator has its own and those of each job.
_BUDGETS = {"coordinator": 400, "trainer": 300, "verifier": 120, "rollout": 150 + 600}
_OPERATORS, _OF_A_JOB = 60, 90
# Labels that may be empty, which Prometheus stores as no label.
_MAY_BE_EMPTY = {"rljob_info": {"queue"}}
# What has a series only once something happened, or on other machines: words of a query, and what that is.
_NEEDS = {
    "ALERTS{": "an alert that fires",
    "rljob_weight_sync_failures_total": "an update that failed",
    "rljob_prompt_retries_total": "an answer that could not be judged",
    "rljob_infra_failures_total": "a failure of the infrastructure",
    "rljob_drain_seconds": "a rollout that is drained",
    "rljob_verifier_workers_ended_total": "a grading worker that ended",
    "rljob_judge_": "a reward that a judge gives",
    "rljob_stalled": "a stall",
    'type="Failed"} == 1': "a job that failed",
    "rljob_recovery_seconds": "a pod that was lost",
    "rljob_pod_replacements_total": "a pod that was made again",
    "rljob_operator_reconcile_errors_total": "an error of the operator",
    "rljob_kl_reference": "a reference model",
    "rljob_kl_teacher": "a teacher",
    "rljob_entropy_coef": "a target of the entropy",
    "rljob_mfu_ratio": "an accelerator whose peak is known",
    "rljob_gpu_memory_bytes": "an accelerator",
}
PICTURE = "observed.svg"
# Types of the text format by the letters of the declarations.
_KINDS = {"c": "counter", "g": "gauge", "h": "histogram"}


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """From the first scrape of a run to its last."""

    start: float
    end: float

    @property
    def step_s(self) -> float:
        """Return the seconds between two points."""
        return max(5.0, (self.end - self.start) / _POINTS)


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """One query of a panel, for one job."""

    board: str
    panel: str
    query: str
    legend: str
    unit: str
    kind: str


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a metric. kind: as the process said it. labels: those of ours. last: of its largest series."""

    name: str
    process: str
    kind: str
    labels: tuple[str, ...]
    num_series: int
    last: float


def questions(job: str, namespace: str) -> list[Question]:
    """Return what all panels of all dashboards ask."""
    chosen = {
        "$__rate_interval": _RATE,
        "$__interval": _RATE,
        '"$rljob_namespace"': f'"{namespace}"',
        '"$rljob"': f'"{job}"',
    }
    found = []
    for path in sorted(dashboards.FOLDER.glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                query = str(target["expr"])
                for name, value in chosen.items():
                    query = query.replace(name, value)
                unit = panel["fieldConfig"]["defaults"].get("unit", "short")
                legend = target.get("legendFormat", "")
                found.append(Question(path.stem, panel["title"], query, legend, unit, panel["type"]))
    return found


def without_data(server: Server, asked: Iterable[Question], span: Span) -> list[Question]:
    """Return the questions that had no answer at any time of a run. Raises PromtoolError for a broken one."""
    return [one for one in asked if not _points(server, one.query, span)]


def needed(question: Question) -> str:
    """Return what an undisturbed run on a CPU lacks so that a question has an answer; empty if nothing is lacking."""
    return next((what for name, what in _NEEDS.items() if name in question.query), "")


def _points(server: Server, query: str, span: Span) -> list[dict[str, Any]]:
    return server.query_range(query, start=span.start, end=span.end, step_s=span.step_s)


def types_of(server: Server) -> dict[str, str]:
    """Return the type of each metric as its process says it, of the targets that are scraped now."""
    return {name: told[0]["type"] for name, told in (server.get("metadata") or {}).items()}


def metrics(server: Server, span: Span, kinds: Mapping[str, str]) -> list[Seen]:
    """Return what was seen of every metric of the catalogue; those without a series have none."""
    found = []
    for entry in metric_catalog.exported().values():
        name = entry.metric.name
        sample = f"{name}_count" if entry.metric.kind == "h" else name
        told = _points(server, sample, span)
        last = [float(series["values"][-1][1]) for series in told]
        labels = {label for series in told for label in series["metric"]}
        ours = tuple(label for label in entry.labels if label in labels)
        kind = kinds.get(name, "")
        found.append(Seen(name, entry.process, kind, ours, len(told), max(last, default=math.nan)))
    return found


def wrong_types(seen: Iterable[Seen]) -> list[str]:
    """Return a sentence for each metric whose type or labels are not the declared ones."""
    entries, found = metric_catalog.exported(), []
    for one in seen:
        if not one.num_series:
            continue
        entry = entries[one.name]
        if one.kind != _KINDS[entry.metric.kind]:
            found.append(f"{one.name} is a {one.kind or 'metric without type'}, not a {_KINDS[entry.metric.kind]}")
        if set(entry.labels) - set(one.labels) - _MAY_BE_EMPTY.get(one.name, set()):
            found.append(f"{one.name} has labels {one.labels}, not {entry.labels}")
    return found


def budget(process: str, *, num_jobs: int = 1) -> int:
    """Return the most series that a process of a job may have, or else the operator: docs/design/chart.md#s-8-4."""
    return _BUDGETS.get(process, _OPERATORS + _OF_A_JOB * num_jobs)


def num_jobs(server: Server, span: Span) -> int:
    """Return how many jobs the operator reported."""
    told = _points(server, "count(count by (rljob_namespace, rljob) (rljob_info))", span)
    return max(int(value) for _, value in told[0]["values"])


def series_by_pod(server: Server, span: Span, prefixes: Sequence[str]) -> dict[str, int]:
    """Return the most series that each pod showed at a time, of those whose name begins with one of the prefixes."""
    told = _points(server, 'count by (pod) ({__name__=~".+", pod!=""})', span)
    most = {row["metric"]["pod"]: max(int(value) for _, value in row["values"]) for row in told}
    return {pod: count for pod, count in sorted(most.items()) if pod.startswith(tuple(prefixes))}


def page(seen: Sequence[Seen], silent: Sequence[Question], num_asked: int, series: Mapping[str, int]) -> str:
    """Return the figures as a page in Markdown."""
    with_series = [one for one in seen if one.num_series]
    lines = [
        "# A run as Prometheus saw it",
        "",
        "The addition example on two nodes, scraped by a real Prometheus (`tests/cluster/nodes/test_observed.py`).",
        "",
        f"{len(with_series)} of {len(seen)} metrics had a series; {num_asked - len(silent)} of {num_asked} queries of"
        " the dashboards had data. What only a break or a failure shows: [a run that was broken](observed_breaks.md).",
        "",
        "The panels of a run's dashboard, drawn by matplotlib from the answers to their own queries; minutes below:",
        "",
        f"![Panels of a run's dashboard]({PICTURE})",
        "",
        "| metric | process | type | labels | series | largest at the end |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{one.name}` | {one.process} | {one.kind} | {', '.join(one.labels)} | {one.num_series} | {one.last:.6g} |"
        for one in with_series
    ]
    if missing := [one for one in seen if not one.num_series]:
        lines += ["", "Metrics of what did not happen in this run:", ""]
        lines += [f"- `{one.name}` ({one.process})" for one in missing]
    if silent:
        lines += ["", "Queries that had no data, and what they need:", "", "| panel | query | needs |", "|---|---|---|"]
        lines += [f"| {one.board}: {one.panel} | {_as_cell(one.query)} | {needed(one)} |" for one in silent]
    lines += ["", "| pod | series |", "|---|---|", *(f"| {pod} | {count} |" for pod, count in series.items())]
    return "\n".join(lines) + "\n"


def largest(server: Server, question: Question, span: Span) -> float | None:
    """Return the largest value that answered a question at any time of a run, None without an answer."""
    told = [float(value) for series in _points(server, question.query, span) for _, value in series["values"]]
    return max((value for value in told if not math.isnan(value)), default=None)


def page_of_breaks(seen: Mapping[Question, float | None]) -> str:
    """Return as a page in Markdown what a run showed that was broken on purpose."""
    lines = [
        "# A run that was broken, as Prometheus saw it",
        "",
        "What an undisturbed run has no data for (`observed.md`), asked of the job that",
        "`tests/cluster/nodes/test_chaos.py` breaks again and again, and of one beside it that cannot start.",
        "",
        "| panel | query | what it needs | largest value seen |",
        "|---|---|---|---|",
    ]
    for one, value in seen.items():
        told = "none" if value is None else f"{value:.4g}"
        lines.append(f"| {one.board}: {one.panel} | {_as_cell(one.query)} | {needed(one)} | {told} |")
    return "\n".join(lines) + "\n"


def _as_cell(query: str) -> str:
    return f"`{query.replace('|', chr(92) + '|')}`"


def picture(server: Server, asked: Sequence[Question], span: Span) -> str:
    """Return a dashboard's panels as SVG, drawn by matplotlib: lines over the minutes of the run."""
    import matplotlib
    from matplotlib.figure import Figure

    panels: dict[str, list[Question]] = {}
    for one in asked:
        panels.setdefault(one.panel, []).append(one)
    rows = math.ceil(len(panels) / _COLUMNS)
    figure = Figure(figsize=(_WIDTH * _COLUMNS, _HEIGHT * rows), layout="constrained")
    for index, (title, of_panel) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, _COLUMNS, index)
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=7)
        for one in of_panel:
            for series in _points(server, one.query, span):
                times = [(float(at) - span.start) / 60 for at, _ in series["values"]]
                values = [float(value) for _, value in series["values"]]
                axes.plot(times, values, linewidth=1.2, label=_label(one.legend, series["metric"]))
        if axes.lines and len(axes.lines) <= 6:
            axes.legend(fontsize=6, loc="best")
        axes.set_ylabel(
            {"percentunit": "share", "s": "seconds", "ops": "per second"}.get(of_panel[0].unit, ""), fontsize=7
        )
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "rljob", "font.size": 8}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _label(legend: str, labels: Mapping[str, str]) -> str:
    return _replaced(legend, lambda name: labels.get(name, "")) or "value"


def _replaced(legend: str, value_of: Callable[[str], str]) -> str:
    parts = legend.split("{{")
    filled = [parts[0]]
    for part in parts[1:]:
        name, _, rest = part.partition("}}")
        filled.append(value_of(name.strip()) + rest)
    return "".join(filled)
