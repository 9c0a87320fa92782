"""QUEUED to LEASED and back: granted, renewed, released, lost."""

import dataclasses
import secrets
from collections.abc import Sequence

from rljob_api import enums, types
from rljob_workers.coordinator.ledger import examples, groups, sessions
from rljob_workers.coordinator.ledger.database import Ledger, Row
from rljob_workers.coordinator.ledger.groups import LEASED, QUEUED, Take
from rljob_workers.coordinator.policy import prompts, staleness, submission


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease as granted."""

    lease_id: types.LeaseId
    group_id: types.GroupId
    kind: enums.GroupKind
    attempt: int
    ref: prompts.PromptRef
    group_size: int
    floor_step: int
    from_version: int
    pinned_version: int | None
    lease_order: int


# Reasons of a release, by how they begin, that say nothing about the prompt.
_FREE_REASONS = ("drain", "weights")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Grant:
    """Who is granted leases, for which version of which step."""

    token: str
    version: int
    step: int
    now: float


def lease(
    ledger: Ledger,
    *,
    token: str,
    capacity: int,
    serving_version: int,
    take: Take,
    now: float,
    evaluates: bool = True,
    coming_version: int | None = None,
    take_examples: Take | None = None,
) -> tuple[list[Lease], enums.WaitReason | None]:
    """Grant up to `capacity` leases: evaluation first, where the rollout `evaluates`, then training. The reason
    says what is missing for more. take_examples: of the supervised steps, if there are any; before the last of them has
    its batch there is no other training.

    coming_version: what the rollout is told to load. A group that the served version is too old for is leased for that
    one, and begins once it is served; until then no token of it is sampled.
    """
    with ledger.db.transaction():
        sessions.check_session(ledger, token, enums.Role.ROLLOUT)
        grants = []
        for number in (serving_version, coming_version):
            version = None if number is None else _usable(ledger, number)
            if number is not None and version is not None:
                grants.append(_Grant(token=token, version=number, step=version, now=now))
        if not grants:
            return [], enums.WaitReason.WEIGHTS
        leases = _lease_evaluation(ledger, grants, capacity) if evaluates else []
        reason = None
        if take_examples is not None and examples.are_due(ledger):
            return leases + _lease_examples(ledger, grants[0], take_examples, capacity - len(leases)), (
                enums.WaitReason.STALENESS
            )
        counts = groups.counts(ledger)
        while len(leases) < capacity and reason is None:
            granted, reason, counts = _lease_one(ledger, grants, take, counts)
            leases += granted
        return leases, reason


def _usable(ledger: Ledger, version: int) -> int | None:
    """Return the step of a version that may be sampled from, None if it is not registered or is not to be used."""
    row = ledger.db.one("SELECT step FROM versions WHERE version = ?", version)
    return None if row is None or version < ledger.config.first_version else int(row["step"])


def _lease_evaluation(ledger: Ledger, grants: Sequence[_Grant], capacity: int) -> list[Lease]:
    current = ledger.db.one("SELECT step, version FROM evaluations WHERE state = 'running' ORDER BY step LIMIT 1")
    grant = next((grant for grant in grants if current is not None and grant.version == current["version"]), None)
    if current is None or grant is None:
        return []
    rows = ledger.db.all(
        "SELECT * FROM groups WHERE kind = 'evaluation' AND state = 'queued' AND eval_step = ?"
        " ORDER BY queue_key LIMIT ?",
        current["step"], capacity,
    )  # fmt: skip
    if rows:
        ledger.db.change(
            "UPDATE evaluations SET started_at = ? WHERE step = ? AND started_at IS NULL",
            grant.now,
            current["step"],
        )
    return [_grant(ledger, grant, row, floor=grant.step, target=grant.step, pinned=grant.version) for row in rows]


def _lease_examples(ledger: Ledger, grant: _Grant, take: Take, capacity: int) -> list[Lease]:
    leases: list[Lease] = []
    for _ in range(min(capacity, examples.room(ledger))):
        row = examples.next_queued(ledger, take, now=grant.now)
        # Any weights will do: nothing is sampled.
        leases.append(_grant(ledger, grant, row, floor=0, target=groups.recorded(ledger), pinned=None))
    return leases


def _lease_one(
    ledger: Ledger, grants: Sequence[_Grant], take: Take, counts: groups.Counts
) -> tuple[list[Lease], enums.WaitReason | None, groups.Counts]:
    """Return the lease, or what is missing for it, and the counts behind it."""
    if groups.capacity(ledger, counts) <= 0:
        return [], enums.WaitReason.STALENESS, counts
    floor = staleness.version_floor(
        ledger.spec, accepted=counts.accepted, running=counts.running, first_step=ledger.sft_steps
    )
    # Above `recorded`: weights of steps that were undone for good; no batch may take their tokens.
    grant = next((grant for grant in grants if floor <= grant.step <= counts.recorded), None)
    if grant is None:
        return [], enums.WaitReason.WEIGHTS, counts
    if counts.queued == 0:
        filled = groups.fill(ledger, take, now=grant.now)
        if filled == 0:
            return [], enums.WaitReason.NO_PROMPTS, counts
        counts = dataclasses.replace(counts, queued=filled)
    row = ledger.require(
        "SELECT * FROM groups WHERE kind = 'train' AND state = 'queued' ORDER BY queue_key LIMIT 1",
        problem="the queue is empty although it was filled",
    )
    target = (counts.accepted + counts.running) // ledger.spec.algorithm.prompts_per_step
    lease = _grant(ledger, grant, row, floor=floor, target=target, pinned=None)
    return [lease], None, dataclasses.replace(counts, queued=counts.queued - 1, running=counts.running + 1)


def _grant(ledger: Ledger, grant: _Grant, row: Row, *, floor: int, target: int, pinned: int | None) -> Lease:
    order = ledger.number("SELECT value AS n FROM counters WHERE name = 'leases_granted'") + 1
    ledger.count("leases_granted")
    lease_id = types.LeaseId(f"{order:08d}-{secrets.token_hex(4)}")
    # `lease_order` is that of the group's first lease: a later attempt does not lose its place in the batches.
    changed = ledger.db.change(
        "UPDATE groups SET state = ?, granted_step = ?, leased_at = ?, lease_order = COALESCE(lease_order, ?)"
        " WHERE group_id = ? AND state = ?",
        LEASED, grant.step, grant.now, order, row["group_id"], QUEUED,
    )  # fmt: skip
    assert changed == 1, "a group that was read as queued in this transaction is queued"
    ledger.db.change(
        "INSERT INTO leases (lease_id, group_id, attempt, session, state, granted_at, deadline, floor_step,"
        " target_step, granted_version, granted_step) VALUES (?,?,?,?,'open',?,?,?,?,?,?)",
        lease_id, row["group_id"], row["attempt"], grant.token, grant.now, grant.now + ledger.config.lease_s, floor,
        target, grant.version, grant.step,
    )  # fmt: skip
    return Lease(
        lease_id=lease_id,
        group_id=types.GroupId(row["group_id"]),
        kind=enums.GroupKind(row["kind"]),
        attempt=row["attempt"],
        ref=groups.ref_of(row),
        group_size=row["group_size"],
        floor_step=floor,
        from_version=grant.version,
        pinned_version=pinned,
        lease_order=order if row["lease_order"] is None else row["lease_order"],
    )


def renew(ledger: Ledger, *, token: str, lease_ids: Sequence[str], now: float) -> list[types.LeaseId]:
    """Extend those of the session's open leases that it names; return the named ones that are no longer open: they are
    to be cancelled.

    An open lease that its session does not name was granted in a reply that never arrived: no one works on it, and it
    expires. A deadline is written only once a third of the lease has passed, so that idle heartbeats cost no disk
    write.
    """
    with ledger.db.transaction():
        sessions.check_session(ledger, token, enums.Role.ROLLOUT)
        rows = ledger.db.all("SELECT lease_id, deadline FROM leases WHERE session = ? AND state = 'open'", token)
        deadlines = {row["lease_id"]: row["deadline"] for row in rows}
        due = now + ledger.config.lease_s * 2 / 3
        for lease_id in lease_ids:
            if deadlines.get(lease_id, due) < due:
                ledger.db.change(
                    "UPDATE leases SET deadline = ? WHERE lease_id = ?", now + ledger.config.lease_s, lease_id
                )
        return [types.LeaseId(lease_id) for lease_id in lease_ids if lease_id not in deadlines]


def withdrawn(ledger: Ledger, *, token: str, lease_ids: Sequence[str]) -> list[types.LeaseId]:
    """Return those of a session's leases that are neither open nor submitted."""
    sessions.check_session(ledger, token, enums.Role.ROLLOUT)
    query = "SELECT 1 FROM leases WHERE lease_id = ? AND session = ? AND state IN ('open', 'done')"
    return [types.LeaseId(lease_id) for lease_id in lease_ids if ledger.db.one(query, lease_id, token) is None]


