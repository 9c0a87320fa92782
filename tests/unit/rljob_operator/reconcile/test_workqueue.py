import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.reconcile.queue import WorkQueue
from rljob_testing.clock import FakeClock


def _queue(clock: FakeClock, concurrency: int = 8) -> WorkQueue:
    return WorkQueue(clock=clock, rng=random.Random(0), concurrency=concurrency)


def test_repeated_key_is_one_entry() -> None:
    queue = _queue(FakeClock())
    for _ in range(3):
        queue.enqueue("ns/a")
    assert (len(queue), queue.take(), queue.take()) == (1, "ns/a", None)


def test_key_enqueued_while_it_runs_comes_again_only_after_its_end() -> None:
    queue = _queue(FakeClock())
    queue.enqueue("a")
    assert queue.take() == "a"
    queue.enqueue("a")
    assert queue.take() is None
    queue.done("a")
    assert queue.take() == "a"


def test_no_more_keys_run_at_once_than_allowed() -> None:
    queue = _queue(FakeClock(), concurrency=2)
    for key in "abc":
        queue.enqueue(key)
    assert [queue.take() for _ in range(3)] == ["a", "b", None]
    assert queue.next_due_s() is None
    queue.done("a")
    assert queue.take() == "c"


def test_slow_key_does_not_delay_another() -> None:
    queue = _queue(FakeClock())
    queue.enqueue("slow")
    assert queue.take() == "slow"
    queue.enqueue("other")
    assert queue.take() == "other"


def test_earlier_of_two_times_counts() -> None:
    clock = FakeClock()
    queue = _queue(clock)
    queue.enqueue("a", after_s=60)
    queue.enqueue("a", after_s=10)
    queue.enqueue("a", after_s=30)
    assert queue.next_due_s() == 10
    clock.tick(10)
    assert queue.take() == "a"


def test_backoff_grows_from_half_a_second_to_five_minutes_with_jitter_below_and_is_reset_by_success() -> None:
    clock = FakeClock()
    queue = _queue(clock)
    ceilings = [0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    for ceiling in ceilings:
        queue.enqueue("a")
        assert queue.take() == "a"
        delay = queue.failed("a")
        assert ceiling / 2 <= delay <= ceiling
        clock.tick(delay)
    assert queue.take() == "a"
    queue.done("a")
    queue.enqueue("a")
    queue.take()
    assert queue.failed("a") <= 0.5


def test_change_that_comes_during_a_failing_run_is_looked_at_when_the_run_ends() -> None:
    clock = FakeClock()
    queue = _queue(clock)
    queue.enqueue("a")
    for _ in range(12):
        assert queue.take() == "a"
        clock.tick(queue.failed("a"))
    assert queue.take() == "a", "the API server has been slow for minutes: its backoff is at its longest"
    queue.enqueue("a")
    assert queue.take() is None, "a key never runs twice at once"
    queue.failed("a")
    assert queue.next_due_s() == 0
    assert queue.take() == "a"
    assert queue.failed("a") >= 150, "the backoff itself goes on where no change comes"
    assert queue.next_due_s() >= 150


def test_later_time_of_a_running_key_does_not_postpone_what_is_due() -> None:
    clock = FakeClock()
    queue = _queue(clock)
    queue.enqueue("a")
    assert queue.take() == "a"
    queue.enqueue("a", after_s=5)
    queue.done("a", again_after_s=60)
    assert queue.next_due_s() == 5


def test_passes_over_a_job_whose_deadline_is_far_away_leave_nothing_behind() -> None:
    clock = FakeClock()
    queue = _queue(clock)
    queue.enqueue("other", after_s=100_000)
    tracemalloc.start()
    for _ in range(10_000):
        queue.enqueue("a")
        assert queue.take() == "a"
        queue.done("a", again_after_s=86_400 - clock.monotonic() % 1000)
        clock.tick(0.5)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100_000
    assert queue.take() is None


def test_age_of_the_oldest_key_starts_when_it_becomes_due() -> None:
    clock = FakeClock()
    queue = _queue(clock)
    queue.enqueue("later", after_s=100)
    queue.enqueue("now")
    clock.tick(30)
    assert queue.oldest_s() == 30


@given(st.lists(st.tuples(st.sampled_from(["enqueue", "take", "done", "failed", "tick"]), st.sampled_from("abc"))))
def test_key_never_runs_twice_at_once_and_none_is_lost(steps: list[tuple[str, str]]) -> None:
    clock = FakeClock()
    queue, running, wanted = _queue(clock, concurrency=2), set[str](), set[str]()
    for action, key in steps:
        if action == "enqueue":
            queue.enqueue(key)
            wanted.add(key)
        elif action == "take" and (taken := queue.take()) is not None:
            assert taken not in running
            running.add(taken)
            wanted.discard(taken)
            assert len(running) <= 2
        elif action == "done" and key in running:
            queue.done(key)
            running.discard(key)
        elif action == "failed" and key in running:
            queue.failed(key)
            running.discard(key)
            wanted.add(key)
        else:
            clock.tick(400)
    assert len(queue) == len(wanted)
    for key in running:
        queue.done(key)
    clock.tick(400)
    left = set[str]()
    while (taken := queue.take()) is not None:
        left.add(taken)
        queue.done(taken)
    assert left == wanted


def test_queue_that_may_run_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        _queue(FakeClock(), concurrency=0)
