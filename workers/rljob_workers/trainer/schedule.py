"""Learning rate of an update. u counts applied updates from 0, so a skipped update leaves the schedule where it was."""

import math

from rljob_api import roles


def learning_rate(update: int, *, config: roles.OptimizerConfig, updates_per_step: int, max_steps: int) -> float:
    """Return lr * min(1, (u + 1) / (w * updates per step)) * decay; warm-up w counts steps and rises per update.

    decay is 1 for constant; for linear and cosine it falls from 1 after the warm-up to 0 after the last update.
    max_steps: steps in which the model is updated; the policy is not while a critic warms up.
    """
    warmup = config.warmup_steps * updates_per_step
    rise = min(1.0, (update + 1) / warmup) if warmup else 1.0
    left = max(1, max_steps * updates_per_step - warmup)
    share = min(1.0, max(0, update - warmup) / left)
    decay = {"constant": 1.0, "linear": 1.0 - share, "cosine": (1.0 + math.cos(math.pi * share)) / 2.0}
    return config.learning_rate * rise * decay[config.schedule]
