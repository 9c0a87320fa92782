"""Weight versions in the ledger: published, LIVE, RETIRED, superseded; layouts; what each sync of a rollout
measured.
"""

import dataclasses
from collections.abc import Sequence

from rljob_api import enums, errors, types
from rljob_api.wire import codec
from rljob_workers.coordinator.ledger import groups, sessions
from rljob_workers.coordinator.ledger.database import Ledger, Row
from rljob_workers.coordinator.policy import version_rules

# Never the manifest, which has kilobytes.
_COLUMNS = "version, step, attempt, state, superseded, state_hash, artifact"


def head(ledger: Ledger) -> version_rules.Registered:
    """Return the version with the highest id."""
    newest = f"SELECT {_COLUMNS} FROM versions ORDER BY version DESC LIMIT 1"
    return _registered(ledger.require(newest, problem="no version 0"))


def find(ledger: Ledger, version: int) -> version_rules.Registered | None:
    row = ledger.db.one(f"SELECT {_COLUMNS} FROM versions WHERE version = ?", version)
    return None if row is None else _registered(row)


def stored_versions(ledger: Ledger) -> list[version_rules.Registered]:
    """Return the versions that are not RETIRED, ids ascending."""
    sql = f"SELECT {_COLUMNS} FROM versions WHERE state <> 'retired' ORDER BY version"
    return [_registered(row) for row in ledger.db.all(sql)]


def publish(
    ledger: Ledger,
    *,
    token: str,
    proposal: types.WeightVersion,
    layout: types.Layout | None,
    num_bytes: int | None,
    evaluate: bool,
    now: float,
) -> version_rules.Answer:
    """Register a version. PUBLISHED. `evaluate`: an evaluation of it is due and begins in the same transaction.

    Leases and submissions that no batch may take any more are dropped first, so that workers cancel before they
    load.
    """
    with ledger.db.transaction():
        session = sessions.check_session(ledger, token, enums.Role.TRAINER)
        if layout is not None:
            ledger.db.change(
                "INSERT OR IGNORE INTO layouts (layout_id, data) VALUES (?, ?)",
                layout.layout_id, codec.encode(layout),
            )  # fmt: skip
        answer = version_rules.judge(
            proposal,
            registered=find(ledger, proposal.version),
            head=head(ledger).version,
            committed=groups.committed(ledger),
            attempt=session["attempt"],
            num_bytes=num_bytes,
        )
        if answer.outcome is version_rules.Outcome.ACCEPTED and find_layout(ledger, proposal.layout_id) is None:
            return version_rules.Answer(
                outcome=version_rules.Outcome.MISSING, detail=f"layout {proposal.layout_id} is unknown"
            )
        if answer.outcome is version_rules.Outcome.ACCEPTED:
            _insert(ledger, proposal, now=now)
            groups.drop_stale(ledger, now=now)
            if evaluate:
                begin_evaluation(ledger, step=proposal.step, version=proposal.version, now=now)
        return answer


def begin_evaluation(ledger: Ledger, *, step: int, version: int, now: float) -> bool:
    """Pin a version for the evaluation of a step; False if that step was or is being evaluated."""
    sql = "INSERT OR IGNORE INTO evaluations (step, version, state, created_at) VALUES (?, ?, 'running', ?)"
    return ledger.db.change(sql, step, version, now) == 1


def _insert(ledger: Ledger, proposal: types.WeightVersion, *, now: float) -> None:
    ledger.db.change(
        "INSERT INTO versions (version, step, attempt, state, state_hash, artifact, created_at, manifest)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        proposal.version, proposal.step, proposal.attempt, enums.VersionState.PUBLISHED, proposal.state_hash,
        proposal.artifacts[0].artifact_id, now, codec.encode(proposal),
    )  # fmt: skip
    ledger.count("versions_published")
    ledger.note(
        {
            "kind": "version",
            "at": now,
            "version": proposal.version,
            "step": proposal.step,
            "attempt": proposal.attempt,
            "bytes": proposal.artifacts[0].num_bytes,
            "changed_ratio": proposal.changed_ratio,
        }
    )


def mark_live(ledger: Ledger, version: int, *, now: float) -> bool:
    """A ready rollout serves this version. LIVE. True if it was not before."""
    with ledger.db.transaction():
        changed = ledger.db.change(
            "UPDATE versions SET state = ?, live_at = ? WHERE version = ? AND state = ?",
            enums.VersionState.LIVE, now, version, enums.VersionState.PUBLISHED,
        )  # fmt: skip
        ledger.count("versions_live", changed)
        return changed == 1


def retire(ledger: Ledger, retired: Sequence[int]) -> None:
    """The artifacts of these versions are gone. RETIRED; manifests are kept for the whole run."""
    with ledger.db.transaction():
        for version in retired:
            ledger.db.change("UPDATE versions SET state = ? WHERE version = ?", enums.VersionState.RETIRED, version)


def manifest(ledger: Ledger, version: int) -> types.WeightVersion:
    """Raises WeightsError if the id is unknown, is 0, or its bytes were pruned."""
    row = ledger.db.one("SELECT state, manifest FROM versions WHERE version = ?", version)
    if row is None:
        raise errors.WeightsError(f"version {version} is not registered")
    if row["manifest"] is None:
        raise errors.WeightsError(f"version {version} has no manifest: it is what the model files hold")
    if row["state"] == enums.VersionState.RETIRED:
        raise errors.WeightsError(f"version {version} was pruned; ask for {head(ledger).version}")
    return codec.decode(types.WeightVersion, bytes(row["manifest"]))


def find_layout(ledger: Ledger, layout_id: str) -> types.Layout | None:
    row = ledger.db.one("SELECT data FROM layouts WHERE layout_id = ?", layout_id)
    return None if row is None else codec.decode(types.Layout, bytes(row["data"]))


def note_sync(ledger: Ledger, *, pod: str, sync: types.WeightSync, now: float) -> bool:
    """Record a rollout's weight update once, however often it is reported; True the first time."""
    with ledger.db.transaction():
        # A rollout reports in order, and again what was not acknowledged.
        fresh = ledger.db.change(
            "INSERT INTO syncs (pod, finished_at) VALUES (?, ?) ON CONFLICT (pod) DO UPDATE"
            " SET finished_at = excluded.finished_at WHERE excluded.finished_at > syncs.finished_at",
            pod, sync.finished_at,
        )  # fmt: skip
        if fresh:
            ledger.count("versions_applied" if not sync.failure else "sync_failures")
            measured = dataclasses.asdict(sync)
            measured["bytes"] = measured.pop("num_bytes")
            ledger.note({"kind": "weight_sync", "at": now, "pod": pod, **measured})
        return bool(fresh)


def _registered(row: Row) -> version_rules.Registered:
    return version_rules.Registered(
        version=row["version"],
        step=row["step"],
        attempt=row["attempt"],
        state=enums.VersionState(row["state"]),
        superseded=bool(row["superseded"]),
        state_hash=row["state_hash"],
        artifact=row["artifact"],
    )
