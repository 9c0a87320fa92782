"""Who may speak: fencing tokens that outlive a coordinator restart, and trainer attempts, of which the newest alone
counts.
"""

import secrets
from collections.abc import Mapping

from rljob_api import enums, errors, types
from rljob_workers.coordinator.ledger.database import Ledger, Row

_MOST_ATTEMPTS = 10
_FIRST_STEP = "first_step_at"


def bind(ledger: Ledger, identity: Mapping[str, str], *, remedy: str) -> None:
    """Record what this ledger belongs to, or compare. Raises ManifestError naming what differs."""
    with ledger.db.transaction():
        recorded = {key: ledger.meta(f"identity:{key}") for key in identity}
        problems = [
            f"the state directory was made with {key} = {recorded[key]}, but this job has {key} = {value}; {remedy}"
            for key, value in identity.items()
            if recorded[key] not in (None, value)
        ]
        if problems:
            raise errors.ManifestError(*problems)
        for key, value in identity.items():
            ledger.set_meta(f"identity:{key}", value)


def agree_on_initial_state(ledger: Ledger, state_hash: str) -> None:
    """Compare a process's hash of version 0 with the first one heard. Raises WeightsError if they differ."""
    if not state_hash:
        return
    recorded = ledger.meta("initial_state_hash")
    if recorded is None:
        ledger.set_meta("initial_state_hash", state_hash)
    elif recorded != state_hash:
        raise errors.WeightsError(
            f"version 0 has state hash {state_hash} here but {recorded} elsewhere: the model files differ, or the"
            f" exporter does"
        )


def open_session(
    ledger: Ledger, *, role: enums.Role, pod: str, boot_id: str, attempt: int, rank: int, resume_step: int, now: float
) -> tuple[types.SessionToken, list[str]]:
    """Open a session, fencing those it replaces. Returns its token and the replaced ones.

    The same process asking again gets its token. Raises FencedError for a process that was replaced already and
    for a lower trainer attempt.
    """
    row = ledger.db.one(
        "SELECT token, fenced_at FROM sessions WHERE role = ? AND pod = ? AND rank = ? AND boot_id = ?",
        role, pod, rank, boot_id,
    )  # fmt: skip
    if row is not None:
        if row["fenced_at"] is not None:
            raise errors.FencedError(f"process {boot_id} of {pod} was replaced by a newer one")
        return types.SessionToken(row["token"]), []
    newest = trainer_attempt(ledger)
    if role is enums.Role.TRAINER and newest is not None and attempt < newest:
        raise errors.FencedError(f"trainer attempt {attempt} was replaced by attempt {newest}")
    replaced = _replaced(ledger, role=role, pod=pod, attempt=attempt, rank=rank)
    for token in replaced:
        ledger.db.change("UPDATE sessions SET fenced_at = ? WHERE token = ? AND fenced_at IS NULL", now, token)
    token = secrets.token_hex(16)
    ledger.db.change(
        "INSERT INTO sessions (token, role, pod, boot_id, attempt, rank, resume_step, opened_at) VALUES"
        " (?,?,?,?,?,?,?,?)",
        token, role, pod, boot_id, attempt, rank, resume_step, now,
    )  # fmt: skip
    return types.SessionToken(token), replaced


def _replaced(ledger: Ledger, *, role: enums.Role, pod: str, attempt: int, rank: int) -> list[str]:
    """A newer process in the same place replaces the older; a higher trainer attempt replaces all lower ones."""
    if role is enums.Role.TRAINER:
        rows = ledger.db.all(
            "SELECT token FROM sessions WHERE role = ? AND fenced_at IS NULL AND (attempt < ? OR rank = ?)",
            role, attempt, rank,
        )  # fmt: skip
    else:
        rows = ledger.db.all("SELECT token FROM sessions WHERE role = ? AND pod = ? AND fenced_at IS NULL", role, pod)
    return [str(row["token"]) for row in rows]


def check_session(ledger: Ledger, token: str, role: enums.Role) -> Row:
    """Return the open session. Raises FencedError if the token is unknown, of another role, or was replaced."""
    row = ledger.db.one("SELECT * FROM sessions WHERE token = ?", token)
    if row is None or row["role"] != role:
        raise errors.FencedError(f"unknown {role} session; register again")
    if row["fenced_at"] is not None:
        raise errors.FencedError(f"the session of {row['pod']} was replaced by a newer process or attempt")
    return row


def open_sessions(ledger: Ledger) -> list[Row]:
    """Return all sessions that were not replaced."""
    return ledger.db.all("SELECT * FROM sessions WHERE fenced_at IS NULL ORDER BY opened_at")


def newest_attempts(ledger: Ledger) -> tuple[types.TrainerAttempt, ...]:
    """Return the last trainer attempts, ascending. What they reached stays known when a later one goes back."""
    rows = ledger.db.all("SELECT attempt, resume_step FROM attempts ORDER BY attempt DESC LIMIT ?", _MOST_ATTEMPTS)
    return tuple(
        types.TrainerAttempt(
            attempt=row["attempt"],
            resume_step=row["resume_step"],
            first_step_at=float(ledger.meta(f"{_FIRST_STEP}:{row['attempt']}") or 0.0),
        )
        for row in reversed(rows)
    )


def note_first_step(ledger: Ledger, attempt: int, *, now: float) -> None:
    """Record when an attempt committed the first of its own steps; later ones change nothing."""
    key = f"{_FIRST_STEP}:{attempt}"
    if ledger.meta(key) is None:
        ledger.set_meta(key, repr(now))


def trainer_attempt(ledger: Ledger) -> int | None:
    """Return the newest trainer attempt, None before the first."""
    row = ledger.db.one("SELECT MAX(attempt) AS n FROM attempts")
    return None if row is None or row["n"] is None else int(row["n"])
