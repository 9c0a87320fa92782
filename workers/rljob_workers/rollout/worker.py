"""The rollout's loops: lease groups, run and submit them; heartbeat; drain.

    coordinator --LeaseGroups--> [lease loop] --one task a group--> [GroupRunner] --SubmitGroup--> coordinator
                                     ^ slot free, receiver serves        | episodes -> Admission -> engine
                                     |                                   | verdicts <- verifiers
    coordinator ---Watch-----> [watch loop] -------cancel, THEN want(v)--> [WeightReceiver.run] -> engine
    coordinator <--Heartbeat-- [heartbeat loop] ---cancel, THEN want(v)-------------^
                   renews leases; reports version, state, load, syncs
    SIGTERM, POST /stop, drain, finished --> no new lease; finish or release what is held within drain_s; return
    SIGTERM after POST /stop --> the time is up: release what is held now

Who waits for what: the lease loop for a free slot and the long poll; a group for the version that it was leased for,
the gate, the engine and the verifiers; a submit for the coordinator, for as long as it takes; no one for a weight
update except at the gate.

A version is announced the moment it is there, and groups that need it are leased at the same time: they wait here. An
announcement never sends anyone back, so it counts if it is newer than what is loaded; a heartbeat's answer counts
unless something newer was heard while it was under way, and is then asked for again.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine, Sequence

from rljob_api import enums, errors, types
from rljob_api.enums import DrainResult, WaitReason
from rljob_workers.rollout import dumps, group, reporting, wait_accounting
from rljob_workers.rollout.sync import receiver, states
from rljob_workers.rpc import work
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import retry

logger = logging.getLogger(__name__)

LEASE_WAIT_S = 2.0
REGISTER_DEADLINE_S = 300.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """From the role's config; `boot_id` is new for every process start."""

    pod: str
    boot_id: str
    initial_state_hash: str
    max_groups: int
    drain_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """The collaborators of a worker."""

    transport: work.WorkTransport
    runner: group.GroupRunner
    receiver: receiver.WeightReceiver
    waits: wait_accounting.SlotWaits
    report: reporting.Reporting
    dumper: dumps.Dumper
    clock: clocks.Clock
    on_session: Callable[[str], None]
    offer: Callable[[], types.WeightOffer] = lambda: types.NO_OFFER


@dataclasses.dataclass(slots=True)
class _ActiveLease:
    """A leased group and its task."""

    lease: types.GroupLease
    task: asyncio.Task[None]


