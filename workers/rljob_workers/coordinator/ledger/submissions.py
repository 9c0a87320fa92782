"""LEASED to SUBMITTED: a group is accepted once per (group, attempt); a repeated call gets the recorded
answer.
"""

import math
import statistics

from rljob_api import enums, types
from rljob_api.wire import codec
from rljob_workers.coordinator.ledger import groups, retention, sessions
from rljob_workers.coordinator.ledger.database import Ledger, Row
from rljob_workers.coordinator.policy import submission

# What ends at once; an accepted answer's fate is counted later.
_FATES = {
    enums.TrajectoryOutcome.STALE: enums.AnswerFate.STALE,
    enums.TrajectoryOutcome.FILTERED: enums.AnswerFate.FILTERED,
}


def accept(
    ledger: Ledger,
    *,
    token: str,
    group: types.PromptGroup,
    now: float,
    payload: bytes = b"",
) -> types.SubmitReply:
    """Judge a submitted group and carry the judgement out. Raises FencedError for a replaced session.

    `payload`: the group's message as it came, to be kept instead of encoding it again.
    """
    with ledger.db.transaction():
        sessions.check_session(ledger, token, enums.Role.ROLLOUT)
        row = _leased(ledger, token, group)
        if row is None:
            # Who holds the lease has no answer yet; only others may ask again, or too late.
            recorded = _answer(ledger, group.group_id, group.attempt)
            if recorded is not None:
                # The same call again, whose answer was lost or late, is not a second trajectory.
                if not _answered(ledger, token, group):
                    ledger.count("trajectories:duplicate", len(group.trajectories))
                return recorded
            judgement = submission.Decision(
                outcome=enums.TrajectoryOutcome.DUPLICATE, detail="its lease is no longer open"
            )
        else:
            sampled = {version for member in group.trajectories for version in submission.sampling_versions(member)}
            facts = groups.facts(ledger, row, sampled)
            judgement = submission.evaluate(group, facts, spec=ledger.spec)
            _settle(ledger, row, group, facts, judgement, payload=payload, now=now)
        is_example = row is not None and row["kind"] == enums.GroupKind.EXAMPLE
        _record(ledger, group, judgement, is_example=is_example, now=now)
        return types.SubmitReply(outcome=judgement.outcome, detail=judgement.detail)


def _answered(ledger: Ledger, token: str, group: types.PromptGroup) -> bool:
    """Return whether this very lease has had its answer."""
    sql = "SELECT 1 FROM leases WHERE lease_id = ? AND session = ? AND state = 'done'"
    return ledger.db.one(sql, group.lease_id, token) is not None


def _answer(ledger: Ledger, group_id: str, attempt: int) -> types.SubmitReply | None:
    row = ledger.db.one("SELECT * FROM answers WHERE group_id = ? AND attempt = ?", group_id, attempt)
    if row is None:
        return _answer_of_old(ledger, group_id, attempt)
    return types.SubmitReply(outcome=enums.TrajectoryOutcome(row["outcome"]), detail=row["detail"], duplicate=True)


def _answer_of_old(ledger: Ledger, group_id: str, attempt: int) -> types.SubmitReply | None:
    """Return what a group that is not in the ledger (any more) is answered with; None while it is."""
    if ledger.db.one("SELECT 1 FROM groups WHERE group_id = ?", group_id) is not None:
        return None
    old = retention.find(ledger.db, group_id)
    accepted = old is not None and old.accepted and old.attempt == attempt
    outcome = enums.TrajectoryOutcome.ACCEPTED if accepted else enums.TrajectoryOutcome.DUPLICATE
    return types.SubmitReply(outcome=outcome, detail="its group was closed long ago", duplicate=True)


def _leased(ledger: Ledger, token: str, group: types.PromptGroup) -> Row | None:
    """Return the group's row if this session holds the open lease of this very attempt."""
    lease = ledger.db.one(
        "SELECT 1 FROM leases WHERE lease_id = ? AND group_id = ? AND attempt = ? AND session = ? AND state"
        " = 'open'",
        group.lease_id, group.group_id, group.attempt, token,
    )  # fmt: skip
    if lease is None:
        return None
    return ledger.require(
        "SELECT * FROM groups WHERE group_id = ? AND attempt = ? AND state = ?",
        group.group_id, group.attempt, groups.LEASED,
        problem=f"group {group.group_id} has an open lease but is not leased",
    )  # fmt: skip


