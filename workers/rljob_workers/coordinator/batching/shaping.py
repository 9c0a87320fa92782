"""From the graded reward of a row to the reward that advantages are made of. Order: zero, overlong, affine, clip."""

from collections.abc import Sequence

from rljob_api.manifest.algorithm import AlgorithmSpec, OverlongSpec


def shape(algorithm: AlgorithmSpec, *, reward: float, truncated: bool, num_tokens: int) -> float:
    """Return clamp((r + bias) * scale, -clip, clip) of a row with `num_tokens` sampled tokens.

    `zero_truncated` acts first, on the raw reward; DAPO's overlong penalty (arXiv:2503.14476) is added to the raw
    reward too, so the scale multiplies it. The bias is added before scaling.
    """
    rewards = algorithm.rewards
    raw = 0.0 if algorithm.zero_truncated and truncated else reward
    if rewards.overlong is not None:
        raw += overlong_penalty(rewards.overlong, num_tokens=num_tokens)
    return _clamped((raw + rewards.bias) * rewards.scale, rewards.clip)


def _clamped(value: float, bound: float | None) -> float:
    return value if bound is None else min(bound, max(-bound, value))


def shape_turns(
    algorithm: AlgorithmSpec, *, rewards: Sequence[float], truncated: bool, num_tokens: int
) -> tuple[float, ...]:
    """Return the shaped rewards of turns that are rewarded one by one. A row is cut, or too long, at its last turn."""
    shaping = algorithm.rewards
    earlier = (_clamped((reward + shaping.bias) * shaping.scale, shaping.clip) for reward in rewards[:-1])
    return (*earlier, shape(algorithm, reward=rewards[-1], truncated=truncated, num_tokens=num_tokens))


def overlong_penalty(config: OverlongSpec, *, num_tokens: int) -> float:
    """Return min(0, -(n - (max_tokens - tail_tokens)) / tail_tokens * factor)."""
    over = num_tokens - (config.max_tokens - config.tail_tokens)
    return min(0.0, -over / config.tail_tokens * config.factor)
