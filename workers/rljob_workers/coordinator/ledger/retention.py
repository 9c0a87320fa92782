"""What a ledger lets go: groups behind the last checkpoint, with their leases, answers, payloads and batches.

Nothing here changes what a run does: counters are rows of their own, and what is under way or may be served again is
never touched. What is left of a pruned group is in a line of `pruned`: its number, prompt, place in the epoch,
oldest step and step of its training. From it the audit still proves that each group was opened, accepted and trained
once, and a trainer that falls back behind a pruned checkpoint gets the same prompts in the same order.

`prune` does one slice of bounded work; its caller calls again while there is more. Functions on a database, in the
transaction of their caller.
"""

import dataclasses
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence

from rljob_api import enums
from rljob_workers.coordinator.ledger.database import Database, Ledger, Row
from rljob_workers.coordinator.policy import prompts

# Of one slice: rows that go, and bytes of payloads and batches, whose pages SQLite walks one by one.
SLICE_ROWS = 100
SLICE_BYTES = 4 << 20
# Trained steps whose rows stay for status and its shares, whatever was checkpointed.
KEPT_STEPS = 64
# History lines that stay after they are in the file.
KEPT_LINES = 1000
# A process that was replaced, or not heard of, for so long does not come back as who it was.
SESSION_S = 7 * 86_400.0

_COLUMNS = (
    "group_id", "kind", "attempt", "source", "prompt_index", "prompt_id", "epoch", "position", "copy", "group_size",
    "parent", "min_step", "lease_order", "queue_key",
)  # fmt: skip


EVALUATED = "evaluated"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A pruned group. `fate`: trained, evaluated, or the reason of its drop; `step`: of the batch or evaluation."""

    group_id: str
    fate: str
    step: int | None
    attempt: int
    ref: prompts.PromptRef
    group_size: int
    is_first: bool
    accepted: bool
    min_step: int | None
    lease_order: int | None
    queue_key: int

    @property
    def kind(self) -> enums.GroupKind:
        return kind_of(self.group_id)

    @property
    def number(self) -> int:
        """Return the number in its id: groups are numbered as they are opened."""
        return number_of(self.group_id)


# First letter of a group's id.
LETTERS = {enums.GroupKind.TRAIN: "g", enums.GroupKind.EVALUATION: "e", enums.GroupKind.EXAMPLE: "s"}


def kind_of(group_id: str) -> enums.GroupKind:
    """Return what a group is for."""
    return next(kind for kind, letter in LETTERS.items() if group_id.startswith(letter))


def number_of(group_id: str) -> int:
    """Return the number in a group's id, 0 where it has none."""
    return int(group_id[1:]) if group_id[1:].isdecimal() else 0


def prune(ledger: Ledger, *, history_seq: int, now: float, most: int = SLICE_ROWS) -> bool:
    """Do one slice of work, of at most so many rows of a kind; return whether there is more.

    `history_seq`: lines of the history up to it are in the file, on the disk.
    """
    with ledger.transaction():
        return _prune(ledger.db, history_seq, now, most)


def _prune(database: Database, history_seq: int, now: float, most: int) -> bool:
    pruned_step = _number(database, "SELECT CAST(value AS INTEGER) AS n FROM meta WHERE key = 'pruned_step'")
    done = (
        _batch_parts(database, pruned_step, most),
        _trained(database, pruned_step, most),
        _dropped(database, pruned_step, most),
        _evaluated(database, most),
        _steps(database, pruned_step, most),
        _lines(database, history_seq, most),
        _sessions(database, now, most),
    )
    return any(done)


def _number(database: Database, sql: str, *params: object) -> int:
    row = database.one(sql, *params)
    return 0 if row is None or row["n"] is None else int(row["n"])


def _batch_parts(database: Database, pruned_step: int, most: int) -> bool:
    parts = database.all(
        "SELECT step, rank, seq, LENGTH(data) AS num_bytes FROM batch_parts WHERE step <= ? LIMIT ?",
        pruned_step, most,
    )  # fmt: skip
    chosen = list(_within_bytes(parts))
    database.many(
        "DELETE FROM batch_parts WHERE step = ? AND rank = ? AND seq = ?",
        ((part["step"], part["rank"], part["seq"]) for part in chosen),
    )
    return len(chosen) < len(parts) or len(parts) == most


