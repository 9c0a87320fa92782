import pytest

from rljob_api import enums
from rljob_api.manifest.data import FilterGroupsSpec
from rljob_testing.sections import section
from rljob_workers.coordinator.policy import filters

ZERO, LOW, HIGH = enums.DropReason.ZERO_SPREAD, enums.DropReason.TOO_LOW, enums.DropReason.TOO_HIGH


def bounds(*, enabled: bool = False, lower: float | None = None, upper: float | None = None) -> FilterGroupsSpec:
    return section(FilterGroupsSpec, enabled=enabled, lower=lower, upper=upper, max_extra_groups=3)


@pytest.mark.covers("algorithms 4", "workflows 6.2", "workflows 6.3")
@pytest.mark.parametrize(
    ("config", "rewards", "expected"),
    [
        pytest.param(bounds(enabled=True), [1, 1, 1], ZERO, id="equal rewards teach nothing"),
        pytest.param(bounds(enabled=True), [1, 0], None, id="a spread is kept"),
        pytest.param(bounds(enabled=True), [1, 1 + 5e-10], ZERO, id="a spread below the slack is none"),
        pytest.param(bounds(lower=0.05, upper=0.95), [1, 0, 0, 0], None, id="a mean inside the bounds"),
        pytest.param(bounds(lower=0.5, upper=0.5), [1, 0], None, id="both bounds are inclusive"),
        pytest.param(bounds(lower=0.3), [1, 0, 0, 0], LOW, id="a mean below the lower bound"),
        pytest.param(bounds(upper=0.7), [1, 1, 1, 0], HIGH, id="a mean above the upper bound"),
        pytest.param(bounds(), [0, 0], None, id="nothing is filtered unless asked for"),
    ],
)
def test_groups_are_filtered_on_their_raw_rewards(
    config: FilterGroupsSpec, rewards: list[float], expected: enums.DropReason | None
) -> None:
    assert filters.rejection(config, rewards) is expected


@pytest.mark.covers("algorithms 4")
@pytest.mark.parametrize(("rejected", "expected"), [(3, False), (4, True)])
def test_starvation_begins_above_the_allowed_number_of_extra_groups(rejected: int, expected: bool) -> None:
    assert filters.starved(bounds(), rejected=rejected) is expected
