"""What all transitions stand on: a database behind a Protocol, the limits, meta values, counters, history lines."""

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from rljob_api import errors
from rljob_workers.coordinator import limits


class Row(Protocol):
    """One result row; columns by name. Any: SQLite's columns have no static types."""

    def __getitem__(self, key: str) -> Any:
        """Return the column's value."""


class Database(Protocol):
    """The few operations that transitions need. Statements run inside `transaction`."""

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Commit at the end, undo on an exception; nested ones are savepoints."""

    def all(self, sql: str, *params: object) -> list[Row]:
        """Return all rows."""

    def one(self, sql: str, *params: object) -> Row | None:
        """Return the first row or None."""

    def change(self, sql: str, *params: object) -> int:
        """Run a statement and return how many rows it changed."""

    def many(self, sql: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Run a statement once per row."""


class Tables:
    """Base of the transition groups."""

    def __init__(self, database: Database, bounds: limits.Limits) -> None:
        """Keep the database and the limits."""
        self._db, self._limits = database, bounds

    @property
    def bounds(self) -> limits.Limits:
        """Return the limits in force."""
        return self._limits

    @property
    def database(self) -> Database:
        """Return the database, for the functions on it that are no methods here."""
        return self._db

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Join several transitions into one."""
        return self._db.transaction()

    def meta(self, key: str) -> str | None:
        """Return a meta value."""
        row = self._db.one("SELECT value FROM meta WHERE key = ?", key)
        return None if row is None else str(row["value"])

    def set_meta(self, key: str, value: str) -> None:
        """Set a meta value."""
        with self._db.transaction():
            self._db.change("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", key, value)

    def counters(self) -> dict[str, int]:
        """Return all cumulative counters of the run."""
        return {row["name"]: int(row["value"]) for row in self._db.all("SELECT name, value FROM counters")}

    def count(self, name: str, by: int = 1) -> None:
        """Raise a cumulative counter."""
        if by:
            self._db.change(
                "INSERT INTO counters (name, value) VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                name,
                by,
            )

    def count_all(self, grown: Mapping[str, int]) -> None:
        """Raise several cumulative counters."""
        self._db.many(
            "INSERT INTO counters (name, value) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
            ((name, by) for name, by in grown.items() if by),
        )

    def note(self, line: Mapping[str, object]) -> None:
        """Add a line to the run's history, in the transaction of what it describes."""
        text = json.dumps(dict(line), ensure_ascii=False, separators=(",", ":"))
        self._db.change("INSERT INTO history (line) VALUES (?)", text)

    def number(self, sql: str, *params: object, default: int = 0) -> int:
        """Return the first column `n` of the first row as a number, or the default."""
        row = self._db.one(sql, *params)
        return default if row is None or row["n"] is None else int(row["n"])

    def require(self, sql: str, *params: object, problem: str) -> Row:
        """Return the first row. Raises LedgerError with `problem` if there is none."""
        row = self._db.one(sql, *params)
        if row is None:
            raise errors.LedgerError(problem)
        return row
