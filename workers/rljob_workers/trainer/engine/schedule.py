"""Learning rate of an update, the count of updates that it depends on, and which steps' weights are averaged.

The schedule counts applied updates from 0, so a skipped update leaves it where it was. The count goes into checkpoints.
"""

import dataclasses
import math

from rljob_api import errors
from rljob_api.manifest.trainer import OptimizerSpec

# More consecutive updates without a finite gradient than this are not bad luck.
MAX_SKIPPED_IN_A_ROW = 5


def learning_rate(update: int, *, config: OptimizerSpec, updates_per_step: int, max_steps: int) -> float:
    """Return lr * min(1, (u + 1) / (w * updates per step)) * decay; warm-up w counts steps and rises per update.

    decay is 1 for constant; for linear and cosine it falls from 1 to 0 after the last update: from the end of the
    warm-up on, or with `decaySteps` in those last steps, with the peak until then
    (warmup-stable-decay, Hu et al., arXiv:2404.06395).
    max_steps: steps in which the model is updated; the policy is not while a critic warms up.
    """
    warmup, end = config.warmup_steps * updates_per_step, max_steps * updates_per_step
    rise = min(1.0, (update + 1) / warmup) if warmup else 1.0
    start = warmup if config.decay_steps is None else max(warmup, end - config.decay_steps * updates_per_step)
    share = min(1.0, max(0, update - start) / max(1, end - start))
    decay = {"Constant": 1.0, "Linear": 1.0 - share, "Cosine": (1.0 + math.cos(math.pi * share)) / 2.0}
    return config.learning_rate * rise * decay[config.schedule]


@dataclasses.dataclass(frozen=True, slots=True)
class PlaceInAverage:
    """Of a step among those whose weights the run's last version is the mean of."""

    is_first: bool
    is_last: bool


def place_in_average(step: int, *, config: OptimizerSpec, max_steps: int) -> PlaceInAverage | None:
    """Return the place of step 1 .. max_steps among the last `averageSteps`; None for an earlier one."""
    count = config.average_steps
    if count is None or not max_steps - count < step <= max_steps:
        return None
    return PlaceInAverage(is_first=step == max(1, max_steps - count + 1), is_last=step == max_steps)


@dataclasses.dataclass(frozen=True, slots=True)
class StepOutcome:
    """An optimizer update. `grad_norm` is the global L2 norm before clipping; applied: False if it was not finite."""

    grad_norm: float
    applied: bool


@dataclasses.dataclass(slots=True)
class UpdateCount:
    """`applied` is what the learning-rate schedule counts by."""

    applied: int = 0
    skipped_in_a_row: int = 0

    def add(self, outcome: StepOutcome, *, rate_field: str) -> None:
        """Count an update. Raises RLJobError after too many skipped ones; `rate_field` sets their learning rate."""
        if outcome.applied:
            self.applied += 1
            self.skipped_in_a_row = 0
            return
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise errors.RLJobError(
                f"{self.skipped_in_a_row} updates in a row had a gradient norm that is not finite; the last good state"
                f" is the newest checkpoint. Lower {rate_field}, or check mismatch/kl"
            )
