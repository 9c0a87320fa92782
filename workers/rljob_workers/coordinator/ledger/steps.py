"""SUBMITTED to PACKED to TRAINED: what is in batch k, frozen before it is handed out, and what a rewind makes of it."""

import dataclasses
import json
from collections.abc import Mapping, Sequence

from rljob_api import enums, errors, types
from rljob_workers.coordinator.ledger import groups, sessions
from rljob_workers.coordinator.ledger.database import Database, Ledger, Row
from rljob_workers.coordinator.policy import staleness

PACKED, TRAINED = enums.GroupState.PACKED, enums.GroupState.TRAINED


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
class Rewards:
    """Raw rewards of answers, as sums: of how many, of the rewards and of their squares."""

    num_rows: int = 0
    total: float = 0.0
    total_squares: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The groups of the next batch, or None and why not yet. `version_steps` maps version ids to their steps.
    oldest_trained_step: tokens of versions of smaller steps leave the loss. supervised: the groups are examples.
    taught: a teacher scores their tokens, so that no row is without something to learn. left_out: rewards of the
    answers that a filter left out since the batch before.
    """

    step: int
    candidates: tuple[Candidate, ...] | None
    wait_reason: str = ""
    no_more: bool = False
    version_steps: Mapping[int, int] = dataclasses.field(default_factory=dict)
    oldest_trained_step: int = 0
    supervised: bool = False
    taught: bool = False
    left_out: Rewards = Rewards()


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


def with_payloads(database: Database, choice: Choice) -> Choice | None:
    """Return the choice with its groups' bytes; None if one was withdrawn meanwhile. For a connection of its own."""
    result = []
    for candidate in choice.candidates or ():
        row = database.one("SELECT data FROM payloads WHERE group_id = ?", candidate.group_id)
        if row is None:
            return None
        result.append(dataclasses.replace(candidate, payload=bytes(row["data"])))
    return dataclasses.replace(choice, candidates=tuple(result))


def parts_of(database: Database, *, step: int, rank: int) -> list[bytes]:
    """Return a rank's micro-batches of a recorded step, the same bytes every time."""
    rows = database.all("SELECT data FROM batch_parts WHERE step = ? AND rank = ? ORDER BY seq", step, rank)
    return [bytes(row["data"]) for row in rows]


def choose(ledger: Ledger, *, more_prompts: bool) -> Choice:
    """Choose the groups of the next step: those that fit the age bound, smallest min step first, then lease order.

    `more_prompts`: the data are not exhausted. `no_more` in the answer says that this step can never be filled.
    One step is chosen ahead of the one that is trained, if it is full and no group under way is too old for the
    batch after it: nothing is dropped for being ahead.
    """
    step, committed = groups.recorded(ledger) + 1, groups.committed(ledger)
    ahead = step > committed + 1
    if step > committed + 2 or step > groups.last_step(ledger):
        return Choice(step=step, candidates=None, wait_reason=f"step {committed + 1} to be committed")
    oldest = staleness.oldest_trained_step(ledger.spec, batch_index=step - 1)
    fitting = (
        "FROM groups INDEXED BY groups_ready WHERE kind = 'train' AND state = 'submitted'"
        f" AND {groups.decisive_step(ledger)} >= ?"
    )
    ready = ledger.number(f"SELECT COUNT(*) AS n {fitting}", oldest)
    size, wait_reason, no_more = _size(ledger, step, ready, more_prompts=more_prompts, ahead=ahead)
    if size == 0:
        return Choice(step=step, candidates=None, wait_reason=wait_reason, no_more=no_more)
    chosen = ledger.db.all(
        "SELECT group_id, lease_order, min_step, finished_step, num_failures, leased_at - created_at AS queued_s,"
        f" generate_started_at, generate_finished_at, verify_s {fitting} ORDER BY min_step, lease_order LIMIT ?",
        oldest, size,
    )  # fmt: skip
    if not _may_close(ledger, step, [row["group_id"] for row in chosen], ahead=ahead):
        return Choice(step=step, candidates=None, wait_reason="the oldest groups")
    return Choice(
        step=step,
        candidates=tuple(map(candidate, chosen)),
        version_steps=_steps_in_reach(ledger, step, oldest=min(row["min_step"] for row in chosen)),
        oldest_trained_step=oldest,
        taught=ledger.spec.is_taught(step - ledger.sft_steps),
        left_out=_left_out(ledger, step),
    )


