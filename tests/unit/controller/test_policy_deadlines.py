from rljob_operator.policies import deadlines


def test_waiting_for_nodes_and_starting_are_two_clocks() -> None:
    assert deadlines.scheduling_ends(waiting_since=100, limit_s=None) is None, "no end unless one is asked for"
    assert deadlines.scheduling_ends(waiting_since=None, limit_s=60) is None
    assert deadlines.scheduling_ends(waiting_since=100, limit_s=60) == 160
    assert deadlines.startup_ends(placed_at=None, limit_s=1800) is None
    assert deadlines.startup_ends(placed_at=5000, limit_s=1800) == 6800


def test_active_deadline_starts_again_with_the_segment() -> None:
    assert deadlines.active_ends(start_time=100, limit_s=60) == 160
    assert deadlines.active_ends(start_time=900, limit_s=60) == 960
    assert deadlines.active_ends(start_time=900, limit_s=None) is None


def test_clock_that_jumps_back_never_deletes_early() -> None:
    end = deadlines.ttl_ends(completion_time=1000, ttl_s=60)
    assert [deadlines.is_over(end, now) for now in (1059, 1060, 10)] == [False, True, False]


def test_job_without_ttl_or_without_an_end_is_never_over() -> None:
    assert not deadlines.is_over(deadlines.ttl_ends(completion_time=1000, ttl_s=None), 1e12)
    assert not deadlines.is_over(deadlines.ttl_ends(completion_time=None, ttl_s=0), 1e12)