class RolloutWorker:
    """One process's loops. `run` returns after a drain and raises what cannot be fixed here."""

    def __init__(self, options: WorkerOptions, parts: WorkerParts) -> None:
        """Nothing starts before `run`."""
        self._options, self._parts = options, parts
        self._leases: dict[types.LeaseId, _ActiveLease] = {}
        self._draining, self._slot_freed = asyncio.Event(), asyncio.Event()
        self._out_of_time = asyncio.Event()
        # Announcements, and leases of versions that were not announced yet; and whether to ask about one of them.
        self._num_heard = 0
        self._ask = asyncio.Event()
        self._registered: types.Session | None = None
        self._registering = asyncio.Lock()

    def drain(self) -> None:
        """Take no new lease, finish what is held, return from `run`. Idempotent."""
        self._draining.set()
        self._slot_freed.set()

    def hand_back(self) -> None:
        """Drain, and release at once what is not finished: this process is about to be killed. Idempotent."""
        self._out_of_time.set()
        self.drain()

    async def run(self) -> None:
        """Register, load the head, work until drained."""
        session = await self._register()
        async with asyncio.TaskGroup() as tasks:
            beats = tasks.create_task(self._heartbeats(session.heartbeat_s))
            watch = tasks.create_task(self._watch())
            starting = tasks.create_task(self._parts.receiver.start(session))
            stop = tasks.create_task(self._draining.wait())
            await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
            # A drain before the start has ended: nothing is held, and what is loading is given up.
            updates = tasks.create_task(self._parts.receiver.run()) if starting.done() else starting
            if starting.done():
                starting.result()
                await self._lease_until_draining(tasks)
            await self._finish_leases()
            # Once more: what was updated since the last heartbeat is reported, too.
            await self._heartbeat_once()
            for task in (beats, watch, updates, stop):
                task.cancel()

    async def _register(self) -> types.Session:
        options = self._options
        backoff = retry.Backoff(first_s=0.2, most_s=5.0)
        session = await retry.retry_async(
            lambda: self._parts.transport.register(
                pod=options.pod, boot_id=options.boot_id, initial_state_hash=options.initial_state_hash
            ),
            clock=self._parts.clock,
            deadline_s=REGISTER_DEADLINE_S,
            backoff=backoff,
        )
        self._parts.on_session(session.token)
        self._registered = session
        logger.info("registered; the head is version %d", session.head_version, extra={"version": session.head_version})
        return session

    async def _register_again(self, fenced: types.Session | None) -> None:
        """Register again after a call was fenced, once for all loops that noticed; refused again, this process ends."""
        async with self._registering:
            if self._registered is fenced:
                await self._register()

    # Leases

    async def _lease_until_draining(self, tasks: asyncio.TaskGroup) -> None:
        backoff = retry.Backoff(first_s=0.2, most_s=2.0)
        while not self._draining.is_set():
            capacity = self._options.max_groups - len(self._leases)
            if capacity <= 0 or not states.may_generate(self._parts.receiver.state):
                await self._room()
                continue
            grant = await self._lease(capacity)
            if grant is None:
                self._parts.waits.idle_because(WaitReason.COORDINATOR)
                await self._parts.clock.sleep(backoff.next_delay_s())
                continue
            backoff.reset()
            await self._take(grant, tasks)

    async def _room(self) -> None:
        """Wait for a free slot, a drain, or a while: the receiver does not say when it serves again."""
        self._slot_freed.clear()
        if self._draining.is_set():
            return
        waiters = {asyncio.ensure_future(self._slot_freed.wait()), asyncio.ensure_future(self._parts.clock.sleep(1.0))}
        _, pending = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        for waiter in pending:
            waiter.cancel()

    async def _lease(self, capacity: int) -> types.LeaseGrant | None:
        session = self._registered
        try:
            return await self._parts.transport.lease(
                capacity=capacity,
                serving_version=self._parts.receiver.served.version,
                wait_s=LEASE_WAIT_S,
                ahead=self._parts.receiver.keeps_up,
            )
        except errors.FencedError:
            await self._register_again(session)
        except errors.UnavailableError as error:
            logger.warning("could not lease: %s", error, extra={"error_class": error.name})
        return None

    async def _take(self, grant: types.LeaseGrant, tasks: asyncio.TaskGroup) -> None:
        if not grant.leases:
            reasons = {reason.value for reason in WaitReason}
            reason = WaitReason(grant.wait_reason) if grant.wait_reason in reasons else WaitReason.NO_PROMPTS
            self._parts.waits.idle_because(reason)
        else:
            self._parts.waits.reached()
        if any(lease.from_version > self._parts.receiver.target for lease in grant.leases):
            self._num_heard += 1
            self._ask.set()
        for lease in grant.leases:
            if self._draining.is_set():
                await self._release(lease.lease_id, "draining")
            else:
                self._leases[lease.lease_id] = _ActiveLease(lease=lease, task=tasks.create_task(self._work(lease)))
        if grant.finished:
            self.drain()

    # Groups

    async def _work(self, lease: types.GroupLease) -> None:
        slot = self._parts.waits.open_slot()
        try:
            scored = await self._parts.runner.run(lease, slot)
            if lease.kind is not enums.GroupKind.EXAMPLE:
                self._parts.dumper.dump(lease, scored)
            slot.waits(WaitReason.COORDINATOR)
            await self._submit(scored.group)
        except errors.WeightsError as error:
            await self._release(lease.lease_id, f"weights: {error}")
        finally:
            slot.close()
            self._leases.pop(lease.lease_id, None)
            self._slot_freed.set()

    async def _submit(self, group: types.PromptGroup) -> None:
        backoff = retry.Backoff(first_s=0.2, most_s=5.0)
        while True:
            session = self._registered
            try:
                answer = await self._parts.transport.submit(group)
            except errors.FencedError:
                await self._register_again(session)
            except errors.UnavailableError as error:
                # The answer may be lost, not the group: it is asked again until it comes.
                logger.warning("submit unanswered: %s", error, extra={"group": group.group_id})
            except errors.TooLargeError as error:
                # It would be too large each time: what is handed in instead says so, and costs the prompt an attempt.
                logger.error("group not sent: %s", error, extra={"group": group.group_id, "error_class": error.name})
                group = _without_rows(group, error)
                continue
            except errors.RLJobError as error:
                logger.error("group refused: %s", error, extra={"group": group.group_id, "error_class": error.name})
                await self._release(group.lease_id, f"refused: {error.name}")
                return
            else:
                logger.debug("submitted: %s", answer.outcome, extra={"group": group.group_id})
                return
            await self._parts.clock.sleep(backoff.next_delay_s())

    async def _release(self, lease_id: types.LeaseId, reason: str) -> bool:
        try:
            await self._parts.transport.release(lease_id, reason)
        except errors.RLJobError as error:
            # It expires by itself.
            logger.warning("could not release: %s", error, extra={"lease": lease_id, "error_class": error.name})
            return False
        return True

    # Heartbeats

    async def _heartbeats(self, every_s: float) -> None:
        while True:
            answered = await self._heartbeat_once()
            rest = asyncio.ensure_future(self._parts.clock.sleep(every_s))
            # The coordinator admits groups when it hears that a version is served, and may have to say what to load.
            news = [asyncio.ensure_future(event) for event in self._news()] if answered else []
            try:
                await asyncio.wait({rest, *news}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for waiting in (rest, *news):
                    waiting.cancel()

    def _news(self) -> tuple[Coroutine[None, None, object], ...]:
        return self._parts.receiver.reported(), self._ask.wait()

    async def _watch(self) -> None:
        backoff = retry.Backoff(first_s=0.2, most_s=5.0)
        while True:
            session = self._registered
            try:
                async for announcement in self._parts.transport.watch():
                    backoff.reset()
                    self._num_heard += 1
                    self._cancel(announcement.cancel)
                    if announcement.load_version > self._parts.receiver.target:
                        self._parts.receiver.want(announcement.load_version)
            except errors.FencedError:
                await self._register_again(session)
            except errors.RLJobError as error:
                # Heartbeats say the same, only later.
                logger.debug(
                    "could not receive announcements of versions: %s", error, extra={"error_class": error.name}
                )
            await self._parts.clock.sleep(backoff.next_delay_s())

    async def _heartbeat_once(self) -> bool:
        """Report and apply the instructions of the reply; False without a reply."""
        receiver, session = self._parts.receiver, self._registered
        # Before the call: what is heard while it is under way may be newer than its answer.
        self._ask.clear()
        heard = self._num_heard
        load = self._parts.report.observe(num_groups=len(self._leases), num_failed_dumps=self._parts.dumper.num_failed)
        syncs = receiver.syncs
        try:
            reply = await self._parts.transport.heartbeat(
                lease_ids=tuple(self._leases),
                serving_version=receiver.served.version,
                receiver_state=receiver.state,
                load=load,
                syncs=syncs,
                draining=self._draining.is_set(),
                offer=self._parts.offer(),
            )
        except errors.FencedError:
            await self._register_again(session)
            return False
        except errors.UnavailableError as error:
            logger.warning("heartbeat unanswered: %s", error, extra={"error_class": error.name})
            return False
        # Those that were sent: others may have come meanwhile.
        receiver.delivered(len(syncs))
        # Hopeless generation ends before a new version is taken: it would only be frozen and resumed in vain.
        self._cancel(reply.cancel)
        if self._num_heard == heard:
            receiver.want(reply.load_version)
        else:
            self._ask.set()
        if reply.drain or reply.finished:
            self.drain()
        return True

    def _cancel(self, lease_ids: Sequence[types.LeaseId]) -> None:
        for lease_id in lease_ids:
            if lease_id in self._leases:
                self._leases[lease_id].task.cancel()

    # Drain

    async def _finish_leases(self) -> None:
        began = self._parts.clock.monotonic()
        running = {lease.task for lease in self._leases.values()}
        if running:
            ends = (
                asyncio.ensure_future(self._parts.clock.sleep(self._options.drain_s)),
                asyncio.ensure_future(self._out_of_time.wait()),
                asyncio.ensure_future(asyncio.wait(running)),
            )
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
        left = dict(self._leases)
        for lease in left.values():
            lease.task.cancel()
        # All at once: a process whose time is up has two seconds.
        returned = await asyncio.gather(*(self._release(lease_id, "drained") for lease_id in left))
        result = DrainResult.FINISHED if not left else DrainResult.HANDED_BACK if all(returned) else DrainResult.KILLED
        self._parts.report.drained(self._parts.clock.monotonic() - began, result)


def _without_rows(group: types.PromptGroup, error: errors.TooLargeError) -> types.PromptGroup:
    """Return the group with a failure in place of each member."""
    members = {row.sample_index for row in group.trajectories} | {failure.sample_index for failure in group.failures}
    failures = [
        types.MemberFailure(
            sample_index=index, role=enums.Role.ROLLOUT, reason=error.name, detail=str(error)[:500], infra=False
        )
        for index in sorted(members)
    ]
    return dataclasses.replace(group, trajectories=(), failures=failures)