def _left_out(ledger: Ledger, step: int) -> Rewards:
    row = ledger.db.one("SELECT num_rows, total, total_squares FROM left_out WHERE step = ?", step)
    return Rewards() if row is None else Rewards(**{name: row[name] for name in ("num_rows", "total", "total_squares")})


def _size(ledger: Ledger, step: int, ready: int, *, more_prompts: bool, ahead: bool) -> tuple[int, str, bool]:
    """Return how many groups to take (0: none yet), why not, and whether more can never come.

    A short step closes where minStepBatchFraction allows it and nothing healthy is outstanding: every other group
    has already failed for infrastructure, or the data end. Never ahead: there is time yet.
    """
    full_size = ledger.spec.algorithm.prompts_per_step
    if ready >= full_size:
        return full_size, "", False
    if ahead:
        return 0, f"{ready} of {full_size} groups of step {step}", False
    healthy, failing = _outstanding(ledger)
    ended = not more_prompts and healthy + failing == 0
    if ready >= staleness.smallest_batch(ledger.spec) and (ended or (failing > 0 and healthy == 0)):
        return ready, "", False
    return 0, f"{ready} of {full_size} groups of step {step}", ended


def _steps_in_reach(ledger: Ledger, step: int, *, oldest: int) -> dict[int, int]:
    """Return the steps of all versions whose tokens the batch of `step` may hold, undone ones among them."""
    rows = ledger.db.all("SELECT version, step FROM versions WHERE step BETWEEN ? AND ?", oldest, step - 1)
    return {row["version"]: row["step"] for row in rows}


def _outstanding(ledger: Ledger) -> tuple[int, int]:
    """Return how many groups are queued or leased, without and with failed attempts."""
    counted = "SELECT COUNT(*) AS n, TOTAL(infra_attempts > 0) AS failing FROM groups WHERE kind = 'train'"
    rows = [ledger.db.one(f"{counted} AND state = '{state}'") for state in (groups.QUEUED, groups.LEASED)]
    failing = sum(int(row["failing"]) for row in rows if row is not None)
    return sum(int(row["n"]) for row in rows if row is not None) - failing, failing


def _may_close(ledger: Ledger, step: int, chosen: Sequence[str], *, ahead: bool) -> bool:
    if not ahead and ledger.spec.async_.on_stale != "Wait":
        return True
    column, taken = groups.decisive_step(ledger), set(chosen)
    rows = ledger.db.all(
        f"SELECT group_id, {column} AS decisive FROM groups WHERE kind = 'train' AND state = 'submitted'"
    )
    if not staleness.renews_itself(ledger.spec):
        rows += ledger.db.all(
            "SELECT group_id, granted_step AS decisive FROM groups WHERE kind = 'train' AND state = 'leased'"
        )
    left_out = [row["decisive"] for row in rows if row["group_id"] not in taken]
    if ledger.spec.async_.on_stale == "Wait":
        return staleness.may_close_waiting(ledger.spec, batch_index=step - 1, left_out=left_out)
    return staleness.may_close_ahead(ledger.spec, batch_index=step - 1, left_out=left_out)


def stage(ledger: Ledger, *, step: int, parts: Sequence[Part], fresh: bool) -> bool:
    """Write some parts of a batch that `freeze` will record; `fresh`: the first ones, whatever was left there.

    False, with nothing changed, if the ledger has moved on since the choice.
    """
    with ledger.db.transaction():
        if groups.recorded(ledger) != step - 1:
            return False
        if fresh:
            ledger.db.change("DELETE FROM batch_parts WHERE step = ?", step)
        ledger.db.many(
            "INSERT INTO batch_parts (step, rank, seq, data) VALUES (?, ?, ?, ?)",
            ((step, part.rank, part.seq, part.data) for part in parts),
        )
        return True


def freeze(ledger: Ledger, frozen: FrozenStep, *, now: float) -> bool:
    """Record step k's batch, whose parts are staged. PACKED. False, with nothing changed, if the ledger has moved
    on since the choice.
    """
    with ledger.db.transaction():
        if groups.recorded(ledger) != frozen.step - 1 or not frozen.step - 2 <= groups.committed(ledger) < frozen.step:
            return False
        # The batch was built outside of this transaction: some of its groups may have been dropped meanwhile.
        free = [
            group_id
            for group_id in frozen.group_ids
            if ledger.db.one("SELECT 1 FROM groups WHERE group_id = ? AND state = ?", group_id, groups.SUBMITTED)
        ]
        if len(free) != len(frozen.group_ids):
            return False
        for position, group_id in enumerate(frozen.group_ids):
            ledger.db.change(
                "UPDATE groups SET state = ?, step = ?, step_position = ? WHERE group_id = ? AND state = ?",
                PACKED, frozen.step, position, group_id, groups.SUBMITTED,
            )  # fmt: skip
        _insert_step(ledger, frozen, now=now)
        groups.drop_stale(ledger, now=now)
        return True


