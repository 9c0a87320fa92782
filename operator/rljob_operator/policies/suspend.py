"""What to stop next on the way to Suspended (operator reference 8.3, 8.5). Pure: the pods that are left decide, so an
operator that starts in the middle goes on in the same direction.
"""

import dataclasses
import enum

# On top of the drain, for a checkpoint and the ledger's last write.
_GRACE_S = 120.0


class SuspendStage(enum.StrEnum):
    """What is being stopped. The trainer's checkpoint and the rollouts' drain come first, the ledger last."""

    TRAINER_AND_ROLLOUTS = "trainer_and_rollouts"
    VERIFIERS = "verifiers"
    COORDINATOR = "coordinator"
    SUSPENDED = "suspended"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodsLeft:
    """Pods of the job by role, Terminating ones included."""

    trainer: int
    rollout: int
    verifier: int
    coordinator: int


def stage(left: PodsLeft) -> SuspendStage:
    """Return what to stop now; SUSPENDED only when no pod exists at all."""
    if left.trainer or left.rollout:
        return SuspendStage.TRAINER_AND_ROLLOUTS
    if left.verifier:
        return SuspendStage.VERIFIERS
    return SuspendStage.COORDINATOR if left.coordinator else SuspendStage.SUSPENDED


def is_overdue(*, asked_at: float, drain_s: float, now: float) -> bool:
    """Return whether pods that are left are now deleted with a short grace: drain + 120 s after suspend was asked."""
    return now >= asked_at + drain_s + _GRACE_S


def goes_on_stopping(*, suspend: bool, was_suspending: bool, current: SuspendStage) -> bool:
    """Return whether to stop further: a stop that began is completed first, even if suspend is taken back."""
    return current is not SuspendStage.SUSPENDED and (suspend or was_suspending)
