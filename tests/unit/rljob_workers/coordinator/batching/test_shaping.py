import pytest

from rljob_api.manifest.algorithm import AlgorithmSpec, OverlongSpec, RewardsSpec
from rljob_testing.sections import section
from rljob_workers.coordinator.batching import shaping


def shaping_by(*, zero_truncated: bool = False, **rewards: object) -> AlgorithmSpec:
    return section(AlgorithmSpec, zero_truncated=zero_truncated, rewards=section(RewardsSpec, **rewards))


def overlong(maximum: int, tail: int, factor: float) -> OverlongSpec:
    return section(OverlongSpec, max_tokens=maximum, tail_tokens=tail, factor=factor)


@pytest.mark.covers("algorithms 3", "algorithms 15")
@pytest.mark.parametrize(
    ("config", "num_tokens", "expected"),
    [
        (overlong(4096, 512, 1.0), 3584, 0.0),
        (overlong(4096, 512, 1.0), 4096, -1.0),
        (overlong(1000, 200, 0.5), 850, -0.125),
        (overlong(1000, 200, 0.5), 10, 0.0),
    ],
)
def test_overlong_answers_are_penalised_in_their_tail(config: OverlongSpec, num_tokens: int, expected: float) -> None:
    assert shaping.overlong_penalty(config, num_tokens=num_tokens) == expected


@pytest.mark.covers("algorithms 3", "algorithms 15", "workflows 5.3")
@pytest.mark.parametrize(
    ("config", "reward", "expected"),
    [
        (shaping_by(bias=-0.5, scale=2), 1.0, 1.0),
        (shaping_by(bias=-0.5, scale=2), 0.0, -1.0),
        (shaping_by(scale=10, clip=20), 3.0, 20.0),
        (shaping_by(scale=10, clip=20), -3.0, -20.0),
        # The subtracting form ((r - 0.5) * 2 - b) * k with b 0.2 and k 3, of a right answer: 2.4.
        (shaping_by(bias=-0.6, scale=6), 1.0, 2.4),
    ],
)
def test_the_bias_is_added_then_scaled_then_clipped(config: AlgorithmSpec, reward: float, expected: float) -> None:
    assert shaping.shape(config, reward=reward, truncated=False, num_tokens=1) == pytest.approx(expected)


@pytest.mark.covers("algorithms 3", "workflows 9")
def test_a_zeroed_truncated_answer_counts_as_wrong_not_as_neutral() -> None:
    config = shaping_by(zero_truncated=True, bias=-0.5, scale=2)
    assert shaping.shape(config, reward=1.0, truncated=True, num_tokens=1) == -1.0
    assert shaping.shape(config, reward=1.0, truncated=False, num_tokens=1) == 1.0


@pytest.mark.covers("algorithms 3")
def test_the_scale_multiplies_the_overlong_penalty_too() -> None:
    config = shaping_by(bias=-0.5, scale=2, overlong=overlong(1000, 200, 0.5))
    assert shaping.shape(config, reward=1.0, truncated=False, num_tokens=850) == 0.75
