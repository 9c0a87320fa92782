"""Read-only views for status, metrics and the history file."""

import dataclasses
import json
from collections.abc import Collection

from rljob_api import enums, types
from rljob_workers.coordinator.ledger import best_steps, evaluations, examples, groups, sessions, steps, versions
from rljob_workers.coordinator.ledger.database import Ledger, Row


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A trained step: its summary and what the trainer reported. Times are unix seconds."""

    step: int
    packed_at: float
    trained_at: float
    summary: dict[str, object]
    stats: dict[str, float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the end of a run depends on. `final_checkpoint_at` is None before it is committed."""

    committed: int
    last_step: int
    final_checkpoint_at: float | None
    newest_evaluated: int | None
    evaluating: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A snapshot of the ledger for status and metrics."""

    counts: groups.Counts
    capacity: int
    completion: Completion
    counters: dict[str, int]
    queue_depth: dict[str, int]
    steps: tuple[StepRecord, ...]
    head_version: int
    head_step: int
    live_version: int
    version_steps: dict[int, int]
    checkpoint: Row | None
    stop_step: int | None
    attempt: int | None
    running: evaluations.Running | None
    filtered_this_step: int
    leases_by_session: dict[str, int]
    degraded: str
    failed: str
    first_step_at: float
    attempts: tuple[types.TrainerAttempt, ...]
    sft_steps: int = 0
    best: best_steps.Best | None = None


def snapshot(ledger: Ledger, serving: Collection[int] = ()) -> Facts:
    """Return what status and metrics need, as of one instant; `serving` are the versions whose steps are asked."""
    with ledger.db.transaction():
        counts, head, attempt = groups.counts(ledger), versions.head(ledger), sessions.trainer_attempt(ledger)
        return Facts(
            counts=counts,
            capacity=groups.capacity(ledger, counts),
            completion=completion(ledger),
            counters=ledger.counters(),
            queue_depth=_depth(ledger, counts),
            steps=tuple(_recent_steps(ledger, 21)),
            head_version=head.version,
            head_step=head.step,
            live_version=ledger.number(
                "SELECT version AS n FROM versions WHERE live_at IS NOT NULL ORDER BY version DESC LIMIT 1"
            ),
            version_steps=groups.version_steps(ledger, {*serving, head.version}),
            checkpoint=ledger.db.one("SELECT * FROM checkpoints ORDER BY at DESC LIMIT 1"),
            stop_step=None if attempt is None else steps.stop_step(ledger, attempt),
            attempt=attempt,
            running=evaluations.running_evaluation(ledger),
            filtered_this_step=_filtered(ledger, counts),
            leases_by_session=_leases(ledger),
            degraded=ledger.meta("degraded") or "",
            failed=ledger.why_ended,
            first_step_at=_first_step_at(ledger),
            attempts=sessions.newest_attempts(ledger),
            sft_steps=ledger.sft_steps,
            best=best_steps.read(ledger),
        )


def completion(ledger: Ledger) -> Completion:
    """Return what the end of the run depends on."""
    last_step = groups.last_step(ledger)
    final = ledger.db.one("SELECT at FROM checkpoints WHERE final = 1 AND step >= ?", last_step)
    evaluated = ledger.db.one("SELECT MAX(step) AS n FROM evaluations")
    return Completion(
        committed=groups.committed(ledger),
        last_step=last_step,
        final_checkpoint_at=None if final is None else float(final["at"]),
        newest_evaluated=None if evaluated is None else evaluated["n"],
        evaluating=bool(evaluations.pinned_versions(ledger)),
    )


def _depth(ledger: Ledger, counts: groups.Counts) -> dict[str, int]:
    packed = ledger.number("SELECT COUNT(*) AS n FROM groups WHERE kind = 'train' AND state = 'packed'")
    depth = {"queued": counts.queued, "leased": counts.running, "submitted": counts.submitted, "packed": packed}
    if counts.committed >= ledger.sft_steps:
        return depth
    return {state: depth[state] + number for state, number in examples.depth(ledger).items()}


def _filtered(ledger: Ledger, counts: groups.Counts) -> int:
    reasons = (enums.DropReason.ZERO_SPREAD, enums.DropReason.TOO_LOW, enums.DropReason.TOO_HIGH)
    return ledger.number(
        "SELECT COUNT(*) AS n FROM groups WHERE drop_step = ? AND drop_reason IN (?, ?, ?)",
        counts.recorded + 1, *reasons,
    )  # fmt: skip


def _leases(ledger: Ledger) -> dict[str, int]:
    rows = ledger.db.all("SELECT session, COUNT(*) AS n FROM leases WHERE state = 'open' GROUP BY session")
    return {row["session"]: row["n"] for row in rows}


def _first_step_at(ledger: Ledger) -> float:
    return float(ledger.meta("first_step_at") or 0.0)


def _recent_steps(ledger: Ledger, limit: int) -> list[StepRecord]:
    """Return the newest trained steps, read once each: a summary reports on every group of its step."""
    newest = ledger.db.all(
        "SELECT step, trained_at FROM steps WHERE state = 'trained' ORDER BY step DESC LIMIT ?", limit
    )
    recent = {}
    for row in reversed(newest):
        key = (row["step"], row["trained_at"])
        recent[key] = ledger.step_records.get(key) or _step_record(ledger, row["step"])
    ledger.step_records = recent
    return list(recent.values())


def _step_record(ledger: Ledger, step: int) -> StepRecord:
    row = ledger.require("SELECT * FROM steps WHERE step = ?", step, problem=f"step {step} is not recorded")
    return StepRecord(
        step=row["step"],
        packed_at=row["packed_at"],
        trained_at=row["trained_at"],
        summary=json.loads(row["summary"]),
        stats=json.loads(row["stats"]),
    )


def history_after(ledger: Ledger, seq: int, *, limit: int = 1000) -> list[tuple[int, str]]:
    """Return the history lines after a sequence number."""
    rows = ledger.db.all("SELECT seq, line FROM history WHERE seq > ? ORDER BY seq LIMIT ?", seq, limit)
    return [(row["seq"], row["line"]) for row in rows]
