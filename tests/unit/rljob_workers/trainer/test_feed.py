import dataclasses
import threading
from collections.abc import Callable, Mapping

import pytest

from rljob_api import enums, errors, types
from rljob_workers.rpc import train
from rljob_workers.trainer import batch_source


class FakeTransport:
    def __init__(self, *kinds: enums.BatchKind) -> None:
        self.kinds = list(kinds)
        self.asked: list[tuple[int, int, int, bool]] = []

    def register(
        self, *, pod: str, boot_id: str, attempt: int, rank: int, resume_step: int, initial_state_hash: str
    ) -> types.Session:
        raise AssertionError("the feed does not register")

    def fetch(self, *, step: int, rank: int, world_size: int, wait_s: float, stop: bool) -> train.Batch:
        self.asked.append((step, rank, world_size, stop))
        if not self.kinds:
            raise errors.UnavailableError("coordinator is gone")
        return types.BatchHeader(kind=self.kinds.pop(0), step=step), []

    def commit_step(
        self, *, step: int, stats: Mapping[str, float], started_at: float, finished_at: float, storage_problem: str = ""
    ) -> None:
        raise errors.FencedError("attempt 1 was replaced by attempt 2")

    def commit_checkpoint(self, *, step: int, uri: str, seconds: float, final: bool) -> None:
        raise errors.UnavailableError("coordinator is gone")


def feed_of(
    transport: FakeTransport, stop: threading.Event | None = None, supply: Callable[[int], None] = lambda version: None
) -> batch_source.BatchSource:
    return batch_source.BatchSource(
        transport=transport,
        rank=1,
        world_size=2,
        stop=stop or threading.Event(),
        reconnect_timeout_s=0.0,
        supply=supply,
    )


def test_asks_again_until_the_batch_is_ready() -> None:
    transport = FakeTransport(enums.BatchKind.NOT_READY, enums.BatchKind.NOT_READY, enums.BatchKind.BATCH)
    header, _ = feed_of(transport).fetch(4)
    assert header.kind is enums.BatchKind.BATCH
    assert transport.asked == [(4, 1, 2, False)] * 3


@pytest.mark.covers("weights 7")
def test_a_version_that_the_coordinator_has_lost_is_sent_again_while_the_batch_is_waited_for() -> None:
    class Losing(FakeTransport):
        def fetch(self, *, step: int, rank: int, world_size: int, wait_s: float, stop: bool) -> train.Batch:
            header, parts = super().fetch(step=step, rank=rank, world_size=world_size, wait_s=wait_s, stop=stop)
            is_first = len(self.asked) == 1
            return dataclasses.replace(header, lost_version=7 if is_first else types.NO_VERSION), parts

    supplied: list[int] = []
    transport = Losing(enums.BatchKind.NOT_READY, enums.BatchKind.NOT_READY, enums.BatchKind.BATCH)
    feed_of(transport, supply=supplied.append).fetch(4)
    assert supplied == [7]


def test_a_stop_is_told_with_the_next_question() -> None:
    stop = threading.Event()

    class Stopping(FakeTransport):
        def fetch(self, *, step: int, rank: int, world_size: int, wait_s: float, stop: bool) -> train.Batch:
            answer = super().fetch(step=step, rank=rank, world_size=world_size, wait_s=wait_s, stop=stop)
            asked_to_stop.set()
            return answer

    asked_to_stop = stop
    transport = Stopping(enums.BatchKind.NOT_READY, enums.BatchKind.STOP)
    header, _ = feed_of(transport, stop).fetch(4)
    assert header.kind is enums.BatchKind.STOP
    assert [asked[3] for asked in transport.asked] == [False, True]


def test_an_unreachable_coordinator_is_given_up_after_the_reconnect_timeout() -> None:
    with pytest.raises(errors.UnavailableError, match="coordinator is gone"):
        feed_of(FakeTransport()).fetch(1)
    with pytest.raises(errors.UnavailableError):
        feed_of(FakeTransport()).commit_checkpoint(step=1, uri="", seconds=0.0, final=False)


def test_a_fenced_trainer_does_not_ask_again() -> None:
    with pytest.raises(errors.FencedError, match="replaced"):
        feed_of(FakeTransport()).commit_step(step=1, stats={}, started_at=0.0, finished_at=1.0)
