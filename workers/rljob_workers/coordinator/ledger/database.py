"""The ledger's file: SQLite in WAL mode, one connection, one writer, and what every transition needs of it.

Durability: synchronous=FULL, so a commit is on the disk before its answer leaves; an acknowledged trajectory survives
kill -9 and the loss of power. NORMAL would survive the first only. The price is one fsync a commit, and `LedgerThread`
commits whatever waits for it together. The file lies on a local or block volume: WAL does not work on a network file
system.
"""

import contextlib
import json
import pathlib
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, cast

from rljob_api import enums, errors, process_config
from rljob_api.manifest.job import JobSpec
from rljob_workers.coordinator.policy import prompts

SCHEMA_VERSION = 5
_SCHEMA = pathlib.Path(__file__).with_name("schema.sql")
_CACHE_KIB = 64 << 10
# Pages of the log before they are copied to the file: fewer and larger copies than SQLite's own 1000.
_PAGES_OF_LOG = 4000
# From a schema to the next one: a run outlives an update of the coordinator. What is recreated has the text of the
# schema's own file, so that it is written once.
_MIGRATIONS = {
    1: (("scores",), ""),
    2: (
        (
            "groups_open", "groups_ready", "groups_step", "groups_drop", "groups_eval", "pruned", "pruned_step",
            "pruned_groups", "leases_open", "leases_due", "sessions_fenced", "versions_step", "versions_stored",
            "versions_live", "syncs", "checkpoints_at",
        ),
        "DROP INDEX groups_queue; DROP INDEX groups_step; DROP INDEX groups_drop; DROP INDEX leases_open;"
        " ALTER TABLE syncs RENAME TO syncs_before;"
        " INSERT OR IGNORE INTO meta SELECT 'first_step_at', trained_at FROM steps WHERE state = 'trained'"
        " ORDER BY step LIMIT 1;",
    ),
    # Versions of before have their whole image each; its size is not known and is not compared with anything.
    3: (
        (),
        "ALTER TABLE versions ADD COLUMN num_bytes INTEGER NOT NULL DEFAULT 0;"
        " ALTER TABLE versions ADD COLUMN changes TEXT NOT NULL DEFAULT '';"
        " ALTER TABLE versions ADD COLUMN changes_bytes INTEGER NOT NULL DEFAULT 0;"
        " ALTER TABLE versions ADD COLUMN base INTEGER NOT NULL DEFAULT -1;",
    ),
    4: (("left_out",), ""),
}  # fmt: skip
_AFTER = {
    2: "INSERT INTO syncs SELECT pod, MAX(finished_at) FROM syncs_before GROUP BY pod; DROP TABLE syncs_before;",
}


class Row(Protocol):
    """One result row; columns by name. Any: SQLite's columns have no static types."""

    def __getitem__(self, key: str) -> Any: ...


def _statement(schema: str, name: str) -> str:
    (statement,) = re.findall(rf"^CREATE (?:TABLE|INDEX) {name} .*?;", schema, flags=re.MULTILINE | re.DOTALL)
    return str(statement)


class Database:
    """One connection to the file. Statements run inside `transaction`. Not for use by several threads at once."""

    def __init__(self, path: pathlib.Path, *, read_only: bool = False) -> None:
        """Open or create the file. Raises LedgerError if it is not a ledger or was made by another schema."""
        mode = "ro" if read_only else "rwc"
        self._connection = sqlite3.connect(
            f"file:{path}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
        )
        self._connection.row_factory = sqlite3.Row
        self._depth = 0
        if not read_only:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {_PAGES_OF_LOG}")
            self._create()

    def _create(self) -> None:
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        schema = _SCHEMA.read_text(encoding="utf-8")
        if version == 0:
            self._connection.executescript(f"BEGIN;\n{schema}\nPRAGMA user_version = {SCHEMA_VERSION};\nCOMMIT;")
        elif version > SCHEMA_VERSION:
            raise errors.LedgerError(f"the ledger has schema {version}, this program reads {SCHEMA_VERSION}")
        for before in range(version, SCHEMA_VERSION) if version else ():
            new, first = _MIGRATIONS[before]
            script = "\n".join(_statement(schema, name) for name in new)
            self._connection.executescript(
                f"BEGIN;\n{first}\n{script}\n{_AFTER.get(before, '')}\nPRAGMA user_version = {before + 1};\nCOMMIT;"
            )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end, undo on any exception; nested ones are savepoints."""
        name = f"level{self._depth}"
        self._connection.execute(f"SAVEPOINT {name}" if self._depth else "BEGIN")
        self._depth += 1
        try:
            yield
        except BaseException:
            self._depth -= 1
            self._connection.execute(f"ROLLBACK TO {name}" if self._depth else "ROLLBACK")
            if self._depth:
                self._connection.execute(f"RELEASE {name}")
            raise
        self._depth -= 1
        self._connection.execute(f"RELEASE {name}" if self._depth else "COMMIT")

    def all(self, sql: str, *params: object) -> list[Row]:
        return cast(list[Row], self._connection.execute(sql, params).fetchall())

    def one(self, sql: str, *params: object) -> Row | None:
        return cast(Row | None, self._connection.execute(sql, params).fetchone())

    def change(self, sql: str, *params: object) -> int:
        """Run a statement and return how many rows it changed."""
        return self._connection.execute(sql, params).rowcount

    def many(self, sql: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Run a statement once per row."""
        self._connection.executemany(sql, rows)

    @property
    def num_changes(self) -> int:
        """Return how many rows this connection has changed; a commit without change notifies no one."""
        return self._connection.total_changes

    def close(self) -> None:
        """Close the connection; the last one folds the log into the file."""
        self._connection.close()


