"""Checkpoints, what they let go, and going back to one: a trainer attempt begins where its checkpoint is."""

from rljob_api import conditions, enums, errors
from rljob_workers.coordinator.ledger import examples, groups, retention, sessions, steps
from rljob_workers.coordinator.ledger.database import Ledger
from rljob_workers.coordinator.ledger.steps import PACKED, TRAINED
from rljob_workers.coordinator.policy import submission


def commit_checkpoint(
    ledger: Ledger, *, token: str, step: int, uri: str, seconds: float, final: bool, now: float
) -> bool:
    """Record a durable checkpoint and prune what no rewind to it can need. True if it was already recorded."""
    with ledger.db.transaction():
        sessions.check_session(ledger, token, enums.Role.TRAINER)
        row = ledger.db.one("SELECT final FROM checkpoints WHERE step = ? AND uri = ?", step, uri)
        # A repeated call; that the checkpoint is the final one may be news about one that is recorded.
        if row is not None and bool(row["final"]) >= final:
            return True
        if step > groups.committed(ledger):
            raise errors.LedgerError(f"a checkpoint of step {step} before step {step} was committed")
        ledger.db.change(
            "INSERT OR REPLACE INTO checkpoints (step, uri, at, seconds, final) VALUES (?, ?, ?, ?, ?)",
            step, uri, now, seconds, int(final),
        )  # fmt: skip
        _prune(ledger, step)
        # What was lost with a ledger is made up for: this one leads to a checkpoint of its own.
        ledger.set_meta("degraded", "")
        ledger.count("checkpoints")
        ledger.note({"kind": "checkpoint", "at": now, "step": step, "uri": uri, "seconds": seconds, "final": final})
        return False


def _prune(ledger: Ledger, step: int) -> None:
    """Let everything up to `step` go; the rows themselves are taken away a slice at a time (retention.py)."""
    ledger.set_meta("pruned_step", str(max(step, int(ledger.meta("pruned_step") or 0))))


def begin_attempt(ledger: Ledger, *, attempt: int, rank: int, resume_step: int, replaced: bool, now: float) -> None:
    """A trainer process arrived, from a checkpoint of `resume_step`: rewind to it where steps beyond it were
    trained.

    Done once an attempt, by whichever rank comes first, and again only if rank 0 itself was `replaced`: another
    rank may hold a batch by then, and what was handed out must not be forgotten.
    """
    fresh = ledger.db.change(
        "INSERT OR IGNORE INTO attempts (attempt, resume_step, handed_step) VALUES (?, ?, ?)",
        attempt, resume_step, resume_step,
    )  # fmt: skip
    if not fresh and not (replaced and rank == 0):
        return
    ledger.db.change(
        "UPDATE attempts SET resume_step = ?, handed_step = ?, stop_step = NULL WHERE attempt = ?",
        resume_step, resume_step, attempt,
    )  # fmt: skip
    # Whatever an earlier process was answered, this one asks again.
    steps.forget_announced_end(ledger)
    committed = groups.committed(ledger)
    if resume_step > committed:
        _adopt(ledger, resume_step, committed=committed, now=now)
    elif resume_step < committed:
        rewind(ledger, resume_step=resume_step, now=now)
    if committed or attempt > 1:
        ledger.note(
            {"kind": "restart", "at": now, "role": enums.Role.TRAINER, "attempt": attempt, "step": committed,
             "resume_step": resume_step}
        )  # fmt: skip


def go_on_after_end(ledger: Ledger) -> None:
    """Forget the announced end of a run that was started again with a later one, if its last checkpoint is there.

    Before that the trainer that was notified of the end may still be saving; its next attempt asks again.
    """
    ended = groups.announced_end(ledger)
    if ended is None or ended >= ledger.config.max_steps:
        return
    if ledger.db.one("SELECT 1 FROM checkpoints WHERE final = 1 AND step >= ?", ended) is not None:
        steps.forget_announced_end(ledger)


def _adopt(ledger: Ledger, resume_step: int, *, committed: int, now: float) -> None:
    """The checkpoint is ahead of this ledger: an earlier ledger was lost. Continue at the checkpoint, forget open
    groups.
    """
    _remove_steps(ledger, committed, now=now)
    ledger.set_meta("base_step", str(resume_step))
    ledger.set_meta("pruned_step", str(resume_step))
    ledger.set_meta("degraded", conditions.LEDGER_LOST)
    groups.drop_stale(ledger, now=now)
    ledger.note({"kind": "ledger_lost", "at": now, "step": committed, "resume_step": resume_step})


def rewind(ledger: Ledger, *, resume_step: int, now: float) -> None:
    """Un-train the steps after `resume_step`: their batches are served again in order. Versions made by them are
    superseded.

    Where the trainer fell back behind a pruned checkpoint those batches are gone: the steps are removed, their
    groups DROPPED(rewound) and their prompts opened again in order.
    """
    if resume_step < int(ledger.meta("pruned_step") or 0):
        _remove_steps(ledger, resume_step, now=now)
        # The step's own row may be pruned: this says where the run is.
        ledger.set_meta("base_step", str(resume_step))
        ledger.set_meta("pruned_step", str(resume_step))
    ledger.db.change(
        "UPDATE steps SET state = 'packed', trained_at = NULL, attempt = NULL, stats = NULL WHERE step > ?",
        resume_step,
    )
    ledger.db.change(
        "UPDATE groups SET state = ?, closed_at = NULL WHERE step > ? AND state = ?", PACKED, resume_step, TRAINED
    )
    ledger.db.change("UPDATE versions SET superseded = 1 WHERE step > ?", resume_step)


def _remove_steps(ledger: Ledger, resume_step: int, *, now: float) -> None:
    packed = ledger.db.all("SELECT * FROM groups WHERE step > ? ORDER BY step DESC, step_position DESC", resume_step)
    ledger.db.change("DELETE FROM steps WHERE step > ?", resume_step)
    ledger.db.change("DELETE FROM batch_parts WHERE step > ?", resume_step)
    # What was not packed yet is younger: it goes to the head first, and ends behind what was packed.
    groups.drop_undone(ledger, now=now)
    examples.withdraw(ledger, now=now)
    for group in packed:
        ledger.db.change("DELETE FROM payloads WHERE group_id = ?", group["group_id"])
        ledger.db.change("UPDATE groups SET step = NULL, step_position = NULL WHERE group_id = ?", group["group_id"])
        groups.drop(ledger, group, enums.DropReason.REWOUND, requeue=submission.Requeue.HEAD, now=now)
    undone = retention.undo_steps(ledger.db, resume_step)
    ledger.count(f"dropped:{enums.DropReason.REWOUND}", len(undone))
    for member in undone:
        previous = {
            "group_id": member.group_id, "attempt": member.attempt, "infra_attempts": 0, "data_attempts": 0
        }  # fmt: skip
        groups.open_group(ledger,
            member.ref, kind=member.kind, now=now, head=True, previous=previous,
            group_size=member.group_size,
        )  # fmt: skip


def end_data(ledger: Ledger, *, step: int) -> None:
    """Record that the data end before `step`: the run's last step is the one before."""
    with ledger.db.transaction():
        ledger.set_meta("data_end_step", str(step - 1))
