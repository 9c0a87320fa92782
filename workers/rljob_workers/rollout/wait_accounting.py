"""Where the slots' time goes. A slot is room for one group; wait = slot-seconds without generation / slots.

Pure but for the clock. An empty slot waits for what the last lease call named; a group's slot generates, waits for
the verifier, or waits for weights; while generation is paused every generating slot waits for weights.
"""

import contextlib
from collections.abc import Iterator

from rljob_api import enums
from rljob_api.enums import WaitReason
from rljob_workers.runtime import clock as clocks


class SlotWaits:
    """The accounts of one worker."""

    def __init__(self, *, num_slots: int, clock: clocks.Clock) -> None:
        """All slots are empty and wait for the coordinator."""
        self._num_slots, self._clock = num_slots, clock
        self._slots: set[Slot] = set()
        self._idle = WaitReason.COORDINATOR
        self._paused = False
        self._last = self._since = clock.monotonic()
        self._totals = dict.fromkeys(WaitReason, 0.0)
        self._generating_s = self._paused_s = 0.0
        self._waiting_for: WaitReason | None = WaitReason.COORDINATOR

    def idle_because(self, reason: WaitReason) -> None:
        """Say what empty slots wait for."""
        self._settle()
        self._idle = reason
        self._look()

    def reached(self) -> None:
        """Say that the coordinator answers; what is still empty has no prompt."""
        if self._idle is WaitReason.COORDINATOR:
            self.idle_because(WaitReason.NO_PROMPTS)

    def paused(self, is_paused: bool) -> None:
        """Say that generation stopped or continues."""
        self._settle()
        self._paused = is_paused
        self._look()

    def open_slot(self) -> "Slot":
        """Take a slot; it waits for weights until its group generates."""
        self._settle()
        slot = Slot(self)
        self._slots.add(slot)
        self._look()
        return slot

    def totals(self) -> dict[WaitReason, float]:
        """Return seconds lost per slot so far, by reason."""
        self._settle()
        return dict(self._totals)

    @property
    def is_paused(self) -> bool:
        return self._paused

    @property
    def generating_s(self) -> float:
        """Return the seconds in which at least one slot generated."""
        self._settle()
        return self._generating_s

    @property
    def paused_s(self) -> float:
        """Return the seconds in which generation was paused."""
        self._settle()
        return self._paused_s

    def waiting(self) -> tuple[WaitReason | None, float]:
        """Return what the worker waits for while nothing generates, and for how many seconds.

        What its groups wait for comes first: empty slots get no lease because these groups are not done.
        """
        return self._waiting_for, self._clock.monotonic() - self._since

    def _counts(self, *, empty: bool = True) -> dict[WaitReason | None, int]:
        """Return the slots by what they wait for (None: they generate), with those that are empty or without."""
        counts: dict[WaitReason | None, int] = {None: 0, **dict.fromkeys(WaitReason, 0)}
        for slot in self._slots:
            state = slot.state
            counts[WaitReason.WEIGHTS if state is None and self._paused else state] += 1
        if empty:
            counts[self._idle] += max(0, self._num_slots - len(self._slots))
        return counts

    def _settle(self) -> None:
        now = self._clock.monotonic()
        elapsed, self._last = now - self._last, now
        counts = self._counts()
        for reason in WaitReason:
            self._totals[reason] += elapsed * counts[reason] / self._num_slots
        self._generating_s += elapsed if counts[None] else 0.0
        self._paused_s += elapsed if self._paused else 0.0

    def _look(self) -> None:
        counts = self._counts(empty=not self._slots)
        reason = None if counts[None] else max(WaitReason, key=lambda name: counts[name])
        if reason is not self._waiting_for:
            self._waiting_for, self._since = reason, self._clock.monotonic()

    def _set(self, slot: "Slot", state: WaitReason | None) -> None:
        if slot in self._slots and slot.state is not state:
            self._settle()
            slot.state = state
            self._look()

    def _close(self, slot: "Slot") -> None:
        self._settle()
        self._slots.discard(slot)
        self._look()


class Slot:
    """One group's slot. `state` None: it generates."""

    def __init__(self, owner: SlotWaits) -> None:
        """Made by `SlotWaits.open_slot`."""
        self._owner = owner
        self.state: WaitReason | None = WaitReason.WEIGHTS

    def works(self) -> None:
        self._owner._set(self, None)

    def waits(self, reason: WaitReason) -> None:
        self._owner._set(self, reason)

    def close(self) -> None:
        self._owner._close(self)


class GroupTimes:
    """Counts the members that generate; a slot waits for verifier or judge when none does and a verdict is out, and
    for what takes turns with the generations when neither is so.
    """

    def __init__(self, *, clock: clocks.Clock, slot: Slot, between: WaitReason | None = None) -> None:
        """`slot` belongs to the group. between: what is waited for between two generations, if anything."""
        self._clock, self._slot, self._between = clock, slot, between
        self._generating, self._verifying, self._judging = 0, 0, 0
        self.started_at = self.finished_at = clock.now()
        self.verify_s = 0.0
        self._tell()

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

    @contextlib.contextmanager
    def judging(self) -> Iterator[None]:
        """Within `verifying`: around a call of the judge."""
        self._judging += 1
        self._tell()
        try:
            yield
        finally:
            self._judging -= 1
            self._tell()

    def _tell(self) -> None:
        if self._generating:
            self._slot.works()
        elif self._judging:
            self._slot.waits(enums.WaitReason.JUDGE)
        elif self._verifying:
            self._slot.waits(enums.WaitReason.VERIFIER)
        elif self._between is not None:
            self._slot.waits(self._between)
