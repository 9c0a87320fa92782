import dataclasses

from rljob_api.enums import ReceiverState
from rljob_workers.rollout import reporting

SEEN = reporting.Observation(
    now_s=0.0,
    state=ReceiverState.SERVING,
    started=True,
    served_step=5,
    newest_step=5,
    median_sync_s=1.0,
    num_running=0,
    num_generated=0,
    paused=False,
)


def at(now_s: float, **changes: object) -> reporting.Observation:
    return dataclasses.replace(SEEN, now_s=now_s, **changes)  # type: ignore[arg-type]


def test_not_ready_before_the_first_observation() -> None:
    assert reporting.Readiness(max_lag_steps=1).ready == (False, "starting")


def test_not_ready_until_the_head_of_the_start_is_served() -> None:
    probes = reporting.Readiness(max_lag_steps=1)
    probes.observe(at(0.0, started=False))
    assert probes.ready == (False, "loading the newest version")


def test_ready_within_the_staleness_bound() -> None:
    probes = reporting.Readiness(max_lag_steps=1)
    probes.observe(at(0.0, newest_step=6))
    assert probes.ready[0]


def test_a_fresh_process_beyond_the_bound_has_no_grace() -> None:
    probes = reporting.Readiness(max_lag_steps=1)
    probes.observe(at(0.0, newest_step=7))
    assert probes.ready == (False, "serves step 5, 2 behind")


def test_lag_beyond_the_bound_is_forgiven_for_thirty_seconds() -> None:
    probes = reporting.Readiness(max_lag_steps=0)
    probes.observe(at(0.0))
    probes.observe(at(10.0, newest_step=6))
    probes.observe(at(40.0, newest_step=6))
    assert probes.ready[0]
    probes.observe(at(40.1, newest_step=6))
    assert not probes.ready[0]


def test_grace_is_three_median_syncs_where_that_is_longer() -> None:
    probes = reporting.Readiness(max_lag_steps=0)
    probes.observe(at(0.0))
    probes.observe(at(10.0, newest_step=6, median_sync_s=20.0))
    probes.observe(at(69.9, newest_step=6, median_sync_s=20.0))
    assert probes.ready[0]
    probes.observe(at(70.1, newest_step=6, median_sync_s=20.0))
    assert not probes.ready[0]


def test_catching_up_restarts_the_grace() -> None:
    probes = reporting.Readiness(max_lag_steps=0)
    probes.observe(at(0.0))
    probes.observe(at(10.0, newest_step=6))
    probes.observe(at(20.0, newest_step=6, served_step=6))
    probes.observe(at(45.0, newest_step=7, served_step=6))
    assert probes.ready[0]


def test_a_refusing_receiver_is_unready_at_once_and_lag_never_fails_liveness() -> None:
    probes = reporting.Readiness(max_lag_steps=0)
    probes.observe(at(0.0))
    probes.observe(at(1.0, state=ReceiverState.REFUSING, newest_step=99))
    assert (probes.ready[0], probes.alive[0]) == (False, True)


def test_no_token_progress_with_requests_inside_is_unready_after_60_and_dead_after_180_seconds() -> None:
    probes = reporting.Readiness(max_lag_steps=0)
    probes.observe(at(0.0, num_running=3, num_generated=10))
    probes.observe(at(59.0, num_running=3, num_generated=10))
    assert probes.ready[0]
    probes.observe(at(61.0, num_running=3, num_generated=10))
    assert (probes.ready[0], probes.alive[0]) == (False, True)
    probes.observe(at(181.0, num_running=3, num_generated=10))
    assert not probes.alive[0]
    probes.observe(at(182.0, num_running=3, num_generated=11))
    assert (probes.ready[0], probes.alive[0]) == (True, True)


def test_an_idle_engine_is_not_stuck() -> None:
    probes = reporting.Readiness(max_lag_steps=0)
    probes.observe(at(0.0))
    probes.observe(at(500.0))
    assert (probes.ready[0], probes.alive[0]) == (True, True)