def _within_bytes(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows until their `num_bytes` are enough for a slice; at least one."""
    total = 0
    for row in rows:
        if total and total + row["num_bytes"] > SLICE_BYTES:
            return
        total += row["num_bytes"]
        yield row


def _trained(database: Database, pruned_step: int, most: int) -> bool:
    where = "g.step <= ? AND g.state = 'trained' ORDER BY g.step, g.step_position"
    return _slice(database, where, pruned_step, most, fate="'trained'", step="g.step")


def _dropped(database: Database, pruned_step: int, most: int) -> bool:
    """Dropped groups go as the step does that did not take them, or a while after it where nothing is checkpointed."""
    recorded = _number(database, "SELECT MAX(step) AS n FROM steps")
    newest = max(min(pruned_step, recorded), recorded - KEPT_STEPS)
    where = "g.drop_step <= ? AND g.kind <> 'evaluation' AND g.state = 'dropped' ORDER BY g.drop_step"
    return _slice(database, where, newest, most, fate="g.drop_reason", step="NULL")


def _evaluated(database: Database, most: int) -> bool:
    done = database.one(
        "SELECT e.step FROM evaluations e WHERE e.state = 'done' AND e.step >= (SELECT MIN(eval_step) FROM groups"
        " WHERE eval_step IS NOT NULL) AND EXISTS (SELECT 1 FROM groups g WHERE g.eval_step = e.step)"
        " ORDER BY e.step LIMIT 1"
    )
    return done is not None and _slice(
        database, "g.eval_step = ?", done["step"], most, fate=f"'{EVALUATED}'", step="g.eval_step"
    )


def _slice(database: Database, where: str, newest: int, most: int, *, fate: str, step: str) -> bool:
    """Move the next groups of a kind to `pruned`; return whether there may be more. fate, step: as SQL."""
    columns = ", ".join(f"g.{column}" for column in _COLUMNS)
    rows = database.all(
        f"SELECT {columns}, {fate} AS fate, {step} AS of_step, COALESCE(LENGTH(p.data), 0) AS num_bytes, EXISTS"
        " (SELECT 1 FROM answers a WHERE a.group_id = g.group_id AND a.outcome = 'accepted') AS accepted"
        f" FROM groups g LEFT JOIN payloads p ON p.group_id = g.group_id WHERE {where} LIMIT ?",
        newest, most,
    )  # fmt: skip
    chosen = list(_within_bytes(rows))
    for (name, of), alike in itertools.groupby(chosen, key=lambda row: (row["fate"], row["of_step"])):
        _keep_line(database, name, of, list(alike))
    ids = [(row["group_id"],) for row in chosen]
    for table in ("payloads", "answers", "leases", "groups"):
        database.many(f"DELETE FROM {table} WHERE group_id = ?", ids)
    return len(chosen) < len(rows) or len(rows) == most


def _keep_line(database: Database, fate: str, step: int | None, rows: Sequence[Row]) -> None:
    numbers = [number_of(row["group_id"]) for row in rows]
    sources = sorted({row["source"] for row in rows})
    content = {
        "kind": rows[0]["group_id"][0],
        "number": numbers,
        "attempt": [row["attempt"] for row in rows],
        "sources": sources,
        "source": [sources.index(row["source"]) for row in rows],
        "index": [row["prompt_index"] for row in rows],
        "prompt": [row["prompt_id"] for row in rows],
        "epoch": [row["epoch"] for row in rows],
        "position": [row["position"] for row in rows],
        "copy": [row["copy"] for row in rows],
        "size": [row["group_size"] for row in rows],
        "first": [int(row["parent"] is None) for row in rows],
        "accepted": [row["accepted"] for row in rows],
        "min_step": [row["min_step"] for row in rows],
        "lease_order": [row["lease_order"] for row in rows],
        "queue_key": [row["queue_key"] for row in rows],
    }
    database.change(
        "INSERT INTO pruned (fate, step, num_groups, num_accepted, first_group, last_group, members)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        fate, step, len(rows), sum(row["accepted"] for row in rows), min(numbers), max(numbers),
        zlib.compress(json.dumps(content, separators=(",", ":")).encode()),
    )  # fmt: skip


def members(row: Row) -> Iterator[Member]:
    """Yield the groups of a row of `pruned`, in the order in which they were packed."""
    content = json.loads(zlib.decompress(row["members"]))
    for place, number in enumerate(content["number"]):
        yield Member(
            group_id=f"{content['kind']}{number:08d}",
            fate=row["fate"],
            step=row["step"],
            attempt=content["attempt"][place],
            ref=prompts.PromptRef(
                source=content["sources"][content["source"][place]],
                index=content["index"][place],
                prompt_id=content["prompt"][place],
                epoch=content["epoch"][place],
                position=content["position"][place],
                copy=content["copy"][place],
            ),
            group_size=content["size"][place],
            is_first=bool(content["first"][place]),
            accepted=bool(content["accepted"][place]),
            min_step=content["min_step"][place],
            lease_order=content["lease_order"][place],
            queue_key=content["queue_key"][place],
        )


def everything(database: Database) -> Iterator[Member]:
    """Yield all pruned groups."""
    for row in database.all("SELECT slice FROM pruned ORDER BY slice"):
        pruned_row = database.one("SELECT * FROM pruned WHERE slice = ?", row["slice"])
        if pruned_row is not None:
            yield from members(pruned_row)


def of_step(database: Database, step: int) -> Iterator[Member]:
    """Yield the pruned groups that a step trained, in order, then those that scored its weights."""
    for row in database.all("SELECT * FROM pruned WHERE step = ? ORDER BY fate = 'evaluated', slice", step):
        yield from members(row)


def find(database: Database, group_id: str) -> Member | None:
    number = number_of(group_id)
    for row in database.all("SELECT * FROM pruned WHERE last_group >= ? AND first_group <= ?", number, number):
        for member in members(row):
            if member.group_id == group_id:
                return member
    return None


def undo_steps(database: Database, resume_step: int) -> list[Member]:
    """Return the pruned groups of the steps behind `resume_step`, newest first, and note that they were undone."""
    rows = database.all("SELECT * FROM pruned WHERE step > ? AND fate = 'trained' ORDER BY step, slice", resume_step)
    undone = [member for row in rows for member in members(row)]
    database.change(
        "UPDATE pruned SET fate = ?, step = NULL WHERE step > ? AND fate = 'trained'",
        enums.DropReason.REWOUND, resume_step,
    )  # fmt: skip
    return undone[::-1]


def _steps(database: Database, pruned_step: int, most: int) -> bool:
    newest = _number(database, "SELECT step AS n FROM steps WHERE state = 'trained' ORDER BY step DESC LIMIT 1")
    rows = database.all(
        "SELECT step FROM steps WHERE step <= ? AND NOT EXISTS (SELECT 1 FROM groups WHERE groups.step = steps.step)"
        " ORDER BY step LIMIT ?",
        min(pruned_step, newest - KEPT_STEPS), most,
    )  # fmt: skip
    database.many("DELETE FROM steps WHERE step = ?", ((row["step"],) for row in rows))
    return len(rows) == most


def _lines(database: Database, history_seq: int, most: int) -> bool:
    oldest = _number(database, "SELECT MIN(seq) AS n FROM history")
    end = min(history_seq - KEPT_LINES, oldest + most)
    return bool(oldest) and database.change("DELETE FROM history WHERE seq < ?", end) == most


def _sessions(database: Database, now: float, most: int) -> bool:
    """Forget replaced sessions of long ago."""
    tokens = database.all("SELECT token FROM sessions WHERE fenced_at < ? LIMIT ?", now - SESSION_S, most)
    database.many("DELETE FROM sessions WHERE token = ?", ((row["token"],) for row in tokens))
    return len(tokens) == most
