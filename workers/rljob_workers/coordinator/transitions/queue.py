"""Opening groups, the counters of admission, and dropping groups again."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rljob_api import names, roles, types
from rljob_workers.coordinator import curriculum, intake, limits, staleness, tasks
from rljob_workers.coordinator.transitions import base, sessions

TRAIN, EVALUATION = names.GroupKind.TRAIN, names.GroupKind.EVALUATION
QUEUED, LEASED = names.GroupState.QUEUED, names.GroupState.LEASED
SUBMITTED, DROPPED = names.GroupState.SUBMITTED, names.GroupState.DROPPED
Take = Callable[[tasks.Cursor, int], tuple[list[tasks.PromptRef], tasks.Cursor]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The counters of the algorithms reference 2.1, in training groups. `recorded`: steps with a batch, trained or
    not.
    """

    queued: int
    running: int
    submitted: int
    recorded: int
    committed: int
    published_step: int
    accepted: int


class Queue(sessions.Sessions):
    """QUEUED and DROPPED. Counters are counted from the groups' states and never stored, so no crash can make them
    drift.
    """

    def __init__(self, database: base.Database, bounds: limits.Limits) -> None:
        """Know nothing yet of which prompts cannot be used: the records may be others since the last start."""
        super().__init__(database, bounds)
        self._unusable: set[curriculum.Prompt] = set()
        self.why_ended = ""

    def num_unusable(self) -> int:
        """Return how many training prompts were found unusable since this process started."""
        return len(self._unusable)

    def end_run(self, why: str) -> None:
        """Say that the run cannot go on, in a sentence; the first one stands. A new start tries again."""
        self.why_ended = self.why_ended or why

    def counts(self) -> Counts:
        """Return the counters. A recorded step is B accepted groups however many it had: capacity never leaks."""
        row = self.require(
            "SELECT (SELECT COUNT(*) FROM groups WHERE kind = 'train' AND state = 'queued') AS queued,"
            " (SELECT COUNT(*) FROM groups WHERE kind = 'train' AND state = 'leased') AS leased,"
            " (SELECT COUNT(*) FROM groups WHERE kind = 'train' AND state = 'submitted') AS submitted",
            problem="no counts",
        )
        recorded = self.recorded()
        submitted = row["submitted"]
        return Counts(
            queued=row["queued"],
            running=row["leased"],
            submitted=submitted,
            recorded=recorded,
            committed=self.committed(),
            published_step=self.published_step(),
            accepted=recorded * self._limits.prompts_per_step + submitted,
        )

    def recorded(self) -> int:
        """Return the newest step with a recorded batch, which is V of the next batch to be packed."""
        return max(self.base_step(), self.number("SELECT MAX(step) AS n FROM steps"))

    def committed(self) -> int:
        """Return the newest trained step."""
        newest = "SELECT step AS n FROM steps WHERE state = 'trained' ORDER BY step DESC LIMIT 1"
        return max(self.base_step(), self.number(newest))

    def base_step(self) -> int:
        """Return the step that this ledger began at: above 0 only where an earlier ledger was lost, or steps were
        pruned away.
        """
        return int(self.meta("base_step") or 0)

    def published_step(self) -> int:
        """Return P: the step of the newest version that was not superseded."""
        return self.number("SELECT step AS n FROM versions WHERE superseded = 0 ORDER BY version DESC LIMIT 1")

    def last_step(self) -> int:
        """Return the last step of the run: max_steps, or earlier where the data end or the trainer was told so."""
        asked, announced = self._limits.max_steps, self.announced_end()
        return min(asked, int(self.meta("data_end_step") or asked), asked if announced is None else announced)

    def announced_end(self) -> int | None:
        """Return the last step as the newest trainer attempt was told it with FINISHED; None before."""
        text = self.meta("announced_end")
        return None if text is None else int(text)

    def take_over(self, bounds: limits.Limits, *, now: float) -> None:
        """Let `bounds` hold from now on, and drop what they leave no room for (algorithms reference 2, eta).

        The largest bound that ever held is kept: the audit must not blame what came before a lower one.
        """
        with self._db.transaction():
            eta = max(bounds.max_off_policy_steps, int(self.meta("max_off_policy_steps") or 0))
            self.set_meta("max_off_policy_steps", str(eta))
            self._limits = bounds
            self.drop_stale(now=now)

    def capacity(self, counts: Counts) -> int:
        """Return how many more groups may be leased; no more than the remaining steps can use."""
        remaining = self.last_step() * self._limits.prompts_per_step - counts.accepted - counts.running
        admitted = staleness.capacity(
            self._limits, published_step=counts.published_step, accepted=counts.accepted, running=counts.running
        )
        return min(admitted, remaining)

    def cursor(self) -> tasks.Cursor:
        """Return where the next prompt is drawn."""
        text = self.meta("cursor") or "0:0"
        epoch, position = text.split(":")
        return tasks.Cursor(int(epoch), int(position))

    def fill(self, take: Take, *, now: float) -> int:
        """Open groups for the next prompts while capacity and the pending limit allow it. QUEUED. Returns how many."""
        with self._db.transaction():
            counts = self.counts()
            room = min(staleness.pending_limit(self._limits), self.capacity(counts)) - counts.queued
            if room <= 0:
                return 0
            refs, cursor = self._draw(take, room, now=now)
            if cursor == self.cursor():
                return 0
            for ref in refs:
                self.open_group(ref, kind=TRAIN, now=now)
                # Each prompt of an epoch has a first copy.
                if ref.copy == 0 and self._limits.curriculum is not None:
                    self.count(f"drawn:{ref.epoch}")
            self.set_meta("cursor", f"{cursor.epoch}:{cursor.position}")
            return len(refs)

    def _draw(self, take: Take, room: int, *, now: float) -> tuple[list[tasks.PromptRef], tasks.Cursor]:
        """Return the next prompts and the cursor behind them, without those that a curriculum leaves out."""
        cursor = self.cursor()
        if self._limits.curriculum is None:
            return take(cursor, room)
        refs: list[tasks.PromptRef] = []
        left_out: dict[int, frozenset[curriculum.Prompt]] = {}
        while len(refs) < room:
            drawn, cursor = take(cursor, 1)
            if not drawn:
                break
            ref = drawn[0]
            if ref.epoch not in left_out:
                left_out[ref.epoch] = self._left_out(ref.epoch, self._limits.curriculum, now=now)
            if (ref.source, ref.index) not in left_out[ref.epoch]:
                refs.append(ref)
        return refs, cursor

    def _left_out(self, epoch: int, config: roles.CurriculumConfig, *, now: float) -> frozenset[curriculum.Prompt]:
        """Return what `epoch` leaves out. Decided when its first prompt is drawn, and then kept: groups of the epoch
        before that are still under way have no score, and a restart must see the same prompts.
        """
        if epoch == 0:
            return frozenset()
        key = f"curriculum:{epoch}"
        if (known := self.meta(key)) is not None:
            return frozenset((source, index) for source, index in json.loads(known))
        scores = {
            (row["source"], row["prompt_index"]): row["total"] / row["num_groups"]
            for row in self._db.all("SELECT * FROM scores WHERE epoch = ?", epoch - 1)
        }
        num_drawn = self.number("SELECT value AS n FROM counters WHERE name = ?", f"drawn:{epoch - 1}")
        new = curriculum.left_out(scores, num_drawn=num_drawn, config=config)
        all_out = self._left_out(epoch - 1, config, now=now).union(new)
        self.set_meta(key, json.dumps(sorted(all_out)))
        self._db.change("DELETE FROM scores WHERE epoch < ?", epoch)
        self.note({"kind": "curriculum", "at": now, "epoch": epoch, "left_out": len(all_out), "new": len(new)})
        return all_out

    def open_group(
        self,
        ref: tasks.PromptRef,
        *,
        kind: names.GroupKind,
        now: float,
        head: bool = False,
        group_size: int = 0,
        eval_step: int | None = None,
        previous: base.Row | Mapping[str, Any] | None = None,
        keep_attempts: bool = False,
    ) -> types.GroupId:
        """Open a group at the tail or head of the queue. `previous` is the dropped group whose prompt this is again."""
        number = self.number("SELECT value AS n FROM counters WHERE name = 'groups_opened'") + 1
        self.count("groups_opened")
        key = -number if head else number
        group_id = types.GroupId(f"{'e' if kind is EVALUATION else 'g'}{number:08d}")
        kept = previous is not None and keep_attempts
        self._db.change(
            "INSERT INTO groups (group_id, kind, state, source, prompt_index, prompt_id, epoch, position, copy,"
            " queue_key,"
            " group_size, attempt, infra_attempts, data_attempts, created_at, eval_step, parent)"
            " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            group_id, kind, QUEUED, ref.source, ref.index, ref.prompt_id, ref.epoch, ref.position, ref.copy, key,
            group_size or self._limits.group_size, 0 if previous is None else previous["attempt"] + 1,
            previous["infra_attempts"] if previous is not None and kept else 0,
            previous["data_attempts"] if previous is not None and kept else 0,
            now, eval_step, None if previous is None else previous["group_id"],
        )  # fmt: skip
        return group_id

    def version_steps(self, versions: Iterable[int]) -> dict[int, int]:
        """Return the steps of those of `versions` that are registered: looked up one by one, never the whole table."""
        found: dict[int, int] = {}
        for version in versions:
            row = self._db.one("SELECT step FROM versions WHERE version = ?", version)
            if row is not None:
                found[version] = row["step"]
        return found

    def facts(self, group: base.Row, versions: Iterable[int] = ()) -> intake.Facts:
        """Return what intake needs to know of a group; `versions` are the ids that it is asked about."""
        pinned = None
        if group["kind"] == EVALUATION:
            pinned = self.number("SELECT version AS n FROM evaluations WHERE step = ?", group["eval_step"])
        return intake.Facts(
            kind=names.GroupKind(group["kind"]),
            group_size=group["group_size"],
            infra_attempts=group["infra_attempts"],
            data_attempts=group["data_attempts"],
            batch_index=self.recorded(),
            version_steps=self.version_steps(versions),
            pinned_version=pinned,
        )

    def carry_out(self, judgement: intake.Judgement, group: base.Row, *, now: float) -> None:
        """Move a LEASED or SUBMITTED group to what was judged: queued for its next attempt, or dropped."""
        if judgement.drop is not None:
            self.drop(group, judgement.drop, requeue=judgement.requeue, now=now)
        elif judgement.requeue is intake.Requeue.NEXT_ATTEMPT:
            changed = self._db.change(
                "UPDATE groups SET state = ?, attempt = attempt + 1, infra_attempts = infra_attempts + ?,"
                " data_attempts = data_attempts + ?, granted_step = NULL WHERE group_id = ? AND state = ?",
                QUEUED, judgement.infra, judgement.data, group["group_id"], LEASED,
            )  # fmt: skip
            assert changed == 1, "only a leased group gets another attempt"

    def drop(self, group: base.Row, reason: names.DropReason, *, requeue: intake.Requeue, now: float) -> None:
        """End a group with a reason; its prompt is opened again where `requeue` says so."""
        self._db.change(
            "UPDATE groups SET state = ?, drop_reason = ?, drop_step = ?, closed_at = ? WHERE group_id = ? AND"
            " state = ?",
            DROPPED, reason, self.recorded() + 1, now, group["group_id"], group["state"],
        )  # fmt: skip
        self.count(f"dropped:{reason}")
        if reason in names.LEFT_OUT and group["kind"] == TRAIN:
            self._unusable.add((group["source"], group["prompt_index"]))
        if requeue in (intake.Requeue.HEAD, intake.Requeue.TAIL):
            head = requeue is intake.Requeue.HEAD
            # Ageing uses up no attempt; a prompt that ran out of attempts starts afresh.
            self.open_group(
                ref_of(group), kind=TRAIN, now=now, head=head, previous=group, keep_attempts=head,
                group_size=group["group_size"],
            )  # fmt: skip

    def drop_stale(self, *, now: float) -> int:
        """Drop what is too old for the next batch, leased or submitted. Returns how many groups."""
        with self._db.transaction():
            oldest = self.recorded() - self._limits.max_off_policy_steps
            rows = self._db.all(
                "SELECT * FROM groups WHERE kind = 'train' AND state = 'submitted' AND min_step < ?"
                " UNION ALL SELECT * FROM groups WHERE kind = 'train' AND state = 'leased' AND granted_step < ?"
                " ORDER BY lease_order DESC",
                oldest, oldest,
            )  # fmt: skip
            return self._withdraw(rows, names.DropReason.STALE, now=now)

    def drop_undone(self, *, now: float) -> int:
        """Drop what was sampled by weights of steps that were undone for good. Returns how many groups."""
        newest = self.recorded()
        rows = self._db.all(
            "SELECT * FROM groups WHERE kind = 'train' AND state = 'submitted' AND max_step > ?"
            " UNION ALL SELECT * FROM groups WHERE kind = 'train' AND state = 'leased' AND granted_step > ?"
            " ORDER BY lease_order DESC",
            newest, newest,
        )  # fmt: skip
        return self._withdraw(rows, names.DropReason.REWOUND, now=now)

    def _withdraw(self, rows: Sequence[base.Row], reason: names.DropReason, *, now: float) -> int:
        """Drop leased and submitted groups, newest lease first, so that the oldest prompt ends at the very head.

        The members of a leased group count as stale too: their rollout is told to stop and hands nothing in any more.
        """
        for group in rows:
            if group["state"] == LEASED:
                self._db.change(
                    "UPDATE leases SET state = 'cancelled' WHERE group_id = ? AND state = 'open'", group["group_id"]
                )
                self.count("trajectories:stale", group["group_size"])
            else:
                self._db.change("DELETE FROM payloads WHERE group_id = ?", group["group_id"])
                self.count("trajectories:stale", group["num_rows"])
            self.drop(group, reason, requeue=intake.Requeue.HEAD, now=now)
        return len(rows)


def ref_of(row: base.Row) -> tasks.PromptRef:
    """Return the prompt of a group's row."""
    return tasks.PromptRef(
        source=row["source"],
        index=row["prompt_index"],
        prompt_id=row["prompt_id"],
        epoch=row["epoch"],
        position=row["position"],
        copy=row["copy"],
    )
