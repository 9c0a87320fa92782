"""The ledger: the only durable state besides checkpoints. SQLite in WAL mode, one connection, one thread, one writer.

Group states: QUEUED > LEASED > SUBMITTED > PACKED > TRAINED, or DROPPED(reason). The transitions are the methods of
`Ledger` (by subject in `transitions/`); each is one transaction whose UPDATE names the state it expects, and nobody
else writes. Durability: synchronous=FULL, so a commit is on the disk before its answer leaves; an acknowledged
trajectory survives kill -9 and the loss of power. NORMAL would survive the first only. The price is one fsync a
commit, and `LedgerThread` commits whatever waits for it together. The file lies on a local or block volume: WAL does
not work on a network file system.
"""

import asyncio
import concurrent.futures
import contextlib
import pathlib
import queue
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

from rljob_api import errors
from rljob_workers.coordinator import limits, retention, tasks
from rljob_workers.coordinator.transitions import base, facts

T = TypeVar("T")
SCHEMA_VERSION = 3
_SCHEMA = pathlib.Path(__file__).with_name("ledger_schema.sql")
_MAX_TOGETHER = 64
_CACHE_KIB = 64 << 10
# Pages of the log before they are copied to the file: fewer and larger copies than SQLite's own 1000.
_PAGES_OF_LOG = 4000
# From a schema to the next one: a run outlives an update of the coordinator. What is made anew has the text of the
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
}  # fmt: skip
_AFTER = {
    2: "INSERT INTO syncs SELECT pod, MAX(finished_at) FROM syncs_before GROUP BY pod; DROP TABLE syncs_before;",
}


def _statement(schema: str, name: str) -> str:
    """Return the statement of the schema that creates `name`."""
    (found,) = re.findall(rf"^CREATE (?:TABLE|INDEX) {name} .*?;", schema, flags=re.MULTILINE | re.DOTALL)
    return str(found)