def _settle(
    ledger: Ledger,
    row: Row,
    group: types.PromptGroup,
    facts: submission.Facts,
    judgement: submission.Decision,
    *,
    payload: bytes,
    now: float,
) -> None:
    ledger.db.change("UPDATE leases SET state = 'done' WHERE lease_id = ? AND state = 'open'", group.lease_id)
    for failure in group.failures:
        ledger.count(f"failures:{'infra' if failure.infra else 'data'}:{failure.role}:{failure.reason}")
    ledger.count("retries:infra", judgement.infra)
    ledger.count("retries:data", judgement.data)
    if judgement.ends_run:
        groups.end_run(ledger, _why(row, judgement.detail))
    if (
        judgement.outcome in (enums.TrajectoryOutcome.ACCEPTED, enums.TrajectoryOutcome.FILTERED)
        and row["kind"] == enums.GroupKind.TRAIN
    ):
        _score(ledger, row, group)
    if judgement.outcome is enums.TrajectoryOutcome.FILTERED:
        _leave_out(ledger, group)
    if judgement.outcome in (enums.TrajectoryOutcome.ACCEPTED, enums.TrajectoryOutcome.RECORDED):
        _submit(ledger, row, group, facts, payload=payload, now=now)
    else:
        groups.carry_out(ledger, judgement, row, now=now)


def _submit(
    ledger: Ledger, row: Row, group: types.PromptGroup, facts: submission.Facts, *, payload: bytes, now: float
) -> None:
    oldest, newest = submission.step_range(group.trajectories, facts.version_steps)
    changed = ledger.db.change(
        "UPDATE groups SET state = ?, min_step = ?, max_step = ?, finished_step = ?, num_rows = ?,"
        " num_failures = ?, submitted_at = ?,"
        " generate_started_at = ?, generate_finished_at = ?, verify_s = ? WHERE group_id = ? AND state = ?"
        " AND attempt = ?",
        groups.SUBMITTED, oldest, newest, groups.published_step(ledger), len(group.trajectories), len(group.failures),
        now,
        group.generate_started_at, group.generate_finished_at, group.verify_s, row["group_id"], groups.LEASED,
        group.attempt,
    )  # fmt: skip
    assert changed == 1, "a group that was read as leased in this transaction is leased"
    ledger.db.change(
        "INSERT OR REPLACE INTO payloads (group_id, attempt, data) VALUES (?, ?, ?)",
        group.group_id, group.attempt, payload or codec.encode(group),
    )  # fmt: skip


def _score(ledger: Ledger, row: Row, group: types.PromptGroup) -> None:
    """Keep what a curriculum decides by; groups that the filter rejects count too, for those are the easiest."""
    if ledger.spec.data.curriculum is not None:
        ledger.db.change(
            "INSERT INTO scores (epoch, source, prompt_index, total, num_groups) VALUES (?, ?, ?, ?, 1)"
            " ON CONFLICT DO UPDATE SET total = total + excluded.total, num_groups = num_groups + 1",
            row["epoch"], row["source"], row["prompt_index"],
            statistics.fmean(trajectory.raw_reward for trajectory in group.trajectories),
        )  # fmt: skip


def _leave_out(ledger: Ledger, group: types.PromptGroup) -> None:
    """Keep what a filter's groups earned: without them the rewards of a run seem to stand still while it learns."""
    rewards = [row.raw_reward for row in group.trajectories]
    ledger.db.change(
        "INSERT INTO left_out (step, num_rows, total, total_squares) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " num_rows = num_rows + excluded.num_rows, total = total + excluded.total,"
        " total_squares = total_squares + excluded.total_squares",
        groups.recorded(ledger) + 1, len(rewards), math.fsum(rewards), math.fsum(reward**2 for reward in rewards),
    )  # fmt: skip


def _record(
    ledger: Ledger, group: types.PromptGroup, judgement: submission.Decision, *, is_example: bool, now: float
) -> None:
    ledger.db.change(
        "INSERT OR REPLACE INTO answers (group_id, attempt, outcome, detail, at) VALUES (?, ?, ?, ?, ?)",
        group.group_id, group.attempt, judgement.outcome, judgement.detail, now,
    )  # fmt: skip
    if is_example:
        # Its tokens are not generated, and it is no trajectory.
        ledger.count(f"groups:{judgement.outcome}")
        return
    grown = {
        f"groups:{judgement.outcome}": 1,
        "trajectories:infra_failure": sum(failure.infra for failure in group.failures),
        "tokens_generated": sum(row.num_sampled for row in group.trajectories),
        "prefix_tokens:repeated": group.repeated_tokens,
        "prefix_tokens:cached": group.cached_tokens,
    }
    fate = _FATES.get(judgement.outcome)
    if fate is not None:
        groups.count_answers(ledger, fate, num_answers=len(group.trajectories), num_tokens=grown["tokens_generated"])
    if judgement.outcome is not enums.TrajectoryOutcome.INFRA_FAILURE:
        grown[f"trajectories:{judgement.outcome}"] = len(group.trajectories)
    ledger.count_all(grown)


def _why(row: Row, detail: str) -> str:
    where = f"record {row['prompt_index']} of source {row['source']!r} cannot be used"
    return f"{where}: {detail}; fix it, or set onInvalidRecord: Drop for the source"
