"""A ledger that cannot commit is named in Status, in time for who asks, and no one ends for it."""

import asyncio
import pathlib
from collections.abc import AsyncIterator, Callable

import pytest

from rljob_api import enums, errors, process_config
from rljob_operator import coordinators
from rljob_testing.clock import FakeClock
from rljob_workers.coordinator import app, housekeeping, resume
from rljob_workers.coordinator.ledger import thread
from rljob_workers.coordinator.weights import registry
from rljob_workers.runtime import metrics as metrics_module


class Full(thread.LedgerThread):
    """A ledger on a disk that is full."""

    def __init__(self) -> None:
        """No thread: nothing is ever done."""
        self.num_asked = 0

    async def run(self, *_: object, **__: object) -> object:  # type: ignore[override]  # no result
        self.num_asked += 1
        raise errors.UnavailableError("the ledger could not commit: database or disk is full")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def full() -> Full:
    return Full()


@pytest.fixture
async def housekeeper(
    make_config: Callable[..., process_config.CoordinatorConfig], clock: FakeClock, full: Full, tmp_path: pathlib.Path
) -> AsyncIterator[housekeeping.Housekeeper]:
    config = make_config()
    data = resume.load_data(config)
    state = resume.open_state(config, data_digest=data.digest, now=clock.now())
    metrics = metrics_module.Metrics(role=enums.Role.COORDINATOR, job=config.job)
    parts = app.make_context(config, clock=clock, metrics=metrics, data=data, state=state)
    found = housekeeping.Housekeeper(parts, registry.Publishing(parts), state.history)
    await found.refresh()
    good, parts.ledger = parts.ledger, full
    yield found
    good.close()
    state.lock.close()


async def test_status_of_a_ledger_that_cannot_commit_is_the_last_known_with_the_reason(
    housekeeper: housekeeping.Housekeeper,
) -> None:
    found = await housekeeper.current()
    assert (found.reason, found.phase) == ("LedgerStuck", enums.Phase.STARTING)


async def test_background_work_goes_on_and_says_so_once(
    housekeeper: housekeeping.Housekeeper, full: Full, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("ERROR"):
        working = asyncio.create_task(housekeeper.run())
        while full.num_asked < 3:
            await clock.advance(1.0)
        assert not working.done()
        working.cancel()
    assert caplog.messages == ["background work waits: the ledger could not commit: database or disk is full"]


def test_status_gives_up_on_the_ledger_before_the_operator_gives_up_on_the_coordinator() -> None:
    assert housekeeping.STATUS_S < coordinators.FIRST_WITHIN_S
