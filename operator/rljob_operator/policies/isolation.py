"""What the reports of verifier pods' own tests come to. Pure; a report is JSON of the pod's first container.

A RuntimeClass cannot be proved from inside: a virtual machine's kernel is a Linux like any other. That the pod has the
class is enough, for no kubelet starts it by another handler; the layer is then `declared`. It `holds` where each pod's
kernel says that it is gVisor's.
"""

import dataclasses
import json
from collections.abc import Mapping

NETWORK, RUNTIME_CLASS = "network", "runtime_class"
HOLDS, DECLARED, MISSING = "holds", "declared", "missing"
_LONGEST_END = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Status, reason and message of IsolationVerified; the state of each layer over all pods; which are required."""

    status: str
    reason: str
    message: str = ""
    layers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    required: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """One pod's layers: what was seen where one holds or does not, what is required, and what of that is missing."""

    holding: Mapping[str, str]
    failing: Mapping[str, str]
    required: frozenset[str]
    missing: tuple[str, ...]


def read(text: str) -> Report | None:
    try:
        document = json.loads(text)
        layers = {str(name): (bool(layer["holds"]), str(layer["detail"])) for name, layer in document["layers"].items()}
        required = frozenset(str(name) for name, layer in document["layers"].items() if layer["required"])
        missing = tuple(str(name) for name in document["missing"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return Report(
        holding={name: detail for name, (holds, detail) in layers.items() if holds},
        failing={name: detail for name, (holds, detail) in layers.items() if not holds},
        required=required,
        missing=missing,
    )


def judge(texts: Mapping[str, str], *, runtime_class: str = "", classes: Mapping[str, str] | None = None) -> Verdict:
    """Return the verdict over pods by name.

    texts: each pod's report, empty while it has none. runtime_class: the one that the job asks for. classes: each pod's
    RuntimeClass, empty for one without.
    """
    for name, pod_class in sorted((classes or {}).items()):
        if runtime_class and pod_class != runtime_class:
            return _of_another_class(name, pod_class, runtime_class)
    reports = {name: read(text) for name, text in sorted(texts.items()) if text}
    for name, report in reports.items():
        if report is None:
            return Verdict("False", "ProbeFailed", f"{name}: its isolation test reported nothing ({_end(texts[name])})")
        if report.missing:
            return _lacking(name, report)
    waiting = [name for name, text in sorted(texts.items()) if not text]
    if waiting or not texts:
        return Verdict(
            "Unknown", "ProbePending", f"{waiting[0]} has not finished its isolation test" if waiting else ""
        )
    readable = [report for report in reports.values() if report is not None]
    required = frozenset[str]().union(*(report.required for report in readable))
    layers = _layers(readable)
    if not runtime_class:
        return Verdict("True", _proof(readable), layers=layers, required=required)
    if layers.get(RUNTIME_CLASS) != HOLDS:
        layers[RUNTIME_CLASS] = DECLARED
    return Verdict("True", "RuntimeClassVerified", layers=layers, required=required | {RUNTIME_CLASS})


def _end(text: str) -> str:
    """Return the last line of what is not a report: of a traceback, the error."""
    lines = text.strip().splitlines()
    return lines[-1][:_LONGEST_END] if lines else "nothing"


def _of_another_class(name: str, pod_class: str, requested: str) -> Verdict:
    actual = f"the pod has {pod_class!r}" if pod_class else "the pod has none"
    return Verdict(
        "False",
        "LayerMissing",
        f"{name}: {RUNTIME_CLASS} {requested!r} does not hold ({actual})",
        {RUNTIME_CLASS: MISSING},
        frozenset({RUNTIME_CLASS}),
    )


def _lacking(name: str, report: Report) -> Verdict:
    first = report.missing[0]
    detail = report.failing.get(first, "no test covers it")
    reason = "NetworkNotEnforced" if first == NETWORK else "LayerMissing"
    return Verdict(
        "False",
        reason,
        f"{name}: {', '.join(report.missing)} does not hold ({detail})",
        _layers([report]),
        report.required,
    )


def _proof(reports: list[Report]) -> str:
    users = all("user_namespace" in report.holding for report in reports)
    return "UserNamespaceVerified" if users else "SandboxVerified"


def _layers(reports: list[Report]) -> dict[str, str]:
    """Return each layer's state: it holds where it holds in every pod."""
    names = sorted({name for report in reports for name in (*report.holding, *report.failing)})
    return {name: HOLDS if all(name in report.holding for report in reports) else MISSING for name in names}