class Ledger:
    """The run's state: its database, the config in force, and what is remembered only while this process runs.

    What happens to groups, leases, steps and versions are functions of this folder that take a Ledger first, each one
    transaction (`leases.expire(ledger, now=now)`); the methods here are what all of them need. Synchronous;
    `LedgerThread` is its asyncio face.
    """

    def __init__(self, path: pathlib.Path, config: process_config.CoordinatorConfig, *, now: float) -> None:
        """Open or create the ledger at `path`. Raises LedgerError for another schema."""
        self.db, self.config = Database(path), config
        # Prompts that were found unusable: the records may be others at the next start.
        self.unusable: set[tuple[str, str, int]] = set()
        # How many steps, the first ones, are supervised: a number of epochs is one of steps once the data are read.
        self.sft_steps = 0
        self.why_ended = ""
        # Summaries of trained steps by step and time of training, read once each.
        self.step_records: dict[tuple[int, float], Any] = {}
        with self.db.transaction():
            self.db.change(
                "INSERT OR IGNORE INTO versions (version, step, attempt, state, state_hash, artifact, created_at)"
                " VALUES (0, 0, 0, ?, '', '', ?)",
                enums.VersionState.PUBLISHED, now,
            )  # fmt: skip
            if self.meta("created_at") is None:
                self.set_meta("created_at", repr(now))
                self.set_meta("order_version", str(prompts.VERSION))

    @property
    def spec(self) -> JobSpec:
        """Return the manifest in force."""
        return self.config.spec

    def order_version(self) -> int:
        """Return the version of the order in which this run draws its prompts: it keeps the one that it began with."""
        return int(self.meta("order_version") or 1)

    @property
    def num_changes(self) -> int:
        """Return how many rows were changed through this object."""
        return self.db.num_changes

    def close(self) -> None:
        self.db.close()

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Join several transitions into one."""
        return self.db.transaction()

    def meta(self, key: str) -> str | None:
        row = self.db.one("SELECT value FROM meta WHERE key = ?", key)
        return None if row is None else str(row["value"])

    def set_meta(self, key: str, value: str) -> None:
        with self.db.transaction():
            self.db.change("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", key, value)

    def counters(self) -> dict[str, int]:
        return {row["name"]: int(row["value"]) for row in self.db.all("SELECT name, value FROM counters")}

    def count(self, name: str, by: int = 1) -> None:
        if by:
            self.db.change(
                "INSERT INTO counters (name, value) VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                name,
                by,
            )

    def count_all(self, grown: Mapping[str, int]) -> None:
        self.db.many(
            "INSERT INTO counters (name, value) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
            ((name, by) for name, by in grown.items() if by),
        )

    def note(self, line: Mapping[str, object]) -> None:
        """Add a line to the run's history, in the transaction of what it describes."""
        text = json.dumps(dict(line), ensure_ascii=False, separators=(",", ":"))
        self.db.change("INSERT INTO history (line) VALUES (?)", text)

    def number(self, sql: str, *params: object, default: int = 0) -> int:
        """Return the first column `n` of the first row as a number, or the default."""
        row = self.db.one(sql, *params)
        return default if row is None or row["n"] is None else int(row["n"])

    def require(self, sql: str, *params: object, problem: str) -> Row:
        """Return the first row. Raises LedgerError with `problem` if there is none."""
        row = self.db.one(sql, *params)
        if row is None:
            raise errors.LedgerError(problem)
        return row
