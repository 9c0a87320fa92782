"""Calls that wait together share a commit, stay atomic each, and are answered only once they are durable."""

import asyncio
import functools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rljob_api import errors
from rljob_workers.coordinator.ledger import database, groups, thread

Make = Callable[..., Any]


class Watched:
    """A ledger thread and what it reported."""

    def __init__(self, bench: Any) -> None:
        self.changes, self.commits = 0, 0
        self.bench = bench
        self.thread = thread.LedgerThread(
            bench.ledger, on_change=self._changed, on_commit=self._committed, path=bench.path
        )

    def _changed(self, ledger: database.Ledger) -> None:
        self.changes += 1

    def _committed(self, seconds: float) -> None:
        assert seconds >= 0
        self.commits += 1


@pytest.fixture
def watched(make_bench: Make) -> Iterator[Watched]:
    found = Watched(make_bench())
    yield found
    found.thread.close()


def set_value(key: str, ledger: database.Ledger) -> None:
    ledger.set_meta(key, "x")


class Hold:
    """A call that keeps the ledger's thread busy until released, so that what follows waits together."""

    def __init__(self, watched: Watched) -> None:
        self._gate, self._busy, self._watched = threading.Event(), threading.Event(), watched

    async def __aenter__(self) -> None:
        self._call = asyncio.ensure_future(self._watched.thread.run(lambda ledger: self._wait()))
        await asyncio.to_thread(self._busy.wait, 60)

    async def __aexit__(self, *error: object) -> None:
        await asyncio.sleep(0)  # the calls made meanwhile are queued
        self._gate.set()
        await self._call

    def _wait(self) -> None:
        self._busy.set()
        self._gate.wait(60)


async def test_a_call_returns_what_it_computed(watched: Watched) -> None:
    await watched.thread.run(lambda ledger: ledger.set_meta("key", "value"))
    assert await watched.thread.run(lambda ledger: ledger.meta("key")) == "value"


async def test_reading_notifies_nobody(watched: Watched) -> None:
    await watched.thread.run(lambda ledger: groups.counts(ledger))
    assert (watched.changes, watched.commits) == (0, 1)


async def test_calls_that_wait_together_share_one_commit(watched: Watched) -> None:
    async with Hold(watched):
        calls = [
            asyncio.ensure_future(watched.thread.run(functools.partial(set_value, f"key{number}")))
            for number in range(20)
        ]
    await asyncio.gather(*calls)
    assert watched.commits == 2


async def test_a_failing_call_undoes_itself_and_nothing_else(watched: Watched) -> None:
    def half(ledger: database.Ledger) -> None:
        ledger.set_meta("half", "done")
        raise errors.LedgerError("no")

    async with Hold(watched):
        good = asyncio.ensure_future(watched.thread.run(lambda ledger: ledger.set_meta("good", "done")))
        bad = asyncio.ensure_future(watched.thread.run(half))
        later = asyncio.ensure_future(watched.thread.run(lambda ledger: ledger.set_meta("later", "done")))
    await asyncio.gather(good, later)
    with pytest.raises(errors.LedgerError, match="no"):
        await bad
    read = await watched.thread.run(lambda ledger: [ledger.meta(key) for key in ("good", "half", "later")])
    assert read == ["done", None, "done"]


async def test_nobody_is_told_of_what_could_not_be_committed_and_all_may_ask_again(watched: Watched) -> None:
    def disk_full(ledger: database.Ledger) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with Hold(watched):
        good = asyncio.ensure_future(watched.thread.run(lambda ledger: ledger.set_meta("good", "done")))
        bad = asyncio.ensure_future(watched.thread.run(disk_full))
    for call in (good, bad):
        with pytest.raises(errors.UnavailableError, match="the ledger could not commit: database or disk is full"):
            await call
    assert await watched.thread.run(lambda ledger: ledger.meta("good")) is None
    assert watched.thread.is_stuck, "a read that is answered says nothing of the disk"
    await watched.thread.run(lambda ledger: ledger.set_meta("good", "again"))
    assert not watched.thread.is_stuck


async def test_an_answered_call_is_on_the_disk(watched: Watched) -> None:
    await watched.thread.run(lambda ledger: ledger.set_meta("key", "value"))
    # A second connection sees only what was committed; synchronous 2 is FULL: the commit was synced.
    other = database.Database(watched.bench.path, read_only=True)
    row = other.one("SELECT value FROM meta WHERE key = 'key'")
    assert row is not None
    assert row["value"] == "value"
    other.close()
    mode = await watched.thread.run(
        lambda ledger: (ledger.require("PRAGMA journal_mode", problem="")["journal_mode"],
                        ledger.require("PRAGMA synchronous", problem="")["synchronous"])
    )  # fmt: skip
    assert mode == ("wal", 2)


def test_closing_finishes_what_was_asked(make_bench: Make) -> None:
    bench = make_bench()
    running = thread.LedgerThread(
        bench.ledger, on_change=lambda ledger: None, on_commit=lambda seconds: None, path=bench.path
    )

    async def ask_and_close() -> None:
        asked = asyncio.ensure_future(running.run(lambda ledger: ledger.set_meta("key", "value")))
        await asyncio.sleep(0)
        running.close()
        await asked

    asyncio.run(ask_and_close())
    again = database.Ledger(bench.path, bench.config, now=0.0)
    assert again.meta("key") == "value"
    again.close()
