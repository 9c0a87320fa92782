"""The autoscaling signal, and the loop that an autoscaler closes over it."""

import math
from collections import deque

import pytest

from rljob_api import enums
from rljob_workers.coordinator.reporting import processes, scaling_signal

TARGET = 0.1


@pytest.mark.parametrize(
    ("blocked", "waiting", "expected"),
    [
        # The reference's definition, worked by hand.
        (0.0, 0.1, 1.0),
        (0.0, 0.55, 2.0),
        (0.5, 0.0, 0.45),
        # Verifier or weight updates are the cause: both wait, and pods would not help.
        (0.5, 0.55, 1.0),
        (0.9, 0.0, 0.25),
        (0.0, 0.99, 4.0),
        (1.0, 1.0, 4.0),
    ],
)
def test_pressure_is_needed_over_present(blocked: float, waiting: float, expected: float) -> None:
    assert scaling_signal.pressure(blocked=blocked, waiting=waiting, target=TARGET) == pytest.approx(expected)


@pytest.mark.parametrize("bad", [{"blocked": -0.1}, {"waiting": 1.1}, {"target": 1.0}])
def test_what_is_no_share_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="need shares"):
        scaling_signal.pressure(**{"blocked": 0.0, "waiting": 0.0, "target": TARGET, **bad})


def _shares(replicas: int, *, per_rollout: float, taken: float) -> tuple[float, float]:
    """Return (blocked, waiting) of a fleet that makes replicas * per_rollout groups a second for a trainer."""
    made = replicas * per_rollout
    return (0.0, 1 - made / taken) if made < taken else (1 - taken / made, 0.0)


@pytest.mark.parametrize("start", [1, 3, 9, 20, 64])
def test_an_autoscaler_finds_the_same_fleet_from_anywhere_and_stays_there(start: int) -> None:
    """The formula of an HPA with a target of 1 and a tolerance of 0.1; rollouts make 1 group, the trainer takes 10."""
    replicas, history = start, [start]
    for _ in range(20):
        blocked, waiting = _shares(replicas, per_rollout=1.0, taken=10.0)
        ratio = scaling_signal.pressure(blocked=blocked, waiting=waiting, target=TARGET)
        if abs(ratio - 1) > 0.1:
            replicas = max(1, math.ceil(replicas * ratio))
        history.append(replicas)
    # (1 - 0.1) * 10 / 1 = 9 are needed; the tolerance leaves 10 alone.
    assert history[-1] in (9, 10)
    assert len(set(history[8:])) == 1


def _rollout(seen_s: float) -> processes.Pod:
    samples = deque([processes.Sample(0.0, 0.0, 0), processes.Sample(seen_s, 0.0, 0)])
    return processes.Pod(token="t", role=enums.Role.ROLLOUT, pod="r-0", samples=samples)


def test_the_signal_is_held_until_every_rollout_was_seen_for_a_window() -> None:
    whole, new = _rollout(processes.WINDOW_S), _rollout(30.0)
    assert scaling_signal.is_settled(enums.Phase.RUNNING, [whole, whole])
    assert not scaling_signal.is_settled(enums.Phase.RUNNING, [whole, new])
    assert not scaling_signal.is_settled(enums.Phase.RUNNING, [])


@pytest.mark.parametrize("phase", [phase for phase in enums.Phase if phase is not enums.Phase.RUNNING])
def test_the_signal_is_held_while_the_run_does_not_train(phase: enums.Phase) -> None:
    assert not scaling_signal.is_settled(phase, [_rollout(processes.WINDOW_S)])
