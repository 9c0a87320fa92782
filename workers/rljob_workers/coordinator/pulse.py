"""What a commit of the ledger says to those who wait: taken once a commit, so that only who can go on looks again."""

import dataclasses

from rljob_workers.coordinator import ledger as ledgers
from rljob_workers.coordinator import staleness
from rljob_workers.coordinator.transitions import facts

# Waiting groups of an evaluation that are counted: more than a fleet takes at once.
_MOST_COUNTED = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """The ledger after a commit, as far as calls wait for it.

    room: training groups that may be leased, by rollouts that serve a step from `floor` to `recorded`; queued: how many
    are open already. evaluating: version of the evaluation under way; evaluations: how many are unfinished;
    eval_queued: groups of the one under way that nobody has.
    """

    head_version: int
    recorded: int
    committed: int
    attempt: int | None
    stop_step: int | None
    completion: facts.Completion
    room: int
    queued: int
    floor: int
    evaluating: int | None
    evaluations: int
    eval_queued: int

    @property
    def batches(self) -> tuple[object, ...]:
        """Return what a rank waits for: when this changes, it looks again."""
        return (self.recorded, self.committed, self.attempt, self.stop_step, self.completion.last_step)


def of(ledger: ledgers.Ledger) -> Pulse:
    """Return the pulse of a ledger."""
    counts, attempt = ledger.counts(), ledger.trainer_attempt()
    running = ledger.oldest_evaluation()
    return Pulse(
        head_version=ledger.head().version,
        recorded=counts.recorded,
        committed=counts.committed,
        attempt=attempt,
        stop_step=None if attempt is None else ledger.stop_step(attempt),
        completion=ledger.completion(),
        room=ledger.capacity(counts),
        queued=counts.queued,
        floor=staleness.version_floor(ledger.bounds, accepted=counts.accepted, running=counts.running),
        evaluating=None if running is None else running[1],
        evaluations=len(ledger.pinned_versions()),
        eval_queued=0 if running is None else ledger.eval_queued(running[0], most=_MOST_COUNTED),
    )
