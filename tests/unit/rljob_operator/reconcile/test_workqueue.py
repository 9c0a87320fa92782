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


@given(
    st.lists(
        st.tuples(st.sampled_from(["enqueue", "take", "gives way", "done", "failed", "tick"]), st.sampled_from("abc"))
    )
)
def test_key_never_runs_twice_at_once_and_none_is_lost(steps: list[tuple[str, str]]) -> None:
    clock = FakeClock()
    queue, running, wanted, given = _queue(clock, concurrency=2), set[str](), set[str](), set[str]()
    for action, key in steps:
        if action == "enqueue":
            queue.enqueue(key, may_give_way=True)
            wanted.add(key)
        elif action == "take" and (taken := queue.take()) is not None:
            assert taken not in running
            running.add(taken)
            wanted.discard(taken)
            assert len(running) <= 2
        elif action == "gives way" and queue.gives_way(key):
            assert key in running
            given.add(key)
        elif action == "done" and key in running:
            queue.done(key)
            running.discard(key)
            wanted |= given & {key}
            given.discard(key)
        elif action == "failed" and key in running:
            queue.failed(key)
            running.discard(key)
            given.discard(key)
            wanted.add(key)
        else:
            clock.tick(400)
    assert len(queue) == len(wanted)
    for key in running:
        queue.done(key)
    wanted |= given
    clock.tick(400)
    left = set[str]()
    while (taken := queue.take()) is not None:
        left.add(taken)
        queue.done(taken)
    assert left == wanted


def _requests(queue: WorkQueue, clock: FakeClock, *, each: int) -> list[str]:
    """Run all keys, each of which has as many requests to send, one key a second; return whose requests were sent."""
    left, sent = dict[str, int](), list[str]()
    while (key := queue.take()) is not None:
        todo = left.setdefault(key, each)
        now = 1 if todo > 1 and queue.gives_way(key) else todo
        sent += [key] * now
        left[key] -= now
        clock.tick(1.0)
        queue.done(key, again_after_s=0.5 if left[key] else None)
    assert not any(left.values())
    return sent


def test_after_a_start_each_job_sends_its_first_request_before_any_sends_the_rest() -> None:
    clock = FakeClock()
    queue = _queue(clock)
    keys = [f"team/run-{number}" for number in range(20)]
    for key in keys:
        queue.enqueue(key, may_give_way=True)
    sent = _requests(queue, clock, each=14)
    assert (sorted(sent[:19]), len(sent)) == (sorted(keys)[:-1], 20 * 14), "the last one gives way to no one"
    rest = sent[19 + 14 :]
    assert rest == [key for key in sorted(keys)[:-1] for _ in range(13)], "then one after the other, as they were"


def test_key_alone_does_not_give_way_and_one_that_did_does_not_again() -> None:
    queue = _queue(FakeClock())
    queue.enqueue("a", may_give_way=True)
    assert queue.take() == "a"
    assert not queue.gives_way("a")
    queue.enqueue("b")
    assert queue.gives_way("a")
    queue.done("a", again_after_s=60.0)
    assert [queue.take(), queue.take()] == ["b", "a"], "what is left is not put off"
    queue.enqueue("c")
    assert not queue.gives_way("a")


def test_key_that_is_changed_in_the_midst_of_others_does_all_at_once() -> None:
    queue = _queue(FakeClock())
    for key in "ab":
        queue.enqueue(key)
    assert queue.take() == "a"
    assert not queue.gives_way("a")


def test_key_that_gave_way_waits_for_none_that_comes_half_a_minute_later() -> None:
    clock = FakeClock()
    queue = _queue(clock)
    for key in "ab":
        queue.enqueue(key, may_give_way=True)
    assert queue.take() == "a"
    assert queue.gives_way("a")
    queue.done("a")
    clock.tick(29.0)
    queue.enqueue("sooner")
    clock.tick(2.0)
    queue.enqueue("later")
    assert [queue.take() for _ in range(5)] == ["b", "sooner", "a", "later", None]


def test_change_of_a_key_that_gave_way_is_looked_at_in_its_own_turn() -> None:
    clock = FakeClock()
    queue = _queue(clock)
    for key in "ab":
        queue.enqueue(key, may_give_way=True)
    assert queue.take() == "a"
    assert queue.gives_way("a")
    queue.done("a")
    clock.tick(1.0)
    queue.enqueue("a")
    queue.enqueue("c")
    assert [queue.take() for _ in range(3)] == ["b", "a", "c"]
    assert not queue.gives_way("a"), "its first request was sent"


def test_key_that_stands_behind_comes_last_and_none_gives_way_to_it() -> None:
    clock = FakeClock()
    queue = _queue(clock)
    queue.enqueue("at rest", behind_s=60.0)
    assert queue.next_due_s() == 0, "where no other waits it runs at once"
    clock.tick(1.0)
    queue.enqueue("a", may_give_way=True)
    assert queue.take() == "a"
    assert not queue.gives_way("a")
    clock.tick(60.0)
    assert queue.gives_way("a"), "its turn has come"
    assert queue.take() == "at rest"


def test_key_that_fails_after_it_gave_way_comes_again_by_its_backoff() -> None:
    clock = FakeClock()
    queue = _queue(clock)
    for key in "ab":
        queue.enqueue(key, may_give_way=True)
    assert queue.take() == "a"
    assert queue.gives_way("a")
    delay = queue.failed("a")
    assert [queue.take(), queue.take()] == ["b", None]
    clock.tick(delay)
    assert queue.take() == "a"


def test_queue_that_may_run_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        _queue(FakeClock(), concurrency=0)
