"""The rule files of the chart as data."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from generators import CHART, ROOT

FOLDER = CHART / "files" / "rules"
FILES = tuple(sorted(FOLDER.glob("*.yaml")))
# promtool evaluates groups in any order at an instant unless it is reported one.
GROUPS = ("rljob.recording", "rljob.jobs", "rljob.operator")
RUNBOOKS = ROOT / "docs" / "runbooks" / "README.md"
_JOB = frozenset({"rljob_namespace", "rljob"})
# A window in brackets, an offset, and how long an alert must hold; numbers without a unit are not durations.
_DURATION = re.compile(r"(?<=\[)(\d+)([smhd])(?=\])|(?<=offset )(\d+)([smhd])\b|(?<=for: )(\d+)([smhd])$", re.MULTILINE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def unit_tests(tests: Sequence[Mapping[str, Any]], *, every: str = "1m", files: Sequence[pathlib.Path] = FILES) -> str:
    """Return a file of promtool's unit tests over the rules of these files, which are evaluated `every` so often."""
    document = {
        "rule_files": list(map(str, files)),
        "group_eval_order": list(GROUPS),
        "evaluation_interval": every,
        "tests": list(tests),
    }
    return yaml.safe_dump(document)


@dataclasses.dataclass(frozen=True, slots=True)
class Alert:
    """An alert as its file has it. for_: how long it must hold, empty for at once."""

    name: str
    expr: str
    for_: str
    severity: str
    annotations: dict[str, str]


def rules() -> Iterator[dict[str, Any]]:
    """Yield all rules."""
    for path in FILES:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]


def alerts() -> list[Alert]:
    """Return all alerts in the order of their file."""
    return [
        Alert(
            name=rule["alert"],
            expr=rule["expr"],
            for_=rule.get("for", ""),
            severity=rule["labels"]["severity"],
            annotations=rule["annotations"],
        )
        for rule in rules()
        if "alert" in rule
    ]


def recorded() -> dict[str, frozenset[str]]:
    """Return the labels of each recording rule: the job's, and what its outermost level adds."""
    more = {"rljob:tokens:rate5m": {"kind"}}
    more |= {name: {"reward"} for name in ("rljob:gradings:increase15m", "rljob:verify_pass:share15m")}
    return {rule["record"]: _JOB | more.get(rule["record"], set()) for rule in rules() if "record" in rule}


def with_alert(folder: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Write the rule files to a folder with one alert, and all that is recorded; no rule reads what an alert says."""
    written = []
    for path in FILES:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in document["groups"]:
            group["rules"] = [rule for rule in group["rules"] if rule.get("alert") in (None, name)]
        written.append(folder / path.name)
        written[-1].write_text(yaml.safe_dump(document), encoding="utf-8")
    return written


def scaled(folder: pathlib.Path, *, factor: float) -> list[pathlib.Path]:
    """Write the rule files to a folder with each window, offset and `for` divided by `factor`; all else is as it is.

    So an alert of half an hour can be provoked in minutes. Thresholds keep their meaning where they are shares; those
    that are counts or seconds keep their numbers, over shorter windows.
    """
    written = []
    for path in FILES:
        text = _DURATION.sub(lambda found: _shorter(found, factor), path.read_text(encoding="utf-8"))
        written.append(folder / path.name)
        written[-1].write_text(text, encoding="utf-8")
    return written


def _shorter(found: "re.Match[str]", factor: float) -> str:
    number, unit = (group for group in found.groups() if group is not None)
    return f"{round(int(number) * _SECONDS[unit] * 1000 / factor)}ms"
