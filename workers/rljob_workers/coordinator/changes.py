"""Waking those who wait for the ledger to change, and of many rollouts only those whose lease is there.

No wake-up is lost between a look at the ledger and the wait: a mark is taken before the look. The ledger's thread takes
a pulse after each commit that changed something, and it arrives here after the answers of that commit.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Coroutine
from typing import Any

from rljob_api import enums
from rljob_workers.coordinator.ledger import database, evaluations, examples, groups, queries, sessions, steps, versions
from rljob_workers.coordinator.policy import staleness
from rljob_workers.runtime import clock as clocks

# Waiting groups of an evaluation that are counted: more than a fleet takes at once.
_MOST_COUNTED = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """The ledger after a commit, as far as calls wait for it.

    head_step: of the head. room: training groups that may be leased, by rollouts that serve a step from `floor` to
    `recorded`; queued: how many are open already. examples: how many of those may be leased, by anyone. evaluating:
    version of the evaluation under way; evaluations: how many are unfinished; eval_queued: groups of the one under way
    that no one has.
    """

    head_version: int
    head_step: int
    recorded: int
    committed: int
    attempt: int | None
    stop_step: int | None
    completion: queries.Completion
    room: int
    examples: int
    queued: int
    floor: int
    evaluating: int | None
    evaluations: int
    eval_queued: int

    @property
    def batches(self) -> tuple[object, ...]:
        """Return what a rank waits for: when this changes, it looks again."""
        return (self.recorded, self.committed, self.attempt, self.stop_step, self.completion.last_step)


def of(ledger: database.Ledger) -> Pulse:
    counts, attempt = groups.counts(ledger), sessions.trainer_attempt(ledger)
    running, head = evaluations.oldest_evaluation(ledger), versions.head(ledger)
    return Pulse(
        head_version=head.version,
        head_step=head.step,
        recorded=counts.recorded,
        committed=counts.committed,
        attempt=attempt,
        stop_step=None if attempt is None else steps.stop_step(ledger, attempt),
        completion=queries.completion(ledger),
        room=groups.capacity(ledger, counts),
        examples=examples.room(ledger),
        queued=counts.queued,
        floor=staleness.version_floor(
            ledger.spec, accepted=counts.accepted, running=counts.running, first_step=ledger.sft_steps
        ),
        evaluating=None if running is None else running[1],
        evaluations=len(evaluations.pinned_versions(ledger)),
        eval_queued=0 if running is None else evaluations.eval_queued(ledger, running[0], most=_MOST_COUNTED),
    )


class Signal:
    """A count of changes, and a way to wait for the next one."""

    def __init__(self, clock: clocks.Clock) -> None:
        """Belongs to the running event loop."""
        self._clock = clock
        self._event, self._count = asyncio.Event(), 0

    @property
    def mark(self) -> int:
        """Return the count; take it before looking, give it to `wait`."""
        return self._count

    def notify(self) -> None:
        self._count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, mark: int, timeout_s: float) -> None:
        """Return once something changed after `mark`, or after `timeout_s`."""
        if self._count == mark and timeout_s > 0:
            await until(self._event.wait(), self._clock, timeout_s)


async def until(event: Coroutine[None, None, object], clock: clocks.Clock, timeout_s: float) -> None:
    """Return once what is awaited is done, or after `timeout_s`."""
    waiters: set[asyncio.Future[Any]] = {asyncio.ensure_future(event), asyncio.ensure_future(clock.sleep(timeout_s))}
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()


@dataclasses.dataclass(slots=True, kw_only=True)
class LeaseDemand:
    """A lease that was refused: to whom, what that rollout serves, how many groups it takes, and what was missing.

    step: of the version that it serves, None if that is not registered. evaluates: it may take groups of evaluations.
    ahead: it takes groups for the version that it is told to load, too.
    """

    token: str
    version: int
    step: int | None
    capacity: int
    reason: str
    evaluates: bool
    ahead: bool = False
    granted: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


class Changes(Signal):
    """Every change of the ledger; and apart, changes of what ranks wait for, of what rollouts are to load, and leases
    that are there.
    """

    def __init__(self, clock: clocks.Clock, pulse: Pulse) -> None:
        """`pulse` is the ledger's present one."""
        super().__init__(clock)
        self._loop = asyncio.get_running_loop()
        self.batches, self.loads = Signal(clock), Signal(clock)
        self.pulse = pulse
        self._demands: dict[int, LeaseDemand] = {}
        self._number = 0

    @property
    def num_waiting_for_a_lease(self) -> int:
        return len(self._demands)

    def pulse_from_thread(self, pulse: Pulse) -> None:
        """Take a pulse over, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
            self._loop.call_soon_threadsafe(self.take, pulse)

    def take(self, pulse: Pulse) -> None:
        """Take a pulse over and wake who can continue."""
        before, self.pulse = self.pulse, pulse
        super().notify()
        if before.batches != pulse.batches:
            self.batches.notify()
        if (before.head_version, before.evaluating) != (pulse.head_version, pulse.evaluating):
            self.loads.notify()
        ending = pulse.completion.committed >= pulse.completion.last_step
        # Who evaluates is decided anew for each evaluation.
        everybody = before.evaluating != pulse.evaluating or (ending and before.completion != pulse.completion)
        self._grant(pulse, everybody=everybody)

    def notify(self) -> None:
        """Wake all waiters of every kind."""
        super().notify()
        self.batches.notify()
        self.loads.notify()
        self._grant(self.pulse, everybody=True)

    def _grant(self, pulse: Pulse, *, everybody: bool) -> None:
        """Wake as many of those who were refused as there is room for, who waits longest first."""
        room, eval_queued = max(pulse.room, pulse.examples), pulse.eval_queued
        for request in self._demands.values():
            if everybody:
                request.granted.set()
            elif eval_queued > 0 and may_evaluate(request, pulse):
                eval_queued -= request.capacity
                request.granted.set()
            elif room > 0 and may_lease(request, pulse):
                room -= request.capacity
                request.granted.set()
            if room <= 0 and eval_queued <= 0 and not everybody:
                return

    def serves(self, token: str) -> None:
        """Wake the leases of a rollout that serves another version now: it has to ask again, for that one."""
        for request in self._demands.values():
            if request.token == token:
                request.granted.set()

    async def wait_for_lease(self, request: LeaseDemand, mark: int, timeout_s: float) -> None:
        """Return once there may be a lease, or after `timeout_s`; `mark` was taken before it was refused."""
        if timeout_s <= 0:
            return
        if self._count != mark and (may_evaluate(request, self.pulse) or may_lease(request, self.pulse)):
            return
        self._number += 1
        number = self._number
        self._demands[number] = request
        try:
            await until(request.granted.wait(), self._clock, timeout_s)
        finally:
            del self._demands[number]


def may_evaluate(request: LeaseDemand, pulse: Pulse) -> bool:
    """Return whether a group of an evaluation may be there for who was refused. Pure."""
    if pulse.evaluating is None or pulse.eval_queued <= 0 or not request.evaluates:
        return False
    return request.version == pulse.evaluating or (request.ahead and request.version < pulse.evaluating)


def may_lease(request: LeaseDemand, pulse: Pulse) -> bool:
    """Return whether a training group, or an example, may be there for who was refused. Pure."""
    if pulse.examples > 0:
        return True
    steps = [request.step] if request.step is not None else []
    # Who evaluates stays with that version: the head is not what it is told to load.
    if request.ahead and not request.evaluates and request.version < pulse.head_version:
        steps.append(pulse.head_step)
    if pulse.room <= 0 or not any(pulse.floor <= step <= pulse.recorded for step in steps):
        return False
    return pulse.queued > 0 or request.reason != enums.WaitReason.NO_PROMPTS
