"""The ledger's thread: calls run in order, and those that wait together share one commit."""

import asyncio
import concurrent.futures
import contextlib
import pathlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from rljob_api import errors
from rljob_workers.coordinator.ledger.database import Database, Ledger

T = TypeVar("T")
P = ParamSpec("P")
_MAX_TOGETHER = 64


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

    async def run(self, call: Callable[Concatenate[Ledger, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `call(ledger, ...)` returns once it is durable. Errors of the call reach the caller and undo that
        call alone.
        """
        pending: _Call[T] = _Call(lambda ledger: call(ledger, *args, **kwargs))
        self._calls.put(pending)
        return await asyncio.wrap_future(pending.future)

    async def read(self, call: Callable[[Database], T]) -> T:
        """Return what `call` reads of what is committed, on a thread and connection of its own: for many bytes, which
        would keep everyone waiting on the ledger's. Raises UnavailableError if the file cannot be read now.
        """
        return await asyncio.to_thread(self._read, call)

    def _read(self, call: Callable[[Database], T]) -> T:
        try:
            with contextlib.closing(Database(self._path, read_only=True)) as database:
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
            # Nothing of the batch was committed: none of its callers may be answered otherwise. A disk that is full or
            # slow is not a caller's fault and may be fixed: they ask again.
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