def _insert_step(ledger: Ledger, frozen: FrozenStep, *, now: float) -> None:
    cut = json.dumps([[part.num_tokens, part.num_rows] for part in frozen.minibatches])
    ledger.db.change(
        "INSERT INTO steps (step, state, world_size, minibatches, summary, num_groups, packed_at)"
        " VALUES (?, 'packed', ?, ?, ?, ?, ?)",
        frozen.step, frozen.world_size, cut, json.dumps(dict(frozen.summary)), len(frozen.group_ids), now,
    )  # fmt: skip
    ledger.count("zero_advantage_groups", frozen.zero_advantage_groups)


def decide(ledger: Ledger, *, token: str, step: int, rank: int, world_size: int, stop: bool) -> types.BatchHeader:
    """Answer FetchBatch as far as it is recorded: BATCH, STOP, FINISHED, or NOT_READY. All ranks get the same
    answer.

    Raises FencedError for a replaced session, LedgerError for a step that was pruned or packed for another shape.
    """
    with ledger.db.transaction():
        session = sessions.check_session(ledger, token, enums.Role.TRAINER)
        attempt = session["attempt"]
        if stop:
            request_stop(ledger, attempt=attempt)
        stop_at = stop_step(ledger, attempt)
        if stop_at is not None and step >= stop_at:
            return types.BatchHeader(kind=enums.BatchKind.STOP, step=step)
        if step > groups.last_step(ledger):
            announce_end(ledger)
            return types.BatchHeader(kind=enums.BatchKind.FINISHED, step=step)
        row = ledger.db.one("SELECT * FROM steps WHERE step = ?", step)
        if row is None:
            return _not_recorded(ledger, step)
        return _hand_out(ledger, row, attempt=attempt, rank=rank, world_size=world_size)


def announce_end(ledger: Ledger) -> None:
    """Keep what FINISHED says: the trainer exports and leaves, so an end that is raised later comes too late."""
    if groups.announced_end(ledger) is None:
        ledger.set_meta("announced_end", str(groups.last_step(ledger)))


def forget_announced_end(ledger: Ledger) -> None:
    """Let the run's end be what the limits and the data say again."""
    ledger.db.change("DELETE FROM meta WHERE key = 'announced_end'")


def _not_recorded(ledger: Ledger, step: int) -> types.BatchHeader:
    if step <= groups.recorded(ledger):
        raise errors.LedgerError(f"the batch of step {step} was pruned by a later checkpoint")
    committed = groups.committed(ledger)
    reason = "" if step == committed + 1 else f"step {committed + 1} to be committed"
    return types.BatchHeader(kind=enums.BatchKind.NOT_READY, step=step, wait_reason=reason)


def _hand_out(ledger: Ledger, row: Row, *, attempt: int, rank: int, world_size: int) -> types.BatchHeader:
    step = row["step"]
    if row["world_size"] != world_size or not 0 <= rank < world_size:
        raise errors.LedgerError(
            f"step {step} was packed for {row['world_size']} trainer ranks, but rank {rank} of {world_size} asks"
        )
    # Recorded ahead (`choose`): it is handed out once the step before it is trained.
    if step > groups.committed(ledger) + 1:
        reason = f"step {groups.committed(ledger) + 1} to be committed"
        return types.BatchHeader(kind=enums.BatchKind.NOT_READY, step=step, wait_reason=reason)
    if row["state"] == "trained" and _is_pruned(ledger, step):
        raise errors.LedgerError(f"the batch of step {step} was pruned by a later checkpoint")
    # The first rank that asks moves the mark from which `request_stop` counts: all ranks stop before the same step.
    handed = ledger.db.change(
        "UPDATE attempts SET handed_step = ? WHERE attempt = ? AND handed_step < ?", step, attempt, step
    )
    ledger.count("batches_handed", handed)
    minibatches = [types.Minibatch(num_tokens=t, num_rows=r) for t, r in json.loads(row["minibatches"])]
    return types.BatchHeader(
        kind=enums.BatchKind.BATCH,
        step=step,
        trainer_version=step - 1,
        num_updates=len(minibatches),
        num_micro_batches=ledger.number(
            "SELECT COUNT(*) AS n FROM batch_parts WHERE step = ? AND rank = ?", step, rank
        ),
        minibatches=tuple(minibatches),
        sft_steps=ledger.sft_steps,
    )