def expire(ledger: Ledger, *, now: float) -> int:
    """Offer the groups of leases past their deadline again, oldest first. Returns how many leases were lost."""
    with ledger.db.transaction():
        rows = ledger.db.all(
            "SELECT lease_id FROM leases WHERE state = 'open' AND deadline < ? ORDER BY deadline, lease_id", now
        )
        for row in rows:
            lose(ledger, row["lease_id"], detail="the lease expired", state="lost", now=now)
        ledger.count("leases_expired", len(rows))
        return len(rows)


def release(ledger: Ledger, *, token: str, lease_id: str, reason: str, now: float) -> bool:
    """Take a lease back from its worker; False if it was not open. A drain, or a version that its worker could not
    take, costs the prompt no attempt.
    """
    with ledger.db.transaction():
        sessions.check_session(ledger, token, enums.Role.ROLLOUT)
        lease = ledger.db.one("SELECT session FROM leases WHERE lease_id = ? AND state = 'open'", lease_id)
        if lease is None or lease["session"] != token:
            return False
        charge = not reason.startswith(_FREE_REASONS)
        lose(ledger, lease_id, detail=f"released: {reason}", state="released", now=now, charge=charge)
        return True


def lose_all_of(ledger: Ledger, token: str, *, now: float) -> None:
    """Offer everything again that a replaced session held, at once."""
    rows = ledger.db.all("SELECT lease_id FROM leases WHERE session = ? AND state = 'open' ORDER BY lease_id", token)
    for row in rows:
        lose(ledger, row["lease_id"], detail="its process was replaced", state="lost", now=now)


