"""`docs/metrics.md` from the declarations in the code: `python -m generators.metrics_page`."""

from collections.abc import Sequence

from generators import ROOT, metric_catalog
from rljob_api import enums

PAGE = ROOT / "docs" / "metrics.md"
_KINDS = {"c": "counter", "g": "gauge", "h": "histogram"}
_WHERE = {
    metric_catalog.OPERATOR: "Operator",
    enums.Role.COORDINATOR: "Coordinator",
    enums.Role.ROLLOUT: "Rollout",
    enums.Role.VERIFIER: "Verifier",
    enums.Role.JUDGE: "Judge",
    enums.Role.ENVIRONMENT: "Environment",
    enums.Role.TRAINER: "Trainer, rank 0",
}
_HEAD = """# Metrics
Every process answers `GET /metrics`: the programs of a job on their health port, the operator on its metrics
port. This page is made from the declarations in the code (`make gen`).
Rules (`charts/rljob-operator/files/rules`) and dashboards (`charts/rljob-operator/files/dashboards`) use these names
and no others, which tests hold. What to do when an alert fires: `docs/runbooks/README.md`.

- Series of a job carry `rljob_namespace` and `rljob`; the tables of its programs leave the two out. `namespace`,
  `pod` and `instance` belong to the scraper.
- A gauge is absent until its first value. Counters begin at 0 with their process: totals of record are in the job's
  status.
- One process reports one fact: rank 0 of the trainer reports the figures of a training step. `rljob_tokens_total` with
  `kind="trained"` comes from there, the other kinds from rollouts.
- Versions and steps are plain numbers; all other units are in the name. A histogram has `_bucket`, `_sum` and
  `_count`.
- Rollouts pass on what vLLM counts as `vllm:*`, without the two labels of the job.
"""


def text() -> str:
    entries = metric_catalog.entries()
    parts = [_HEAD]
    for process, title in _WHERE.items():
        rows = [_row(entry) for entry in entries if entry.process == process and entry.written]
        parts.append(
            "\n".join([f"## {title}", "| name | type | labels | meaning |", "|---|---|---|---|", *rows]) + "\n"
        )
    unwritten = [
        f"- `{entry.metric.name}` ({entry.process}): {entry.metric.help}" for entry in entries if not entry.written
    ]
    missing = [f"- `{name}`: {why}." for name, why in metric_catalog.OPEN.items()]
    open_lists = {
        "Declared, but no code writes it yet, so no series exists:": unwritten,
        "Asked for, but not declared:": missing,
    }
    sections = [f"{title}\n" + "\n".join(lines) + "\n" for title, lines in open_lists.items() if lines]
    parts += ["## Not there yet\n" + "\n".join(sections)] if sections else []
    return "\n".join(parts)


def _row(entry: metric_catalog.Entry) -> str:
    metric = entry.metric
    values = metric_catalog.VALUES.get(metric.name, {})
    labels = [_label(label, values.get(label, metric_catalog.ANY)) for label in metric.labels]
    return f"| `{metric.name}` | {_KINDS[metric.kind]} | {', '.join(labels) or '-'} | {metric.help} |"


def _label(label: str, values: Sequence[str]) -> str:
    return f"`{label}` ({', '.join(values)})" if values else f"`{label}`"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
