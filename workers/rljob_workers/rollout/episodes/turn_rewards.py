"""What turns are worth: AReaL's signed shaping and back-propagation, and one discounted reward per conversation. Pure.

The bias is SUBTRACTED here, after success is mapped to -1 and +1; the pipeline's affine step adds it. Source: workflow
reference 4 and 5.
"""

import itertools
import math
from collections.abc import Sequence

from rljob_api import names


def signed(success: float, *, bias: float = 0.0, scale: float = 1.0) -> float:
    """Return ((success - 0.5) * 2 - bias) * scale; `success` may be fractional."""
    return ((success - 0.5) * 2 - bias) * scale


def back_propagated(rewards: Sequence[float], *, discount: float) -> list[float]:
    """Return R_last = r_last, R_i = r_i + discount * R_{i+1}, in the order of the turns. Raises ValueError if the
    discount is not finite.
    """
    if not math.isfinite(discount):
        raise ValueError(f"turnDiscount is {discount}, but must be finite")
    backward = itertools.accumulate(reversed(rewards), lambda later, reward: reward + discount * later)
    return list(backward)[::-1]


def rejection(successes: Sequence[float], *, lower: float, upper: float) -> names.DropReason | None:
    """Return why a group with these successes is rejected, or None; both bounds are inclusive."""
    if not successes:
        raise ValueError("a group without members has no mean success")
    mean = math.fsum(successes) / len(successes)
    if mean < lower:
        return names.DropReason.TOO_LOW
    return names.DropReason.TOO_HIGH if mean > upper else None


def deciding_turn(raw_rewards: Sequence[float]) -> int:
    """Return the index of the first turn with a non-zero raw reward, else of the last one."""
    if not raw_rewards:
        raise ValueError("a conversation has at least one turn")
    return next((turn for turn, reward in enumerate(raw_rewards) if reward != 0.0), len(raw_rewards) - 1)


def final_reward(raw_rewards: Sequence[float], *, discount: float) -> float:
    """Return the raw reward of the deciding turn times discount^(failed turns before it)."""
    turn = deciding_turn(raw_rewards)
    return raw_rewards[turn] * discount**turn
