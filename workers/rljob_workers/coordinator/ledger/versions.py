"""Weight versions in the ledger: published, LIVE, RETIRED, superseded; layouts; what each sync of a rollout
measured.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from rljob_api import enums, errors, types
from rljob_api.wire import codec
from rljob_workers.coordinator.ledger import groups, sessions
from rljob_workers.coordinator.ledger.database import Ledger, Row
from rljob_workers.coordinator.policy import version_plan, version_rules

# Never the manifest, which has kilobytes.
_COLUMNS = "version, step, attempt, state, superseded, state_hash, artifact, num_bytes, changes, changes_bytes, base"


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


def lineage(ledger: Ledger, version: int) -> list[version_rules.Registered]:
    """Return a version, the one that its changes are against, and so on: down to 0, to an anchor without changes, or
    to what was pruned.
    """
    line: list[version_rules.Registered] = []
    registered = find(ledger, version)
    while registered is not None and registered.state is not enums.VersionState.RETIRED:
        line.append(registered)
        registered = None if registered.base == types.NO_VERSION else find(ledger, registered.base)
    return line


def publish(
    ledger: Ledger,
    *,
    token: str,
    proposal: types.WeightVersion,
    layout: types.Layout | None,
    stored: Mapping[str, int | None],
    evaluate: bool,
    now: float,
) -> version_rules.Answer:
    """Register a version. PUBLISHED. `evaluate`: an evaluation of it is due and begins in the same transaction.

    `stored`: bytes of artifacts, those of the proposal and of what its base can be had from.

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
        below = lineage(ledger, proposal.base)
        there = {artifact_id for artifact_id, num_bytes in stored.items() if num_bytes is not None}
        registered = find(ledger, proposal.version)
        answer = version_rules.judge(
            proposal,
            registered=registered,
            base=_base(ledger, proposal.base),
            head=head(ledger).version,
            committed=groups.committed(ledger),
            attempt=session["attempt"],
            stored=stored,
            base_can_be_had=proposal.base == 0
            or version_plan.shortest(below, have=types.NO_VERSION, stored=there) is not None,
        )
        if answer.outcome is version_rules.Outcome.REPEATED and registered is not None:
            _supply(ledger, proposal, registered)
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
    whole, changes = _artifact(proposal, enums.Encoding.WHOLE), _artifact(proposal, enums.Encoding.DELTA)
    ledger.db.change(
        "INSERT INTO versions (version, step, attempt, state, state_hash, artifact, num_bytes, changes, changes_bytes,"
        " base, created_at, manifest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        proposal.version, proposal.step, proposal.attempt, enums.VersionState.PUBLISHED, proposal.state_hash,
        *_columns_of(whole), *_columns_of(changes), proposal.base, now, codec.encode(proposal),
    )  # fmt: skip
    ledger.count("versions_published")
    ledger.note(
        {
            "kind": "version",
            "at": now,
            "version": proposal.version,
            "step": proposal.step,
            "attempt": proposal.attempt,
            "bytes": 0 if whole is None else whole.num_bytes,
            "delta_bytes": 0 if changes is None else changes.num_bytes,
            "changed_ratio": proposal.changed_ratio,
            "whole_because": proposal.fallback_reason,
        }
    )


def _base(ledger: Ledger, version: int) -> version_rules.Registered | None:
    base = find(ledger, version)
    if base is None or base.version:
        return base
    # What the processes agreed on when they registered.
    return dataclasses.replace(base, state_hash=ledger.meta("initial_state_hash") or "")


def _supply(ledger: Ledger, proposal: types.WeightVersion, registered: version_rules.Registered) -> None:
    """Make an anchor of a version whose whole image has come later: what led to it was lost."""
    whole = _artifact(proposal, enums.Encoding.WHOLE)
    if whole is None or registered.whole is not None:
        return
    before = manifest(ledger, registered.version)
    supplied = dataclasses.replace(
        before,
        kind=enums.VersionKind.ANCHOR,
        artifacts=(*before.artifacts, whole),
        fallback_reason=proposal.fallback_reason,
    )
    ledger.db.change(
        "UPDATE versions SET artifact = ?, num_bytes = ?, manifest = ? WHERE version = ?",
        *_columns_of(whole), codec.encode(supplied), registered.version,
    )  # fmt: skip


def _artifact(proposal: types.WeightVersion, encoding: enums.Encoding) -> types.Artifact | None:
    return next((artifact for artifact in proposal.artifacts if artifact.encoding is encoding), None)


def _columns_of(artifact: types.Artifact | None) -> tuple[str, int]:
    return ("", 0) if artifact is None else (artifact.artifact_id, artifact.num_bytes)


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


def manifests_with(ledger: Ledger, artifact_id: str) -> list[types.WeightVersion]:
    """Return the manifests of versions that are not RETIRED and have an artifact."""
    rows = ledger.db.all(
        "SELECT manifest FROM versions WHERE (artifact = ? OR changes = ?) AND state <> 'retired'",
        artifact_id, artifact_id,
    )  # fmt: skip
    return [codec.decode(types.WeightVersion, bytes(row["manifest"])) for row in rows if row["manifest"] is not None]


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
        whole=_stored(row["artifact"], enums.Encoding.WHOLE, row["num_bytes"]),
        changes=_stored(row["changes"], enums.Encoding.DELTA, row["changes_bytes"]),
        base=row["base"],
    )


def _stored(artifact_id: str, encoding: enums.Encoding, num_bytes: int) -> types.Artifact | None:
    if not artifact_id:
        return None
    return types.Artifact(artifact_id=artifact_id, encoding=encoding, num_bytes=num_bytes)
