"""What a PromQL expression names: series, their matchers, and labels of groupings and joins. Parsing is promtool's."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

from generators import metric_catalog

# Labels that Prometheus or the scraper's configuration adds, alongside those of histograms.
ADDED = frozenset({"namespace", "pod", "instance", "le"})
_OURS = re.compile(r"(?<![\w:\"/$])((?:rljob[_:]|ALERTS|vllm:|process_|container_)[\w:]*)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


@dataclasses.dataclass(frozen=True, slots=True)
class Selector:
    """A series by name and the values that each label is compared with; alternatives of a pattern are split."""

    name: str
    matchers: tuple[tuple[str, tuple[str, ...]], ...]


def selectors(expression: str) -> Iterator[Selector]:
    """Yield what an expression reads."""
    for name, braces in _OURS.findall(_without_groupings(expression)):
        matchers = tuple((label, tuple(value.split("|"))) for label, _, value in _MATCHER.findall(braces))
        yield Selector(name=name, matchers=matchers)


def grouped_labels(expression: str) -> set[str]:
    """Return the labels that an expression aggregates or joins by."""
    return {label.strip() for inside in _GROUPED.findall(expression) for label in inside.split(",") if label.strip()}


def faults(expression: str, recorded: Mapping[str, frozenset[str]]) -> list[str]:
    """Return a sentence for each name, label or value that no process exports. `recorded`: labels by recording rule."""
    exported = {name: entry for entry in metric_catalog.exported().values() for name in metric_catalog.series(entry)}
    known = {label for entry in exported.values() for label in entry.labels} | ADDED
    known |= {label for labels in recorded.values() for label in labels}
    known |= {"alertname", "severity"} if "ALERTS" in expression else set()
    found = [f"no series has the label {label}" for label in grouped_labels(expression) - known]
    for selector in selectors(expression):
        if selector.name.startswith(("vllm:", "process_", "ALERTS")):
            continue
        values: Mapping[str, Sequence[str]] = {}
        if selector.name in recorded:
            labels = recorded[selector.name]
        elif selector.name in exported:
            entry = exported[selector.name]
            labels, values = frozenset(entry.labels), metric_catalog.VALUES.get(entry.metric.name, {})
        else:
            found.append(f"no process exports {selector.name}")
            continue
        for label, compared in selector.matchers:
            if label not in labels | ADDED:
                found.append(f"{selector.name} has no label {label}")
            closed = values.get(label, metric_catalog.ANY)
            found += [
                f"{selector.name} never has {label}={value!r}"
                for value in compared
                if closed and not value.startswith("$") and value not in closed
            ]
    return found


def _without_groupings(expression: str) -> str:
    return _GROUPED.sub("", expression)
