"""Evaluations in the ledger: pinned to a version, one group per prompt, finished once, results kept per suite."""

import dataclasses
import json
from collections.abc import Mapping, Sequence

from rljob_api import enums, types
from rljob_workers.coordinator.ledger import groups
from rljob_workers.coordinator.ledger.database import Database, Ledger, Row
from rljob_workers.coordinator.policy import prompts


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The evaluation that is under way, oldest first: its progress in groups."""

    step: int
    version: int
    total: int
    finished: int
    started_at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One prompt of a finished evaluation. `payload` is None where all attempts failed."""

    suite: str
    index: int
    prompt_id: str
    payload: bytes | None


def items_of(database: Database, step: int) -> list[Item]:
    """Return all items of an evaluation in file order, but for those whose record is left out."""
    rows = database.all(
        "SELECT g.source, g.prompt_index, g.prompt_id, p.data FROM groups g"
        " LEFT JOIN payloads p ON p.group_id = g.group_id AND g.state = ? WHERE g.eval_step = ?"
        " AND COALESCE(g.drop_reason, '') NOT IN (?, ?) ORDER BY ABS(g.queue_key)",
        groups.SUBMITTED, step, *enums.LEFT_OUT,
    )  # fmt: skip
    return [
        Item(
            suite=row["source"],
            index=row["prompt_index"],
            prompt_id=row["prompt_id"],
            payload=None if row["data"] is None else bytes(row["data"]),
        )
        for row in rows
    ]


def oldest_evaluation(ledger: Ledger) -> tuple[int, int] | None:
    """Return step and version of the evaluation under way."""
    row = ledger.db.one("SELECT step, version FROM evaluations WHERE state = 'running' ORDER BY step LIMIT 1")
    return None if row is None else (row["step"], row["version"])


def evaluating_sessions(ledger: Ledger) -> set[str]:
    """Return the sessions that hold groups of evaluations."""
    rows = ledger.db.all(
        "SELECT DISTINCT l.session FROM groups g JOIN leases l ON l.group_id = g.group_id AND l.state = 'open'"
        " WHERE g.kind = 'evaluation' AND g.state = 'leased'"
    )
    return {row["session"] for row in rows}


def eval_queued(ledger: Ledger, step: int, *, most: int) -> int:
    """Return how many groups of an evaluation no one has, counted up to `most`."""
    sql = "SELECT COUNT(*) AS n FROM (SELECT 1 FROM groups WHERE eval_step = ? AND state = 'queued' LIMIT ?)"
    return ledger.number(sql, step, most)


def running_evaluation(ledger: Ledger) -> Running | None:
    row = ledger.db.one("SELECT * FROM evaluations WHERE state = 'running' ORDER BY step LIMIT 1")
    if row is None:
        return None
    sql = "SELECT COUNT(*) AS n FROM groups WHERE eval_step = ?"
    done = f"{sql} AND state IN (?, ?)"
    return Running(
        step=row["step"],
        version=row["version"],
        total=ledger.number(sql, row["step"]),
        finished=ledger.number(done, row["step"], groups.SUBMITTED, groups.DROPPED),
        started_at=row["started_at"] or row["created_at"],
    )


def pinned_versions(ledger: Ledger) -> set[int]:
    """Return the versions that unfinished evaluations need."""
    return {row["version"] for row in ledger.db.all("SELECT version FROM evaluations WHERE state = 'running'")}


def open_evaluation(
    ledger: Ledger, *, step: int, refs: Sequence[prompts.PromptRef], sizes: Mapping[str, int], now: float
) -> bool:
    """Open one group per prompt, in the given order, unless done. `sizes`: samples per prompt by suite."""
    with ledger.db.transaction():
        if ledger.number("SELECT COUNT(*) AS n FROM groups WHERE eval_step = ?", step):
            return False
        for ref in refs:
            groups.open_group(
                ledger, ref, kind=groups.EVALUATION, now=now, group_size=sizes[ref.source], eval_step=step
            )
        return True


def evaluation_items(ledger: Ledger, step: int) -> list[Item]:
    """Return all items of an evaluation in file order, but for those whose record is left out."""
    return items_of(ledger.db, step)


def finish_evaluation(
    ledger: Ledger,
    *,
    step: int,
    results: Mapping[str, Mapping[str, object]],
    metrics: Mapping[str, float],
    now: float,
) -> bool:
    """Record the results by suite, the metrics by name, and let the groups go. True the first time."""
    with ledger.db.transaction():
        changed = ledger.db.change(
            "UPDATE evaluations SET state = 'done', finished_at = ? WHERE step = ? AND state = 'running'", now, step
        )
        if not changed:
            return False
        version = ledger.number("SELECT version AS n FROM evaluations WHERE step = ?", step)
        for suite, result in results.items():
            ledger.db.change(
                "INSERT OR REPLACE INTO eval_results (step, suite, version, result) VALUES (?, ?, ?, ?)",
                step, suite, version, json.dumps(dict(result)),
            )  # fmt: skip
            kind = "evaluation" if result.get("accuracy") is not None else "evaluation_incomplete"
            ledger.note({"kind": kind, "at": now, "suite": suite, "step": step, "version": version, **result})
        ledger.note(
            {"kind": "evaluation_metrics", "at": now, "step": step, "version": version, "metrics": dict(metrics)}
        )
        ledger.db.change(
            "UPDATE groups SET state = ?, closed_at = ? WHERE eval_step = ? AND state = ?",
            enums.GroupState.TRAINED, now, step, groups.SUBMITTED,
        )  # fmt: skip
        ledger.count("evaluations")
        return True


def results(ledger: Ledger) -> list[types.EvaluationResult]:
    """Return all results, steps ascending; suites whose items are missing have none."""
    rows = ledger.db.all("SELECT * FROM eval_results ORDER BY step, suite")
    parsed = [(row, json.loads(row["result"])) for row in rows]
    return [_result(row, result) for row, result in parsed if result.get("accuracy") is not None]


def _result(row: Row, result: Mapping[str, object]) -> types.EvaluationResult:
    return types.EvaluationResult(
        suite=row["suite"],
        step=row["step"],
        version=row["version"],
        accuracy=float(str(result["accuracy"])),
        n=int(str(result["n"])),
        score=float(str(result["score"])),
        pass_at_k=float(str(result["pass_at_k"])),
    )
