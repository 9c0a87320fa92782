"""Read-only views for status, metrics and the history file."""

import dataclasses
import json
from collections.abc import Collection

from rljob_api import names, types
from rljob_workers.coordinator import limits
from rljob_workers.coordinator.transitions import base, evaluations, queue


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

    counts: queue.Counts
    capacity: int
    completion: Completion
    counters: dict[str, int]
    queue_depth: dict[str, int]
    steps: tuple[StepRecord, ...]
    head_version: int
    head_step: int
    live_version: int
    version_steps: dict[int, int]
    checkpoint: base.Row | None
    stop_step: int | None
    attempt: int | None
    running: evaluations.Running | None
    filtered_this_step: int
    leases_by_session: dict[str, int]
    degraded: str
    failed: str
    first_step_at: float
    attempts: tuple[types.TrainerAttempt, ...]


class Views(evaluations.Evaluations):
    """Nothing here changes state."""

    def __init__(self, database: base.Database, bounds: limits.Limits) -> None:
        """Know no step yet."""
        super().__init__(database, bounds)
        self._records: dict[tuple[int, float], StepRecord] = {}

    def snapshot(self, serving: Collection[int] = ()) -> Facts:
        """Return what status and metrics need, as of one instant; `serving` are the versions whose steps are asked."""
        with self._db.transaction():
            counts, head, attempt = self.counts(), self.head(), self.trainer_attempt()
            return Facts(
                counts=counts,
                capacity=self.capacity(counts),
                completion=self.completion(),
                counters=self.counters(),
                queue_depth=self._depth(counts),
                steps=tuple(self._recent_steps(21)),
                head_version=head.version,
                head_step=head.step,
                live_version=self.number(
                    "SELECT version AS n FROM versions WHERE live_at IS NOT NULL ORDER BY version DESC LIMIT 1"
                ),
                version_steps=self.version_steps({*serving, head.version}),
                checkpoint=self._db.one("SELECT * FROM checkpoints ORDER BY at DESC LIMIT 1"),
                stop_step=None if attempt is None else self.stop_step(attempt),
                attempt=attempt,
                running=self.running_evaluation(),
                filtered_this_step=self._filtered(counts),
                leases_by_session=self._leases(),
                degraded=self.meta("degraded") or "",
                failed=self.why_ended,
                first_step_at=self._first_step_at(),
                attempts=self.newest_attempts(),
            )

    def completion(self) -> Completion:
        """Return what the end of the run depends on."""
        last_step = self.last_step()
        final = self._db.one("SELECT at FROM checkpoints WHERE final = 1 AND step >= ?", last_step)
        evaluated = self._db.one("SELECT MAX(step) AS n FROM evaluations")
        return Completion(
            committed=self.committed(),
            last_step=last_step,
            final_checkpoint_at=None if final is None else float(final["at"]),
            newest_evaluated=None if evaluated is None else evaluated["n"],
            evaluating=bool(self.pinned_versions()),
        )

    def _depth(self, counts: queue.Counts) -> dict[str, int]:
        packed = self.number("SELECT COUNT(*) AS n FROM groups WHERE kind = 'train' AND state = 'packed'")
        return {"queued": counts.queued, "leased": counts.running, "submitted": counts.submitted, "packed": packed}

    def _filtered(self, counts: queue.Counts) -> int:
        reasons = (names.DropReason.ZERO_SPREAD, names.DropReason.TOO_LOW, names.DropReason.TOO_HIGH)
        return self.number(
            "SELECT COUNT(*) AS n FROM groups WHERE drop_step = ? AND drop_reason IN (?, ?, ?)",
            counts.recorded + 1, *reasons,
        )  # fmt: skip

    def _leases(self) -> dict[str, int]:
        rows = self._db.all("SELECT session, COUNT(*) AS n FROM leases WHERE state = 'open' GROUP BY session")
        return {row["session"]: row["n"] for row in rows}

    def _first_step_at(self) -> float:
        return float(self.meta("first_step_at") or 0.0)

    def _recent_steps(self, limit: int) -> list[StepRecord]:
        """Return the newest trained steps, read once each: a summary tells of every group of its step."""
        newest = self._db.all(
            "SELECT step, trained_at FROM steps WHERE state = 'trained' ORDER BY step DESC LIMIT ?", limit
        )
        kept = {}
        for row in reversed(newest):
            key = (row["step"], row["trained_at"])
            kept[key] = self._records.get(key) or self._step_record(row["step"])
        self._records = kept
        return list(kept.values())

    def _step_record(self, step: int) -> StepRecord:
        row = self.require("SELECT * FROM steps WHERE step = ?", step, problem=f"step {step} is not recorded")
        return StepRecord(
            step=row["step"],
            packed_at=row["packed_at"],
            trained_at=row["trained_at"],
            summary=json.loads(row["summary"]),
            stats=json.loads(row["stats"]),
        )

    def history_after(self, seq: int, *, limit: int = 1000) -> list[tuple[int, str]]:
        """Return the history lines after a sequence number."""
        rows = self._db.all("SELECT seq, line FROM history WHERE seq > ? ORDER BY seq LIMIT ?", seq, limit)
        return [(row["seq"], row["line"]) for row in rows]
