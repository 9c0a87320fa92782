"""From the graded reward of a row to the reward that advantages are made of. Order: zero, overlong, affine, clip."""

from collections.abc import Sequence

from rljob_api import roles
from rljob_api.manifest.algorithm import OverlongSpec


def shape(config: roles.RewardShapingConfig, *, reward: float, truncated: bool, num_tokens: int) -> float:
    """Return clamp((r + bias) * scale, -clip, clip) of a row with `num_tokens` sampled tokens.

    `zero_truncated` acts first, on the raw reward; DAPO's overlong penalty (arXiv:2503.14476) is added to the raw
    reward too, so the scale multiplies it. The bias is added before scaling.
    """
    raw = 0.0 if config.zero_truncated and truncated else reward
    if config.overlong is not None:
        raw += overlong_penalty(config.overlong, num_tokens=num_tokens)
    return min(config.clip, max(-config.clip, (raw + config.bias) * config.scale))


def shape_turns(
    config: roles.RewardShapingConfig, *, rewards: Sequence[float], truncated: bool, num_tokens: int
) -> tuple[float, ...]:
    """Return the shaped rewards of turns that are rewarded one by one. A row is cut, or too long, at its last turn."""
    earlier = (shape(config.model_copy(update={"overlong": None}), reward=reward, truncated=False, num_tokens=0)
               for reward in rewards[:-1])  # fmt: skip
    return (*earlier, shape(config, reward=rewards[-1], truncated=truncated, num_tokens=num_tokens))


def overlong_penalty(config: OverlongSpec, *, num_tokens: int) -> float:
    """Return min(0, -(n - (max_tokens - tail_tokens)) / tail_tokens * factor)."""
    over = num_tokens - (config.max_tokens - config.tail_tokens)
    return min(0.0, -over / config.tail_tokens * config.factor)
