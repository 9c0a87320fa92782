"""How many optimizer updates a model has had, and how many in a row were skipped. Goes into checkpoints."""

import dataclasses
from typing import Protocol

from rljob_api import errors

# So many updates in a row without a finite gradient are no accident.
MAX_SKIPPED_IN_A_ROW = 5


class Outcome(Protocol):
    """An optimizer update: the norm before clipping, and whether it was applied."""

    @property
    def grad_norm(self) -> float:
        """Global L2 norm."""

    @property
    def applied(self) -> bool:
        """False if the norm was not finite."""


@dataclasses.dataclass(slots=True)
class UpdateCount:
    """`applied` is what the learning-rate schedule counts by."""

    applied: int = 0
    skipped_in_a_row: int = 0

    def add(self, outcome: Outcome, *, rate_field: str) -> None:
        """Count an update. Raises RLJobError after too many skipped ones; `rate_field` sets their learning rate."""
        if outcome.applied:
            self.applied += 1
            self.skipped_in_a_row = 0
            return
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise errors.RLJobError(
                f"{self.skipped_in_a_row} updates in a row had a gradient norm that is not finite; the last good state"
                f" is the newest checkpoint. Lower {rate_field}, or look at mismatch/kl"
            )
