import pytest

from rljob_api.manifest.job import JobSpec
from rljob_testing.sections import changed, make_spec
from rljob_workers.coordinator.policy import staleness


def bounds(
    *, eta: int, b: int, inflight: int | None = None, group_size: int = 4, on_stale: str | None = None
) -> JobSpec:
    return make_spec(
        group_size=group_size,
        prompts_per_step=b,
        max_off_policy_steps=eta,
        max_inflight_groups=inflight,
        on_stale=on_stale,
    )


@pytest.mark.covers("algorithms 2.1", "algorithms 2.4", "algorithms 15")
@pytest.mark.parametrize(
    ("eta", "b", "inflight", "published", "accepted", "running", "expected"),
    [
        pytest.param(2, 4, 100, 5, 0, 0, 32, id="nothing was reset after a restart: far too much"),
        pytest.param(2, 4, 100, 1, 4, 3, 9, id="the staleness bound decides"),
        pytest.param(2, 4, 10, 50, 0, 3, 7, id="the cap on groups in flight decides"),
        pytest.param(1, 4, 100, 0, 9, 2, -3, id="negative after eta was lowered"),
        pytest.param(3, 8, 100, 10, 80, 0, 32, id="recovery at v 10 with nothing kept gives (eta + 1) B"),
        pytest.param(0, 4, 100, 0, 0, 0, 4, id="synchronous: one step's groups"),
        pytest.param(0, 4, 100, 0, 4, 0, 0, id="synchronous: nothing more before the next version"),
    ],
)
def test_capacity_is_what_the_admission_rule_says(
    eta: int, b: int, inflight: int, published: int, accepted: int, running: int, expected: int
) -> None:
    found = staleness.capacity(
        bounds(eta=eta, b=b, inflight=inflight), published_step=published, accepted=accepted, running=running
    )
    assert found == expected


@pytest.mark.covers("algorithms 2.1", "algorithms 15")
def test_no_more_groups_are_queued_than_the_bound_could_use() -> None:
    assert staleness.pending_limit(bounds(eta=3, b=8)) == 32


@pytest.mark.covers("algorithms 2.1", "algorithms 15")
@pytest.mark.parametrize(
    ("eta", "accepted", "running", "floor"), [(1, 8, 5, 2), (1, 0, 0, 0), (1, 4, 3, 0), (0, 8, 0, 2)]
)
def test_a_lease_needs_a_worker_that_serves_its_version_floor(
    eta: int, accepted: int, running: int, floor: int
) -> None:
    assert staleness.version_floor(bounds(eta=eta, b=4), accepted=accepted, running=running) == floor


@pytest.mark.covers("algorithms 2.2", "algorithms 15")
@pytest.mark.parametrize("on_stale", ["Drop", "Wait"])
@pytest.mark.parametrize(("oldest", "stale"), [(6, False), (5, True)])
def test_age_is_counted_from_the_oldest_token(oldest: int, stale: bool, on_stale: str) -> None:
    spec = bounds(eta=1, b=1, on_stale=on_stale)
    assert staleness.is_stale(spec, batch_index=7, min_step=oldest, max_step=7) is stale


@pytest.mark.covers("algorithms 2.2", "algorithms 2.3")
@pytest.mark.parametrize(("newest", "stale"), [(6, False), (5, True)])
def test_under_mask_a_group_is_too_old_once_even_its_newest_token_is(newest: int, stale: bool) -> None:
    spec = bounds(eta=1, b=1)
    assert staleness.is_stale(spec, batch_index=7, min_step=0, max_step=newest) is stale


@pytest.mark.parametrize(("batch_index", "oldest"), [(0, 0), (2, 0), (7, 5)])
def test_a_loss_takes_tokens_of_the_versions_of_the_last_steps(batch_index: int, oldest: int) -> None:
    assert staleness.oldest_trained_step(bounds(eta=2, b=1), batch_index=batch_index) == oldest


def test_a_group_renews_itself_where_weights_change_while_it_is_generated() -> None:
    assert staleness.renews_itself(bounds(eta=1, b=1))
    assert not staleness.renews_itself(changed(bounds(eta=1, b=1), in_flight_weight_updates=False))
    assert not staleness.renews_itself(bounds(eta=1, b=1, on_stale="Drop"))
    assert not staleness.renews_itself(bounds(eta=0, b=1))


@pytest.mark.covers("algorithms 2.3", "algorithms 15")
def test_under_wait_a_batch_waits_for_those_that_later_steps_could_not_take() -> None:
    # a and b, leased at version 0, are left out; d of version 1 is what would be taken: k = 1 allows one of them.
    waiting = bounds(eta=2, b=1)
    assert not staleness.may_close_waiting(waiting, batch_index=1, left_out=[0, 0])
    assert staleness.may_close_waiting(waiting, batch_index=1, left_out=[0])
    assert not staleness.may_close_waiting(waiting, batch_index=2, left_out=[0])


@pytest.mark.covers("algorithms 4")
@pytest.mark.parametrize(("fraction", "expected"), [(1.0, 8), (0.5, 4), (0.51, 5), (0.0, 2)])
def test_a_short_group_has_at_least_two_members(fraction: float, expected: int) -> None:
    short = changed(bounds(eta=1, b=1, group_size=8), min_group_fraction=fraction)
    assert staleness.smallest_group(short) == expected


@pytest.mark.covers("algorithms 4")
def test_a_group_of_one_needs_that_one() -> None:
    assert staleness.smallest_group(bounds(eta=1, b=1, group_size=1)) == 1


@pytest.mark.parametrize(("fraction", "expected"), [(1.0, 4), (0.5, 2), (0.6, 3), (0.0, 1)])
def test_a_short_step_has_at_least_its_fraction_of_groups(fraction: float, expected: int) -> None:
    assert staleness.smallest_batch(changed(bounds(eta=1, b=4), min_step_batch_fraction=fraction)) == expected


def test_a_batch_is_decided_ahead_only_where_the_batch_after_it_could_still_take_everybody() -> None:
    two = bounds(eta=2, b=4)
    assert staleness.may_close_ahead(two, batch_index=4, left_out=[])
    assert staleness.may_close_ahead(two, batch_index=4, left_out=[3, 5])
    assert not staleness.may_close_ahead(two, batch_index=4, left_out=[2, 5])
