"""Pairing, statistics and output of the benchmark rows.

A row measures two sides, A B A B, first side drawn at random, and yields pairs. Ratio = median of per-pair ratios,
spread = interquartile range over median. A spread above 0.25 is `noisy`, which is not a pass.
"""

import dataclasses
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence

import yaml

NOISY = 0.25
CPUINFO = pathlib.Path("/proc/cpuinfo")
THRESHOLDS = pathlib.Path(__file__).with_name("thresholds.yaml")


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """One measurement of both sides, in the row's unit."""

    ours: float
    peer: float
    first: str = "ours"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a row returns. `reason` says why it was skipped."""

    row: str
    title: str
    unit: str
    pairs: Sequence[Pair]
    params: dict[str, object] = dataclasses.field(default_factory=dict)
    agreement: str = ""
    notes: Sequence[str] = ()
    reason: str = ""


Row = Callable[[str, pathlib.Path], Sequence[Measured]]


def spread(ratios: Sequence[float]) -> float:
    """Return interquartile range over median; 0 for fewer than three values, and where nothing is what is aimed at."""
    if len(ratios) < 3 or not any(ratios):
        return 0.0
    low, _, high = statistics.quantiles(ratios, n=4)
    return (high - low) / statistics.median(ratios)


def verdict(*, ratio: float, ratio_spread: float, bar: float, direction: str) -> str:
    """Return pass, fail or noisy."""
    if ratio_spread > NOISY:
        return "noisy"
    return "pass" if (ratio >= bar if direction == "higher" else ratio <= bar) else "fail"


def machine() -> dict[str, object]:
    """Return what the figures depend on."""
    models = [line.split(":", 1)[1].strip() for line in CPUINFO.read_text().splitlines() if "model name" in line]
    cpu = models[0] if models else platform.processor()
    memory_kb = int(pathlib.Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kb / 2**20, 1),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
    }


def commit() -> tuple[str, bool]:
    """Return the commit and whether the tree differs from it."""
    revision = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=False).stdout
    return revision, bool(changed.strip())


def judge(measured: Measured, command: str) -> dict[str, object]:
    """Return the row's JSON object."""
    bars = yaml.safe_load(THRESHOLDS.read_text())[measured.row]
    revision, dirty = commit()
    row: dict[str, object] = {
        "schema": 1,
        "row": measured.row,
        "title": measured.title,
        "commit": revision,
        "dirty": dirty,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": machine(),
        "params": measured.params,
        "pairs": [dataclasses.asdict(pair) | {"unit": measured.unit} for pair in measured.pairs],
        "bar": bars["bar"],
        "aim": bars["aim"],
        "why": bars["why"],
        "agreement": measured.agreement,
        "notes": list(measured.notes),
    }
    if measured.reason or not measured.pairs:
        return row | {"verdict": "skipped", "reason": measured.reason or "nothing was measured"}
    ratios = [pair.ours / pair.peer for pair in measured.pairs]
    ratio, ratio_spread = statistics.median(ratios), spread(ratios)
    return row | {
        "median_ours": statistics.median(pair.ours for pair in measured.pairs),
        "median_peer": statistics.median(pair.peer for pair in measured.pairs),
        "ratio": ratio,
        "spread": ratio_spread,
        "verdict": verdict(ratio=ratio, ratio_spread=ratio_spread, bar=bars["bar"], direction=bars["direction"]),
    }


def table(rows: Sequence[dict[str, object]]) -> str:
    """Return the Markdown table of judged rows."""
    lines = ["| row | what | ours | peer | ratio | spread | bar (aim) | verdict |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        figures = [row.get(key) for key in ("median_ours", "median_peer", "ratio", "spread")]
        shown = " | ".join("-" if figure is None else f"{figure:.3g}" for figure in figures)
        lines.append(f"| {row['row']} | {row['title']} | {shown} | {row['bar']} ({row['aim']}) | {row['verdict']} |")
    return "\n".join(lines)


def save(rows: Sequence[dict[str, object]], out: pathlib.Path) -> None:
    """Write one JSON object a line and the table."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (out / "table.md").write_text(table(rows) + "\n")
