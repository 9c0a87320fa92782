"""The life of a group up to its submission: opened, leased, renewed, lost, dropped, offered again."""

import dataclasses
import secrets
from collections.abc import Callable, Sequence

from rljob_api import names, types
from rljob_workers.coordinator import intake, staleness, tasks
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease as granted."""

    lease_id: types.LeaseId
    group_id: types.GroupId
    kind: names.GroupKind
    attempt: int
    ref: tasks.PromptRef
    group_size: int
    floor_step: int
    pinned_version: int | None


class Queue(sessions.Sessions):
    """QUEUED and LEASED. Counters are counted from the groups' states and never stored, so no crash can make them
    drift.
    """

    def counts(self) -> Counts:
        """Return the counters. A recorded step is B accepted groups however many it had: capacity never leaks."""
        states = {
            row["state"]: int(row["n"])
            for row in self._db.all(
                "SELECT state, COUNT(*) AS n FROM groups WHERE kind = ? AND state IN (?, ?, ?) GROUP BY state",
                TRAIN, QUEUED, LEASED, SUBMITTED,
            )
        }  # fmt: skip
        recorded = self.recorded()
        submitted = states.get(SUBMITTED, 0)
        return Counts(
            queued=states.get(QUEUED, 0),
            running=states.get(LEASED, 0),
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
        return max(self.base_step(), self.number("SELECT MAX(step) AS n FROM steps WHERE state = 'trained'"))

    def base_step(self) -> int:
        """Return the step that this ledger began at: above 0 only where an earlier ledger was lost, or steps were
        pruned away.
        """
        return int(self.meta("base_step") or 0)

    def published_step(self) -> int:
        """Return P: the step of the newest version that was not superseded."""
        return self.number("SELECT step AS n FROM versions WHERE superseded = 0 ORDER BY version DESC LIMIT 1")

    def last_step(self) -> int:
        """Return the last step of the run: max_steps, or earlier where the data end."""
        return min(self._limits.max_steps, int(self.meta("data_end_step") or self._limits.max_steps))

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
            refs, cursor = take(self.cursor(), room)
            if not refs:
                return 0
            for ref in refs:
                self.open_group(ref, kind=TRAIN, now=now)
            self.set_meta("cursor", f"{cursor.epoch}:{cursor.position}")
            return len(refs)

    def open_group(
        self,
        ref: tasks.PromptRef,
        *,
        kind: names.GroupKind,
        now: float,
        head: bool = False,
        group_size: int = 0,
        eval_step: int | None = None,
        previous: base.Row | None = None,
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

    def lease(
        self, *, token: str, capacity: int, serving_version: int, take: Take, now: float
    ) -> tuple[list[Lease], names.WaitReason | None]:
        """Grant up to `capacity` leases: evaluation first, then training. The reason says what is missing for more."""
        with self._db.transaction():
            self.check_session(token, names.Role.ROLLOUT)
            version = self._db.one("SELECT step FROM versions WHERE version = ?", serving_version)
            if version is None:
                return [], names.WaitReason.WEIGHTS
            grant = _Grant(token=token, version=serving_version, step=version["step"], now=now)
            leases = self._lease_evaluation(grant, capacity)
            reason = None
            while len(leases) < capacity and reason is None:
                granted, reason = self._lease_one(grant, take)
                leases += granted
            return leases, reason

    def _lease_evaluation(self, grant: "_Grant", capacity: int) -> list[Lease]:
        current = self._db.one("SELECT step, version FROM evaluations WHERE state = 'running' ORDER BY step LIMIT 1")
        if current is None or current["version"] != grant.version:
            return []
        sql = "SELECT COUNT(*) AS n FROM groups WHERE kind = ? AND state = ?"
        room = min(capacity, self._limits.max_eval_inflight - self.number(sql, EVALUATION, LEASED))
        rows = self._db.all(
            "SELECT * FROM groups WHERE kind = ? AND state = ? AND eval_step = ? ORDER BY queue_key LIMIT ?",
            EVALUATION, QUEUED, current["step"], max(0, room),
        )  # fmt: skip
        if rows:
            self._db.change(
                "UPDATE evaluations SET started_at = ? WHERE step = ? AND started_at IS NULL",
                grant.now,
                current["step"],
            )
        return [self._grant(grant, row, floor=grant.step, target=grant.step, pinned=grant.version) for row in rows]

    def _lease_one(self, grant: "_Grant", take: Take) -> tuple[list[Lease], names.WaitReason | None]:
        counts = self.counts()
        if self.capacity(counts) <= 0:
            return [], names.WaitReason.STALENESS
        floor = staleness.version_floor(self._limits, accepted=counts.accepted, running=counts.running)
        # Above `recorded`: weights of steps that were undone for good; no batch may take their tokens.
        if not floor <= grant.step <= counts.recorded:
            return [], names.WaitReason.WEIGHTS
        if counts.queued == 0 and self.fill(take, now=grant.now) == 0:
            return [], names.WaitReason.NO_PROMPTS
        row = self.require(
            "SELECT * FROM groups WHERE kind = ? AND state = ? ORDER BY queue_key LIMIT 1", TRAIN, QUEUED,
            problem="the queue is empty although it was filled",
        )  # fmt: skip
        target = (counts.accepted + counts.running) // self._limits.prompts_per_step
        return [self._grant(grant, row, floor=floor, target=target, pinned=None)], None

    def _grant(self, grant: "_Grant", row: base.Row, *, floor: int, target: int, pinned: int | None) -> Lease:
        order = self.number("SELECT value AS n FROM counters WHERE name = 'leases_granted'") + 1
        self.count("leases_granted")
        lease_id = types.LeaseId(f"{order:08d}-{secrets.token_hex(4)}")
        changed = self._db.change(
            "UPDATE groups SET state = ?, granted_step = ?, leased_at = ?, lease_order = COALESCE(lease_order, ?)"
            " WHERE group_id = ? AND state = ?",
            LEASED, grant.step, grant.now, order, row["group_id"], QUEUED,
        )  # fmt: skip
        assert changed == 1, "a group that was read as queued in this transaction is queued"
        self._db.change(
            "INSERT INTO leases (lease_id, group_id, attempt, session, state, granted_at, deadline, floor_step,"
            " target_step, granted_version, granted_step) VALUES (?,?,?,?,'open',?,?,?,?,?,?)",
            lease_id, row["group_id"], row["attempt"], grant.token, grant.now, grant.now + self._limits.lease_s, floor,
            target, grant.version, grant.step,
        )  # fmt: skip
        return Lease(
            lease_id=lease_id,
            group_id=types.GroupId(row["group_id"]),
            kind=names.GroupKind(row["kind"]),
            attempt=row["attempt"],
            ref=ref_of(row),
            group_size=row["group_size"],
            floor_step=floor,
            pinned_version=pinned,
        )

    def renew(self, *, token: str, lease_ids: Sequence[str], now: float) -> list[types.LeaseId]:
        """Extend the session's open leases; return those of `lease_ids` that are no longer open: they are to be
        cancelled.

        A deadline is written only once a third of the lease has passed, so that idle heartbeats cost no disk write.
        """
        with self._db.transaction():
            self.check_session(token, names.Role.ROLLOUT)
            self._db.change(
                "UPDATE leases SET deadline = ? WHERE session = ? AND state = 'open' AND deadline < ?",
                now + self._limits.lease_s, token, now + self._limits.lease_s * 2 / 3,
            )  # fmt: skip
            rows = self._db.all("SELECT lease_id FROM leases WHERE session = ? AND state = 'open'", token)
            valid = {row["lease_id"] for row in rows}
            return [types.LeaseId(lease_id) for lease_id in lease_ids if lease_id not in valid]

    def expire(self, *, now: float) -> int:
        """Offer the groups of leases past their deadline again, oldest first. Returns how many leases were lost."""
        with self._db.transaction():
            rows = self._db.all(
                "SELECT lease_id FROM leases WHERE state = 'open' AND deadline < ? ORDER BY lease_id", now
            )
            for row in rows:
                self.lose(row["lease_id"], detail="the lease expired", state="lost", now=now)
            self.count("leases_expired", len(rows))
            return len(rows)

    def release(self, *, token: str, lease_id: str, reason: str, now: float) -> bool:
        """Take a lease back from its worker; False if it was not open. A drain costs the prompt no attempt."""
        with self._db.transaction():
            self.check_session(token, names.Role.ROLLOUT)
            lease = self._db.one("SELECT session FROM leases WHERE lease_id = ? AND state = 'open'", lease_id)
            if lease is None or lease["session"] != token:
                return False
            self.lose(lease_id, detail=f"released: {reason}", state="released", now=now, charge="drain" not in reason)
            return True

    def lose_all_of(self, token: str, *, now: float) -> None:
        """Offer everything again that a replaced session held, at once."""
        rows = self._db.all("SELECT lease_id FROM leases WHERE session = ? AND state = 'open' ORDER BY lease_id", token)
        for row in rows:
            self.lose(row["lease_id"], detail="its process was replaced", state="lost", now=now)

    def extend_all(self, *, now: float) -> None:
        """After a restart: give every worker one lease period to renew."""
        with self._db.transaction():
            self._db.change(
                "UPDATE leases SET deadline = ? WHERE state = 'open' AND deadline < ?",
                now + self._limits.lease_s, now + self._limits.lease_s,
            )  # fmt: skip

    def lose(self, lease_id: str, *, detail: str, state: str, now: float, charge: bool = True) -> None:
        """Close an open lease without a result; its group gets another attempt or ends, by the infra budget."""
        lease = self.require("SELECT * FROM leases WHERE lease_id = ?", lease_id, problem=f"no lease {lease_id}")
        self._db.change("UPDATE leases SET state = ? WHERE lease_id = ? AND state = 'open'", state, lease_id)
        group = self.require("SELECT * FROM groups WHERE group_id = ?", lease["group_id"], problem="no such group")
        if charge:
            judgement = intake.lost(self.facts(group), self._limits, detail)
            self.count("retries:infra")
        else:
            judgement = intake.Judgement(
                outcome=names.TrajectoryOutcome.INFRA_FAILURE, detail=detail, requeue=intake.Requeue.NEXT_ATTEMPT
            )
        self.carry_out(judgement, group, now=now)

    def facts(self, group: base.Row) -> intake.Facts:
        """Return what intake needs to know of a group."""
        versions = {row["version"]: row["step"] for row in self._db.all("SELECT version, step FROM versions")}
        pinned = None
        if group["kind"] == EVALUATION:
            pinned = self.number("SELECT version AS n FROM evaluations WHERE step = ?", group["eval_step"])
        return intake.Facts(
            kind=names.GroupKind(group["kind"]),
            group_size=group["group_size"],
            infra_attempts=group["infra_attempts"],
            data_attempts=group["data_attempts"],
            batch_index=self.recorded(),
            version_steps=versions,
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
                "SELECT * FROM groups WHERE kind = ? AND ((state = ? AND min_step < ?) OR (state = ? AND"
                " granted_step < ?))"
                " ORDER BY lease_order DESC",
                TRAIN, SUBMITTED, oldest, LEASED, oldest,
            )  # fmt: skip
            return self._withdraw(rows, names.DropReason.STALE, now=now)

    def drop_undone(self, *, now: float) -> int:
        """Drop what was sampled by weights of steps that were undone for good. Returns how many groups."""
        newest = self.recorded()
        rows = self._db.all(
            "SELECT * FROM groups WHERE kind = ? AND ((state = ? AND max_step > ?) OR (state = ? AND granted_step > ?))"
            " ORDER BY lease_order DESC",
            TRAIN, SUBMITTED, newest, LEASED, newest,
        )  # fmt: skip
        return self._withdraw(rows, names.DropReason.REWOUND, now=now)

    def _withdraw(self, rows: Sequence[base.Row], reason: names.DropReason, *, now: float) -> int:
        """Drop leased and submitted groups, newest lease first, so that the oldest prompt ends at the very head."""
        for group in rows:
            if group["state"] == LEASED:
                self._db.change(
                    "UPDATE leases SET state = 'cancelled' WHERE group_id = ? AND state = 'open'", group["group_id"]
                )
            else:
                self._db.change("DELETE FROM payloads WHERE group_id = ?", group["group_id"])
                self.count("trajectories:stale", group["num_rows"])
            self.drop(group, reason, requeue=intake.Requeue.HEAD, now=now)
        return len(rows)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Grant:
    token: str
    version: int
    step: int
    now: float


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
