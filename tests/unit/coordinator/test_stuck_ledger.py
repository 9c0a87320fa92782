"""A ledger that cannot commit is named in Status, in time for who asks, and nobody ends for it."""

import pathlib
from collections.abc import AsyncIterator, Callable

import pytest

from rljob_api import errors, names, roles
from rljob_operator import progress
from rljob_testing.clock import FakeClock
from rljob_workers.coordinator import ledger as ledgers
from rljob_workers.coordinator import loop, process, publishing, resume
from rljob_workers.runtime import metrics as metrics_module


class Full(ledgers.LedgerThread):
    """A ledger on a disk that is full."""

    def __init__(self) -> None:
        """No thread: nothing is ever done."""

    async def run(self, call: Callable[[ledgers.Ledger], object]) -> object:  # type: ignore[override]  # no result
        raise errors.UnavailableError("the ledger could not commit: database or disk is full")


@pytest.fixture
async def housekeeper(
    make_config: Callable[..., roles.CoordinatorConfig], tmp_path: pathlib.Path
) -> AsyncIterator[loop.Housekeeper]:
    config, clock = make_config(), FakeClock()
    data = resume.load_data(config)
    state = resume.open_state(config, data_digest=data.digest, now=clock.now())
    metrics = metrics_module.Metrics(role=names.Role.COORDINATOR, job=config.job)
    parts = process.make_core(config, clock=clock, metrics=metrics, data=data, state=state)
    found = loop.Housekeeper(parts, publishing.Publishing(parts), state.history)
    await found.refresh()
    good, parts.ledger = parts.ledger, Full()
    yield found
    good.close()
    state.lock.close()


async def test_status_of_a_ledger_that_cannot_commit_is_the_last_known_with_the_reason(
    housekeeper: loop.Housekeeper,
) -> None:
    found = await housekeeper.current()
    assert (found.reason, found.phase) == ("LedgerStuck", names.Phase.STARTING)


async def test_background_work_does_not_hide_it(housekeeper: loop.Housekeeper) -> None:
    with pytest.raises(errors.UnavailableError, match="disk is full"):
        await housekeeper.tick()


def test_status_gives_up_on_the_ledger_before_the_operator_gives_up_on_the_coordinator() -> None:
    assert loop.STATUS_S < progress.TIMEOUT_S