def _is_pruned(ledger: Ledger, step: int) -> bool:
    return step <= int(ledger.meta("pruned_step") or 0)


def parts(ledger: Ledger, *, step: int, rank: int) -> list[bytes]:
    """Return a rank's micro-batches of a recorded step."""
    return parts_of(ledger.db, step=step, rank=rank)


def request_stop(ledger: Ledger, *, attempt: int | None = None) -> int:
    """Record that the attempt ends before the first step whose batch no rank has yet; return the last step it
    trains.
    """
    with ledger.db.transaction():
        newest = sessions.trainer_attempt(ledger) if attempt is None else attempt
        if newest is None:
            return groups.committed(ledger)
        ledger.db.change(
            "UPDATE attempts SET stop_step = handed_step + 1 WHERE attempt = ? AND stop_step IS NULL", newest
        )
        return (stop_step(ledger, newest) or 1) - 1


def stop_step(ledger: Ledger, attempt: int) -> int | None:
    """Return the step that this attempt answers with STOP, if it was asked to stop."""
    row = ledger.db.one("SELECT stop_step FROM attempts WHERE attempt = ?", attempt)
    return None if row is None or row["stop_step"] is None else int(row["stop_step"])


def commit_step(
    ledger: Ledger,
    *,
    token: str,
    step: int,
    stats: Mapping[str, float],
    started_at: float,
    finished_at: float,
    now: float,
) -> bool:
    """Mark a step TRAINED; True if it was already. Raises LedgerError for a step that is not the next one."""
    with ledger.db.transaction():
        session = sessions.check_session(ledger, token, enums.Role.TRAINER)
        row = ledger.require("SELECT * FROM steps WHERE step = ?", step, problem=f"step {step} has no batch")
        # Rank 0 repeats a call whose answer it did not get.
        if row["state"] == "trained":
            return True
        if step != groups.committed(ledger) + 1:
            raise errors.LedgerError(f"step {step} cannot be committed after step {groups.committed(ledger)}")
        ledger.db.change(
            "UPDATE steps SET state = 'trained', trained_at = ?, attempt = ?, stats = ? WHERE step = ? AND state"
            " = 'packed'",
            now, session["attempt"], json.dumps(dict(stats)), step,
        )  # fmt: skip
        ledger.db.change(
            "UPDATE groups SET state = ?, closed_at = ? WHERE step = ? AND state = ?", TRAINED, now, step, PACKED
        )
        sessions.note_first_step(ledger, session["attempt"], now=now)
        ledger.count("steps_committed")
        ledger.count("tokens_trained", sum(num_tokens for num_tokens, _ in json.loads(row["minibatches"])))
        summary = json.loads(row["summary"])
        if step > ledger.sft_steps:
            num_rows, num_tokens = summary.get("rows", 0), summary.get("tokens", 0)
            groups.count_answers(ledger, enums.AnswerFate.TRAINED, num_answers=num_rows, num_tokens=num_tokens)
        ledger.count_all({f"packed_tokens:{kind}": num for kind, num in summary.get("packed_tokens", {}).items()})
        if ledger.meta("first_step_at") is None:
            ledger.set_meta("first_step_at", repr(now))
        # Counted at packing where the coordinator made the advantages.
        ledger.count("zero_advantage_groups", int(stats.get(enums.StepStat.ZERO_ADVANTAGE_GROUPS, 0)))
        _note_step(ledger, row, session["attempt"], stats, times=(started_at, finished_at, now))
        return False


def _note_step(
    ledger: Ledger, row: Row, attempt: int, stats: Mapping[str, float], *, times: tuple[float, float, float]
) -> None:
    counters = ledger.counters()
    summary = json.loads(row["summary"])
    ledger.note(
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
            "prefix_tokens": {kind: counters.get(f"prefix_tokens:{kind}", 0) for kind in ("repeated", "cached")},
            "answers": _by_fate(counters, "answers"),
            "answer_tokens": _by_fate(counters, "answer_tokens"),
            "stats": dict(stats),
        }
    )


def _by_fate(counters: Mapping[str, int], what: str) -> dict[str, int]:
    return {str(fate): counters.get(f"{what}:{fate}", 0) for fate in enums.AnswerFate}


def candidate(row: Row) -> Candidate:
    """Return a submitted group as a candidate."""
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
