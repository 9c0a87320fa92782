"""SUBMITTED to PACKED to TRAINED: what is in batch k, frozen before it is handed out, and what a rewind makes of it."""

import dataclasses
import json
from collections.abc import Mapping, Sequence

from rljob_api import errors, names, types
from rljob_workers.coordinator import staleness
from rljob_workers.coordinator.transitions import base, queue, submissions

PACKED, TRAINED = names.GroupState.PACKED, names.GroupState.TRAINED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A group chosen for the next batch. Its payload is read apart, since it may be large."""

    group_id: types.GroupId
    lease_order: int
    min_step: int
    finished_step: int
    num_failures: int
    queued_s: float
    generate_started_at: float
    generate_finished_at: float
    verify_s: float
    payload: bytes = b""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The groups of the next batch, or None and why not yet. `version_steps` maps version ids to their steps."""

    step: int
    candidates: tuple[Candidate, ...] | None
    wait_reason: str = ""
    no_more: bool = False
    version_steps: Mapping[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An encoded micro-batch of a rank."""

    rank: int
    seq: int
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrozenStep:
    """A packed step as it is recorded: denominators, and the summary that becomes its history line."""

    step: int
    group_ids: tuple[types.GroupId, ...]
    world_size: int
    minibatches: tuple[types.Minibatch, ...]
    summary: Mapping[str, object]
    zero_advantage_groups: int = 0


def with_payloads(database: base.Database, choice: Choice) -> Choice | None:
    """Return the choice with its groups' bytes; None if one was withdrawn meanwhile. For a connection of its own."""
    found = []
    for candidate in choice.candidates or ():
        row = database.one("SELECT data FROM payloads WHERE group_id = ?", candidate.group_id)
        if row is None:
            return None
        found.append(dataclasses.replace(candidate, payload=bytes(row["data"])))
    return dataclasses.replace(choice, candidates=tuple(found))


def parts_of(database: base.Database, *, step: int, rank: int) -> list[bytes]:
    """Return a rank's micro-batches of a recorded step, the same bytes every time."""
    rows = database.all("SELECT data FROM batch_parts WHERE step = ? AND rank = ? ORDER BY seq", step, rank)
    return [bytes(row["data"]) for row in rows]


class Batches(submissions.Submissions):
    """Steps. V of step k is k - 1."""

    def choose(self, *, more_prompts: bool) -> Choice:
        """Choose the groups of the next step: those that fit the age bound, smallest min step first, then lease order.

        `more_prompts`: the data are not exhausted. `no_more` in the answer says that this step can never be filled.
        One step is chosen ahead of the one that is trained, if it is full and no group under way is too old for the
        batch after it: nothing is dropped for being ahead.
        """
        step, committed = self.recorded() + 1, self.committed()
        ahead = step > committed + 1
        if step > committed + 2 or step > self.last_step():
            return Choice(step=step, candidates=None, wait_reason=f"step {committed + 1} to be committed")
        oldest = step - 1 - self._limits.max_off_policy_steps
        fitting = "FROM groups INDEXED BY groups_ready WHERE kind = 'train' AND state = 'submitted' AND min_step >= ?"
        ready = self.number(f"SELECT COUNT(*) AS n {fitting}", oldest)
        size, wait_reason, no_more = self._size(step, ready, more_prompts=more_prompts, ahead=ahead)
        if size == 0:
            return Choice(step=step, candidates=None, wait_reason=wait_reason, no_more=no_more)
        chosen = self._db.all(
            "SELECT group_id, lease_order, min_step, finished_step, num_failures, leased_at - created_at AS queued_s,"
            f" generate_started_at, generate_finished_at, verify_s {fitting} ORDER BY min_step, lease_order LIMIT ?",
            oldest, size,
        )  # fmt: skip
        if not self._may_close(step, [row["group_id"] for row in chosen], ahead=ahead):
            return Choice(step=step, candidates=None, wait_reason="the oldest groups")
        return Choice(
            step=step,
            candidates=tuple(map(_candidate, chosen)),
            version_steps=self._steps_in_reach(step),
        )

    def _size(self, step: int, ready: int, *, more_prompts: bool, ahead: bool) -> tuple[int, str, bool]:
        """Return how many groups to take (0: none yet), why not, and whether more can never come.

        A short step closes where minStepBatchFraction allows it and nothing healthy is outstanding: every other group
        has already failed for infrastructure, or the data end. Never ahead: there is time yet.
        """
        wanted = self._limits.prompts_per_step
        if ready >= wanted:
            return wanted, "", False
        if ahead:
            return 0, f"{ready} of {wanted} groups of step {step}", False
        healthy, failing = self._outstanding()
        ended = not more_prompts and healthy + failing == 0
        if ready >= staleness.smallest_batch(self._limits) and (ended or (failing > 0 and healthy == 0)):
            return ready, "", False
        return 0, f"{ready} of {wanted} groups of step {step}", ended

    def _steps_in_reach(self, step: int) -> dict[int, int]:
        """Return the steps of all versions whose tokens the batch of `step` may hold, undone ones among them."""
        rows = self._db.all(
            "SELECT version, step FROM versions WHERE step BETWEEN ? AND ?",
            step - 1 - self._limits.max_off_policy_steps, step - 1,
        )  # fmt: skip
        return {row["version"]: row["step"] for row in rows}

    def _outstanding(self) -> tuple[int, int]:
        """Return how many groups are queued or leased, without and with failed attempts."""
        counted = "SELECT COUNT(*) AS n, TOTAL(infra_attempts > 0) AS failing FROM groups WHERE kind = 'train'"
        rows = [self._db.one(f"{counted} AND state = '{state}'") for state in (queue.QUEUED, queue.LEASED)]
        failing = sum(int(row["failing"]) for row in rows if row is not None)
        return sum(int(row["n"]) for row in rows if row is not None) - failing, failing

    def _may_close(self, step: int, chosen: Sequence[str], *, ahead: bool) -> bool:
        if not (ahead or self._limits.on_stale_wait):
            return True
        rows = self._db.all(
            "SELECT group_id, min_step AS oldest FROM groups WHERE kind = 'train' AND state = 'submitted'"
            " UNION ALL SELECT group_id, COALESCE(min_step, granted_step) AS oldest FROM groups"
            " WHERE kind = 'train' AND state = 'leased'"
        )
        left_out = [row["oldest"] for row in rows if row["group_id"] not in set(chosen)]
        if self._limits.on_stale_wait:
            return staleness.may_close_waiting(self._limits, batch_index=step - 1, left_out=left_out)
        return staleness.may_close_ahead(self._limits, batch_index=step - 1, left_out=left_out)

    def stage(self, *, step: int, parts: Sequence[Part], fresh: bool) -> bool:
        """Write some parts of a batch that `freeze` will record; `fresh`: the first ones, whatever was left there.

        False, with nothing changed, if the ledger has moved on since the choice.
        """
        with self._db.transaction():
            if self.recorded() != step - 1:
                return False
            if fresh:
                self._db.change("DELETE FROM batch_parts WHERE step = ?", step)
            self._db.many(
                "INSERT INTO batch_parts (step, rank, seq, data) VALUES (?, ?, ?, ?)",
                ((step, part.rank, part.seq, part.data) for part in parts),
            )
            return True

    def freeze(self, frozen: FrozenStep, *, now: float) -> bool:
        """Record step k's batch, whose parts are staged. PACKED. False, with nothing changed, if the ledger has moved
        on since the choice.
        """
        with self._db.transaction():
            if self.recorded() != frozen.step - 1 or not frozen.step - 2 <= self.committed() < frozen.step:
                return False
            free = [
                group_id
                for group_id in frozen.group_ids
                if self._db.one("SELECT 1 FROM groups WHERE group_id = ? AND state = ?", group_id, queue.SUBMITTED)
            ]
            if len(free) != len(frozen.group_ids):
                return False
            for position, group_id in enumerate(frozen.group_ids):
                self._db.change(
                    "UPDATE groups SET state = ?, step = ?, step_position = ? WHERE group_id = ? AND state = ?",
                    PACKED, frozen.step, position, group_id, queue.SUBMITTED,
                )  # fmt: skip
            self._insert_step(frozen, now=now)
            self.drop_stale(now=now)
            return True

    def _insert_step(self, frozen: FrozenStep, *, now: float) -> None:
        cut = json.dumps([[part.num_tokens, part.num_rows] for part in frozen.minibatches])
        self._db.change(
            "INSERT INTO steps (step, state, world_size, minibatches, summary, num_groups, packed_at)"
            " VALUES (?, 'packed', ?, ?, ?, ?, ?)",
            frozen.step, frozen.world_size, cut, json.dumps(dict(frozen.summary)), len(frozen.group_ids), now,
        )  # fmt: skip
        self.count("zero_advantage_groups", frozen.zero_advantage_groups)

    def decide(self, *, token: str, step: int, rank: int, world_size: int, stop: bool) -> types.BatchHeader:
        """Answer FetchBatch as far as it is recorded: BATCH, STOP, FINISHED, or NOT_READY. All ranks get the same
        answer.

        Raises FencedError for a replaced session, LedgerError for a step that was pruned or packed for another shape.
        """
        with self._db.transaction():
            session = self.check_session(token, names.Role.TRAINER)
            attempt = session["attempt"]
            if stop:
                self.request_stop(attempt=attempt)
            stop_step = self.stop_step(attempt)
            if stop_step is not None and step >= stop_step:
                return types.BatchHeader(kind=names.BatchKind.STOP, step=step)
            if step > self.last_step():
                self.announce_end()
                return types.BatchHeader(kind=names.BatchKind.FINISHED, step=step)
            row = self._db.one("SELECT * FROM steps WHERE step = ?", step)
            if row is None:
                return self._not_recorded(step)
            return self._hand_out(row, attempt=attempt, rank=rank, world_size=world_size)

    def announce_end(self) -> None:
        """Keep what FINISHED says: the trainer exports and leaves, so an end that is raised later comes too late."""
        if self.announced_end() is None:
            self.set_meta("announced_end", str(self.last_step()))

    def forget_announced_end(self) -> None:
        """Let the run's end be what the limits and the data say again."""
        self._db.change("DELETE FROM meta WHERE key = 'announced_end'")

    def _not_recorded(self, step: int) -> types.BatchHeader:
        if step <= self.recorded():
            raise errors.LedgerError(f"the batch of step {step} was pruned by a later checkpoint")
        committed = self.committed()
        reason = "" if step == committed + 1 else f"step {committed + 1} to be committed"
        return types.BatchHeader(kind=names.BatchKind.NOT_READY, step=step, wait_reason=reason)

    def _hand_out(self, row: base.Row, *, attempt: int, rank: int, world_size: int) -> types.BatchHeader:
        step = row["step"]
        if row["world_size"] != world_size or not 0 <= rank < world_size:
            raise errors.LedgerError(
                f"step {step} was packed for {row['world_size']} trainer ranks, but rank {rank} of {world_size} asks"
            )
        if step > self.committed() + 1:
            reason = f"step {self.committed() + 1} to be committed"
            return types.BatchHeader(kind=names.BatchKind.NOT_READY, step=step, wait_reason=reason)
        if row["state"] == "trained" and self._is_pruned(step):
            raise errors.LedgerError(f"the batch of step {step} was pruned by a later checkpoint")
        handed = self._db.change(
            "UPDATE attempts SET handed_step = ? WHERE attempt = ? AND handed_step < ?", step, attempt, step
        )
        self.count("batches_handed", handed)
        minibatches = [types.Minibatch(num_tokens=t, num_rows=r) for t, r in json.loads(row["minibatches"])]
        return types.BatchHeader(
            kind=names.BatchKind.BATCH,
            step=step,
            trainer_version=step - 1,
            num_updates=len(minibatches),
            num_micro_batches=self.number(
                "SELECT COUNT(*) AS n FROM batch_parts WHERE step = ? AND rank = ?", step, rank
            ),
            minibatches=tuple(minibatches),
        )

    def _is_pruned(self, step: int) -> bool:
        return step <= int(self.meta("pruned_step") or 0)

    def parts(self, *, step: int, rank: int) -> list[bytes]:
        """Return a rank's micro-batches of a recorded step."""
        return parts_of(self._db, step=step, rank=rank)

    def request_stop(self, *, attempt: int | None = None) -> int:
        """Record that the attempt ends before the first step whose batch no rank has yet; return the last step it
        trains.
        """
        with self._db.transaction():
            newest = self.trainer_attempt() if attempt is None else attempt
            if newest is None:
                return self.committed()
            self._db.change(
                "UPDATE attempts SET stop_step = handed_step + 1 WHERE attempt = ? AND stop_step IS NULL", newest
            )
            return (self.stop_step(newest) or 1) - 1

    def stop_step(self, attempt: int) -> int | None:
        """Return the step that this attempt answers with STOP, if it was asked to stop."""
        row = self._db.one("SELECT stop_step FROM attempts WHERE attempt = ?", attempt)
        return None if row is None or row["stop_step"] is None else int(row["stop_step"])

    def commit_step(
        self, *, token: str, step: int, stats: Mapping[str, float], started_at: float, finished_at: float, now: float
    ) -> bool:
        """Mark a step TRAINED; True if it was already. Raises LedgerError for a step that is not the next one."""
        with self._db.transaction():
            session = self.check_session(token, names.Role.TRAINER)
            row = self.require("SELECT * FROM steps WHERE step = ?", step, problem=f"step {step} has no batch")
            if row["state"] == "trained":
                return True
            if step != self.committed() + 1:
                raise errors.LedgerError(f"step {step} cannot be committed after step {self.committed()}")
            self._db.change(
                "UPDATE steps SET state = 'trained', trained_at = ?, attempt = ?, stats = ? WHERE step = ? AND state"
                " = 'packed'",
                now, session["attempt"], json.dumps(dict(stats)), step,
            )  # fmt: skip
            self._db.change(
                "UPDATE groups SET state = ?, closed_at = ? WHERE step = ? AND state = ?", TRAINED, now, step, PACKED
            )
            self.note_first_step(session["attempt"], now=now)
            self.count("steps_committed")
            if self.meta("first_step_at") is None:
                self.set_meta("first_step_at", repr(now))
            # Counted at packing where the coordinator made the advantages.
            self.count("zero_advantage_groups", int(stats.get(names.StepStat.ZERO_ADVANTAGE_GROUPS, 0)))
            self._note_step(row, session["attempt"], stats, times=(started_at, finished_at, now))
            return False

    def _note_step(
        self, row: base.Row, attempt: int, stats: Mapping[str, float], *, times: tuple[float, float, float]
    ) -> None:
        counters = self.counters()
        summary = json.loads(row["summary"])
        self.note(
            {
                "kind": "step",
                "at": times[2],
                "step": row["step"],
                "attempt": attempt,
                "packed_at": row["packed_at"],
                "started_at": times[0],
                "finished_at": times[1],
                **summary,
                "trajectories": trajectories(counters),
                "tokens_generated": counters.get("tokens_generated", 0),
                "stats": dict(stats),
            }
        )


def _candidate(row: base.Row) -> Candidate:
    return Candidate(
        group_id=types.GroupId(row["group_id"]),
        lease_order=row["lease_order"],
        min_step=row["min_step"],
        finished_step=row["finished_step"],
        num_failures=row["num_failures"],
        queued_s=row["queued_s"],
        generate_started_at=row["generate_started_at"],
        generate_finished_at=row["generate_finished_at"],
        verify_s=row["verify_s"],
    )


def trajectories(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the cumulative trajectory counts by outcome."""
    prefix = "trajectories:"
    return {name.removeprefix(prefix): value for name, value in sorted(counters.items()) if name.startswith(prefix)}
