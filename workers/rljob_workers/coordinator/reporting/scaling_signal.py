"""Rollout capacity needed over capacity present: the signal by which rollouts are scaled, target 1. Pure.

    pressure = (1 - blocked) * (1 - target) / (1 - waiting), clamped to 0.25..4

blocked: share of slot time without generation, whatever the reason; waiting: share of time that the trainer waits;
target: the share that it may wait. It is proportional to needed over present, as the formula of an HPA assumes: with
rollouts that make r groups a second each and a trainer that takes c, n of them always give (1 - target) c / (n r).
Both shares are high where verifiers or weight updates are the cause: then it stays near 1, since pods would not help.
"""

from collections.abc import Iterable

from rljob_api import enums
from rljob_workers.coordinator.reporting.processes import WINDOW_S, Pod

LEAST, MOST = 0.25, 4.0
STEADY = 1.0
# Heartbeats do not fall on the edges of the window.
_WHOLE = 0.9


def pressure(*, blocked: float, waiting: float, target: float) -> float:
    """Return the ratio. Shares are 0..1; raises ValueError otherwise."""
    if not (0 <= blocked <= 1 and 0 <= waiting <= 1 and 0 <= target < 1):
        raise ValueError(f"need shares from 0 to 1, got {blocked=}, {waiting=}, {target=}")
    if waiting == 1:
        return MOST
    return max(LEAST, min(MOST, (1 - blocked) * (1 - target) / (1 - waiting)))


def is_settled(phase: enums.Phase, rollouts: Iterable[Pod]) -> bool:
    """Return whether the shares describe this fleet: the run trains, and every rollout was seen for a whole window.

    Else the ratio is held at 1: at start-up, in evaluations, while stopping, and after each change of the fleet.
    """
    if phase is not enums.Phase.RUNNING:
        return False
    spans = [pod.samples[-1].at - pod.samples[0].at if pod.samples else 0.0 for pod in rollouts]
    return bool(spans) and min(spans) >= _WHOLE * WINDOW_S
