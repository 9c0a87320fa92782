"""The label of a failed weight update, from the error that ended it."""

import pytest

from rljob_api import enums, errors
from rljob_workers.rollout.sync import receiver


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.DigestError("tensor w"), enums.SyncFailure.DIGEST),
        (errors.WeightsError("another layout"), enums.SyncFailure.FETCH),
        (errors.UnavailableError("no source answers"), enums.SyncFailure.FETCH),
        (errors.EngineError("shape"), enums.SyncFailure.APPLY),
        (errors.EngineTimeoutError("10 s"), enums.SyncFailure.TIMEOUT),
    ],
)
def test_each_error_has_its_reason(error: errors.RLJobError, reason: enums.SyncFailure) -> None:
    assert receiver.sync_failure_of(error) is reason


def test_an_update_that_was_given_up_has_the_reason_of_the_engine() -> None:
    given_up = errors.WeightsError("version 3 goes on")
    given_up.__cause__ = errors.EngineTimeoutError("10 s")
    assert receiver.sync_failure_of(given_up) is enums.SyncFailure.TIMEOUT