class SqliteDatabase:
    """One connection. Not for use by several threads at once."""

    def __init__(self, path: pathlib.Path, *, read_only: bool = False) -> None:
        """Open or create the file. Raises LedgerError if it is no ledger or was made by another schema."""
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
            made = "\n".join(_statement(schema, name) for name in new)
            self._connection.executescript(
                f"BEGIN;\n{first}\n{made}\n{_AFTER.get(before, '')}\nPRAGMA user_version = {before + 1};\nCOMMIT;"
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

    def all(self, sql: str, *params: object) -> list[base.Row]:
        """Return all rows."""
        return cast(list[base.Row], self._connection.execute(sql, params).fetchall())

    def one(self, sql: str, *params: object) -> base.Row | None:
        """Return the first row or None."""
        return cast(base.Row | None, self._connection.execute(sql, params).fetchone())

    def change(self, sql: str, *params: object) -> int:
        """Run a statement and return how many rows it changed."""
        return self._connection.execute(sql, params).rowcount

    def many(self, sql: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Run a statement once per row."""
        self._connection.executemany(sql, rows)

    @property
    def num_changes(self) -> int:
        """Return how many rows this connection has changed; a commit without change notifies nobody."""
        return self._connection.total_changes

    def close(self) -> None:
        """Close the connection; the last one folds the log into the file."""
        self._connection.close()


class Ledger(facts.Views):
    """All transitions on one database. Synchronous; `LedgerThread` is its asyncio face."""

    def __init__(self, path: pathlib.Path, bounds: limits.Limits, *, now: float) -> None:
        """Open or create the ledger at `path`. Raises LedgerError for another schema."""
        self._sqlite = SqliteDatabase(path)
        super().__init__(self._sqlite, bounds)
        with self._sqlite.transaction():
            self.ensure_initial_version(now=now)
            if self.meta("created_at") is None:
                self.set_meta("created_at", repr(now))
                self.set_meta("order_version", str(tasks.VERSION))

    def order_version(self) -> int:
        """Return the version of the order in which this run draws its prompts: it keeps the one that it began with."""
        return int(self.meta("order_version") or 1)

    def prune(self, *, history_seq: int, now: float, most: int = retention.SLICE_ROWS) -> bool:
        """Let a slice of what nothing needs any more go; return whether there is more."""
        with self.transaction():
            return retention.prune(self.database, history_seq=history_seq, now=now, most=most)

    @property
    def num_changes(self) -> int:
        """Return how many rows were changed through this object."""
        return self._sqlite.num_changes

    def close(self) -> None:
        """Close the file."""
        self._sqlite.close()


class LedgerThread:
    """Runs calls on the ledger's thread, in order. Calls that wait together share one commit; each stays atomic."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        on_change: Callable[[Ledger], None],
        on_commit: Callable[[float], None],
        path: pathlib.Path,
    ) -> None:
        """`on_change` is called on the thread, after the answers of a commit that changed something; `on_commit` with
        its seconds.
        """
        self._ledger, self._on_change, self._on_commit, self._path = ledger, on_change, on_commit, path
        self._refused = False
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    async def run(self, call: Callable[[Ledger], T]) -> T:
        """Return what `call` returns once it is durable. Errors of the call reach the caller and undo that call
        alone.
        """
        pending: _Call[T] = _Call(call)
        self._calls.put(pending)
        return await asyncio.wrap_future(pending.future)

    async def read(self, call: Callable[[base.Database], T]) -> T:
        """Return what `call` reads of what is committed, on a thread and connection of its own: for many bytes, which
        would keep everybody waiting on the ledger's. Raises UnavailableError if the file cannot be read now.
        """
        return await asyncio.to_thread(self._read, call)

    def _read(self, call: Callable[[base.Database], T]) -> T:
        try:
            with contextlib.closing(SqliteDatabase(self._path, read_only=True)) as database:
                return call(database)
        except sqlite3.Error as error:
            raise errors.UnavailableError(f"the ledger could not be read: {error}") from error

    @property
    def is_stuck(self) -> bool:
        """Return whether the last change could not be committed. Reads may well be answered meanwhile."""
        return self._refused

    @property
    def num_bytes(self) -> int:
        """Return the size of the file and its log."""
        files = (self._path, self._path.with_name(self._path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        """Finish what was asked, end the thread and close the file."""
        self._calls.put(None)
        self._thread.join()
        self._ledger.close()

    def _work(self) -> None:
        while (first := self._calls.get()) is not None:
            batch, ends = [first], False
            while len(batch) < _MAX_TOGETHER and not self._calls.empty():
                following = self._calls.get()
                if following is None:
                    ends = True
                    break
                batch.append(following)
            self._commit(batch)
            if ends:
                return

    def _commit(self, batch: "list[_Call[Any]]") -> None:
        before, started = self._ledger.num_changes, time.monotonic()
        try:
            with self._ledger.transaction():
                for call in batch:
                    call.run(self._ledger)
        except sqlite3.Error as error:
            # Nothing of the batch was committed: none of its callers may be told otherwise. A disk that is full or slow
            # is no caller's fault and may be mended: they ask again.
            self._refused = True
            for call in batch:
                call.fail(errors.UnavailableError(f"the ledger could not commit: {error}"))
            return
        self._on_commit(time.monotonic() - started)
        if self._ledger.num_changes != before:
            self._refused = False
        for call in batch:
            call.answer()
        if self._ledger.num_changes != before:
            self._on_change(self._ledger)


class _Call(Generic[T]):
    """One call on its way: run inside a savepoint, answered only after the commit."""

    def __init__(self, call: Callable[[Ledger], T]) -> None:
        self._call = call
        self._result: list[T] = []
        self._error: BaseException | None = None
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run(self, ledger: Ledger) -> None:
        """Run it; an error undoes this call and is kept for its caller."""
        try:
            with ledger.transaction():
                self._result = [self._call(ledger)]
        except sqlite3.OperationalError:
            raise
        except Exception as error:  # noqa: BLE001  # boundary: the caller's await re-raises it
            self._error = error

    def answer(self) -> None:
        """Hand the result or error to the caller, unless it gave up waiting."""
        if not self.future.set_running_or_notify_cancel():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result[0])

    def fail(self, error: errors.RLJobError) -> None:
        """Tell the caller that nothing was committed."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
