import asyncio
import random

from rljob_operator.reconcile.queue import Dispatcher, WorkQueue
from rljob_testing.clock import FakeClock


class Work:
    """Records runs; keys wait for their gate. A fake."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.errors: list[str] = []
        self.most_s: float | None = None
        self.gates: dict[str, asyncio.Event] = {}
        self.clock = FakeClock()
        queue = WorkQueue(clock=self.clock, rng=random.Random(0), concurrency=2)
        self.dispatcher = Dispatcher(queue, reconcile=self._reconcile, on_error=self._failed)
        self.queue = queue

    def _failed(self, key: str, error: Exception) -> float | None:
        self.errors.append(key)
        return self.most_s

    async def _reconcile(self, key: str) -> float | None:
        self.began.append(key)
        if key in self.gates:
            await self.gates[key].wait()
        if key == "bad":
            raise RuntimeError("no")
        return 5.0 if key == "later" else None


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_slow_key_does_not_delay_one_that_comes_after_it() -> None:
    work = Work()
    work.gates["slow"] = asyncio.Event()
    loop = asyncio.create_task(work.dispatcher.run())
    work.dispatcher.enqueue("slow")
    await _turns()
    work.dispatcher.enqueue("quick")
    await _turns()
    assert work.began == ["slow", "quick"]
    work.gates["slow"].set()
    loop.cancel()
    await work.dispatcher.finish(within_s=1.0)


async def test_failing_key_is_reported_comes_again_and_does_not_stop_the_others() -> None:
    work = Work()
    loop = asyncio.create_task(work.dispatcher.run())
    for key in ("bad", "good", "later"):
        work.dispatcher.enqueue(key)
    await _turns()
    loop.cancel()
    assert (sorted(work.began), work.errors) == (["bad", "good", "later"], ["bad"])
    assert len(work.queue) == 2, "the failed one and the one that asked for it wait for their time"


async def test_what_runs_at_the_end_may_finish_and_nothing_new_begins() -> None:
    work = Work()
    work.gates["slow"] = asyncio.Event()
    loop = asyncio.create_task(work.dispatcher.run())
    work.dispatcher.enqueue("slow")
    await _turns()
    loop.cancel()
    work.dispatcher.enqueue("new")
    work.gates["slow"].set()
    await work.dispatcher.finish(within_s=1.0)
    assert work.began == ["slow"]
    assert len(work.queue) == 1


async def test_run_that_does_not_end_in_time_is_cancelled() -> None:
    work = Work()
    work.gates["slow"] = asyncio.Event()
    loop = asyncio.create_task(work.dispatcher.run())
    work.dispatcher.enqueue("slow")
    await _turns()
    loop.cancel()
    await work.dispatcher.finish(within_s=0.01)
    assert not work.errors


async def test_wait_after_a_failure_may_be_bounded_by_its_kind() -> None:
    work = Work()
    work.most_s = 2.0
    loop = asyncio.create_task(work.dispatcher.run())
    for _ in range(10):
        work.dispatcher.enqueue("bad")
        await _turns()
        assert (work.queue.next_due_s() or 0.0) <= 2.0
        work.clock.tick(2.0)
    loop.cancel()


async def test_a_key_that_is_dropped_ends_where_it_is_and_may_come_again() -> None:
    work = Work()
    work.gates["slow"] = asyncio.Event()
    loop = asyncio.create_task(work.dispatcher.run())
    for key in ("slow", "later"):
        work.dispatcher.enqueue(key)
    await _turns()
    work.dispatcher.drop({"slow", "later"})
    await _turns()
    assert (len(work.queue), work.errors) == (0, [])
    del work.gates["slow"]
    work.dispatcher.enqueue("slow")
    await _turns()
    assert sorted(work.began) == ["later", "slow", "slow"]
    loop.cancel()
    await work.dispatcher.finish(within_s=1.0)


async def test_keys_that_are_dropped_before_their_first_step_leave_their_places_to_others() -> None:
    work = Work()
    loop = asyncio.create_task(work.dispatcher.run())
    for key in ("a", "b"):
        work.dispatcher.enqueue(key)
    # The dispatcher has started both, and neither had a turn: so an operator loses its lease after it was held up.
    await asyncio.sleep(0)
    work.dispatcher.drop({"a", "b"})
    await _turns()
    assert work.began == []
    for key in ("a", "b", "c"):
        work.dispatcher.enqueue(key)
    await _turns()
    assert sorted(work.began) == ["a", "b", "c"]
    loop.cancel()
    await work.dispatcher.finish(within_s=1.0)
