"""Which finished groups carry nothing to learn from (DAPO's dynamic sampling, bounds on the mean). On raw rewards."""

from collections.abc import Sequence

from rljob_api import enums
from rljob_api.manifest.data import FilterGroupsSpec

SLACK = 1e-9


def rejection(config: FilterGroupsSpec, rewards: Sequence[float]) -> enums.DropReason | None:
    """Return why a group with these raw rewards is left out, or None. Bounds are inclusive, with a slack of 1e-9."""
    if not rewards:
        raise ValueError("a group without members cannot be filtered")
    if config.enabled and max(rewards) - min(rewards) <= SLACK:
        return enums.DropReason.ZERO_SPREAD
    mean = sum(rewards) / len(rewards)
    if config.lower is not None and mean < config.lower - SLACK:
        return enums.DropReason.TOO_LOW
    if config.upper is not None and mean > config.upper + SLACK:
        return enums.DropReason.TOO_HIGH
    return None


def starved(config: FilterGroupsSpec, *, rejected: int) -> bool:
    """Return whether one step has rejected more groups than it may."""
    return rejected > config.max_extra_groups