def close_sessions(ledger: Ledger, tokens: Sequence[str], *, now: float) -> None:
    """Forget processes that are gone, and what else is kept of their pods; their leases are offered again."""
    with ledger.db.transaction():
        for token in tokens:
            lose_all_of(ledger, token, now=now)
            row = ledger.db.one("SELECT pod FROM sessions WHERE token = ?", token)
            ledger.db.change("DELETE FROM sessions WHERE token = ?", token)
            if row is not None:
                ledger.db.change("DELETE FROM syncs WHERE pod = ?", row["pod"])


def extend_all(ledger: Ledger, *, now: float) -> None:
    """After a restart: give every worker one lease period to renew."""
    with ledger.db.transaction():
        ledger.db.change(
            "UPDATE leases SET deadline = ? WHERE state = 'open' AND deadline < ?",
            now + ledger.config.lease_s, now + ledger.config.lease_s,
        )  # fmt: skip


def lose(ledger: Ledger, lease_id: str, *, detail: str, state: str, now: float, charge: bool = True) -> None:
    """Close an open lease without a result; its group gets another attempt or ends, by the infra budget."""
    lease = ledger.require("SELECT * FROM leases WHERE lease_id = ?", lease_id, problem=f"no lease {lease_id}")
    ledger.db.change("UPDATE leases SET state = ? WHERE lease_id = ? AND state = 'open'", state, lease_id)
    group = ledger.require("SELECT * FROM groups WHERE group_id = ?", lease["group_id"], problem="no such group")
    if charge:
        judgement = submission.lost(groups.facts(ledger, group), ledger.spec, detail)
        ledger.count("retries:infra")
    else:
        judgement = submission.Decision(
            outcome=enums.TrajectoryOutcome.INFRA_FAILURE, detail=detail, requeue=submission.Requeue.NEXT_ATTEMPT
        )
    groups.carry_out(ledger, judgement, group, now=now)
