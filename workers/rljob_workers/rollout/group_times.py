"""When a group generated and how long it was graded. Tells the slot accounting which of the two it does now."""

import contextlib
from collections.abc import Iterator

from rljob_api import names
from rljob_workers.rollout import waits
from rljob_workers.runtime import clock as clocks


class GroupTimes:
    """Counts the members that generate; a slot waits for the verifier when none does and a verdict is out."""

    def __init__(self, *, clock: clocks.Clock, slot: waits.Slot) -> None:
        """`slot` belongs to the group."""
        self._clock, self._slot = clock, slot
        self._generating, self._verifying = 0, 0
        self.started_at = self.finished_at = clock.now()
        self.verify_s = 0.0

    @contextlib.contextmanager
    def generating(self) -> Iterator[None]:
        """Around a member's generation."""
        self._generating += 1
        self._tell()
        try:
            yield
        finally:
            self._generating -= 1
            self.finished_at = self._clock.now()
            self._tell()

    @contextlib.contextmanager
    def verifying(self) -> Iterator[None]:
        """Around a Verify call."""
        self._verifying += 1
        self._tell()
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._verifying -= 1
            self.verify_s += self._clock.monotonic() - began
            self._tell()

    def _tell(self) -> None:
        if self._generating:
            self._slot.works()
        elif self._verifying:
            self._slot.waits(names.WaitReason.VERIFIER)
