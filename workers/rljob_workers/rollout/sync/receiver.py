"""Brings the engine from one version to the next without ever serving a mixture, and without ever staying paused.

    announced or answered: v -> want(v) -> run():  stage (thread, engine generates)  -> close the gate
                                                   pause -> load -> verify -> commit -> resume   <- watchdog, outside
                                                   open the gate, report
    broken before load:  one resume, old version continues; else restart
    broken from load on: REFUSING: fail held requests, repair and load the staged image again; else restart

Requirements and failure rows: docs/design/weights.md#s-8. Torch-free: moves bytes and orders only.
"""

import asyncio
import dataclasses
import logging
import statistics
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from rljob_api import enums, errors, types
from rljob_workers.rollout import request_gate
from rljob_workers.rollout.engines import base
from rljob_workers.rollout.sync import staging, states
from rljob_workers.rollout.sync.states import Event
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import retry

logger = logging.getLogger(__name__)

T = TypeVar("T")

_KEPT_SYNCS = 64


def sync_failure_of(error: errors.RLJobError) -> enums.SyncFailure:
    """Return the label of a failure: the engine's own error counts, where the update gave up because of one."""
    cause = error.__cause__ if isinstance(error.__cause__, errors.EngineError) else error
    if isinstance(cause, errors.EngineTimeoutError):
        return enums.SyncFailure.TIMEOUT
    if isinstance(cause, errors.EngineError):
        return enums.SyncFailure.APPLY
    return enums.SyncFailure.DIGEST if isinstance(cause, errors.DigestError) else enums.SyncFailure.FETCH


class Stager(Protocol):
    """What the receiver needs of `staging.Stager`."""

    layout: types.Layout
    initial: types.WeightVersion

    def stage(self, version: types.VersionId) -> staging.Staged:
        """Fetch and verify; blocking."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptions:
    """How updates go. in_flight: update under running requests; recompute: their KV is computed again.

    pause_deadline_s: how long an engine may show no progress while it is paused; restart_deadline_s: how long a rebuilt
    one may take, which loads its model first. Beyond that the process ends and is replaced.
    """

    in_flight: bool
    recompute: bool
    pause_deadline_s: float
    restart_deadline_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The version that the engine serves, and its step."""

    version: types.VersionId
    step: int


class WeightReceiver:
    """One engine's weights. `run` is the only coroutine that changes them."""

    def __init__(
        self,
        *,
        engine: base.Engine,
        gate: request_gate.RequestGate,
        stager: Stager,
        options: UpdateOptions,
        clock: clocks.Clock,
        on_pause: Callable[[bool], None],
        to_thread: Callable[[Callable[[], staging.Staged]], Awaitable[staging.Staged]] = asyncio.to_thread,
    ) -> None:
        """The engine must be started; `on_pause` hears True when generation stops and False when it continues."""
        self._engine, self._gate, self._stager = engine, gate, stager
        self._options, self._clock, self._on_pause, self._to_thread = options, clock, on_pause, to_thread
        self._state = enums.ReceiverState.STARTING
        self._served = Served(version=stager.initial.version, step=0)
        self._target = self._served.version
        # How often a version was asked for, and how many attempts at one have failed.
        self._num_wants = self._num_failures = 0
        self._keeps_up = True
        self._newest_step, self._started = 0, False
        self._changed_ratio: float | None = None
        self._wake, self._changed, self._news = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._syncs: list[types.WeightSync] = []
        self._sync_seconds: list[float] = []

    @property
    def state(self) -> enums.ReceiverState:
        return self._state

    @property
    def served(self) -> Served:
        """Return what the engine serves, or served before it began to refuse."""
        return self._served

    @property
    def target(self) -> types.VersionId:
        """Return the version that was asked for last."""
        return self._target

    @property
    def keeps_up(self) -> bool:
        """Return whether the last attempt at a version succeeded: groups may be leased for the one that comes next."""
        return self._keeps_up

    @property
    def started(self) -> bool:
        """Return whether the head that was at the start has been served."""
        return self._started

    @property
    def newest_step(self) -> int:
        """Return the newest published step that this receiver has heard of."""
        return self._newest_step

    @property
    def changed_ratio(self) -> float | None:
        """Return the share of elements, 0..1, that the version fetched last changed against the one before it.

        None while only the model files were read.
        """
        return self._changed_ratio

    @property
    def median_sync_s(self) -> float:
        """Return the median seconds of the last updates, 0 before the first."""
        return statistics.median(self._sync_seconds) if self._sync_seconds else 0.0

    @property
    def syncs(self) -> tuple[types.WeightSync, ...]:
        """Return the reports that no heartbeat has delivered yet."""
        return tuple(self._syncs)

    def delivered(self, count: int) -> None:
        """Forget the `count` oldest reports."""
        del self._syncs[:count]
        if not self._syncs:
            self._news.clear()

    async def reported(self) -> None:
        """Return once there is a report that no heartbeat has delivered."""
        await self._news.wait()

    def want(self, version: types.VersionId) -> None:
        """Ask for `version`; returns at once. Also looks whether the engine lives."""
        self._target = version
        self._num_wants += 1
        self._notify()
        if version != self._served.version or not self._engine.alive():
            self._wake.set()

    async def start(self, session: types.Session) -> None:
        """Label the initial weights, load the head if there is one, and open the gate. Repeats until it succeeds."""
        await self._engine.commit(self._stager.initial.version)
        self._move(Event.LABELLED)
        self._newest_step, self._target = session.head_step, session.head_version
        backoff = retry.Backoff(first_s=0.5, most_s=15.0)
        while self._served.version != self._target:
            if not await self._attempt(self._target):
                await self._clock.sleep(backoff.next_delay_s())
        self._started = True
        self._open()

    async def run(self) -> None:
        """Follow `want` for ever. Raises EngineError if the engine cannot be brought back: the process must end."""
        backoff = retry.Backoff(first_s=0.5, most_s=15.0)
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._engine.alive():
                await self._revive()
            while self._target != self._served.version:
                if await self._attempt(self._target):
                    backoff.reset()
                else:
                    await self._clock.sleep(backoff.next_delay_s())

    async def serves(self, lease: types.GroupLease) -> None:
        """Return when the engine serves a version that the group of `lease` may begin with.

        Raises WeightsError once that version is not to be had soon: an attempt at one failed, or the coordinator wants
        an older one served. The group is better off elsewhere.
        """
        failures, wants = self._num_failures, self._num_wants
        while not self._fits(lease):
            await self._changed.wait()
            if lease.pinned_version is not None and self._served.version > lease.pinned_version:
                raise errors.WeightsError(f"version {self._served.version} is served, not {lease.pinned_version}")
            if self._served.version >= lease.from_version:
                continue
            if self._num_failures != failures:
                raise errors.WeightsError(f"version {lease.from_version} is not to be had for now: an update failed")
            if self._num_wants != wants and self._target < lease.from_version:
                raise errors.WeightsError(f"version {self._target} is to be served, not {lease.from_version}")

    def _fits(self, lease: types.GroupLease) -> bool:
        if not states.may_generate(self._state) or not self._gate.is_open:
            return False
        if lease.pinned_version is not None:
            return self._served.version == lease.pinned_version
        return self._served.version >= lease.from_version and self._served.step >= lease.version_floor_step

    async def _attempt(self, version: types.VersionId) -> bool:
        began = self._clock.monotonic()
        try:
            staged = await self._stage(version)
            if self._target < version:
                # An evaluation of an older one began meanwhile: sequences must not meet a newer version and then it.
                self._move(Event.LET_GO)
                return True
            await self._swap(staged, began)
        except (errors.WeightsError, errors.WireError) as error:
            logger.warning("version %d was not taken: %s", version, error, extra={"version": version})
            self._report_failure(version, error, began)
            self._keeps_up = False
            self._num_failures += 1
            self._notify()
            return False
        self._keeps_up = True
        return True

    def _report_failure(self, version: types.VersionId, error: errors.RLJobError, began: float) -> None:
        self._report(
            types.WeightSync(
                version=version,
                step=0,
                fetch_s=0.0,
                verify_s=0.0,
                pause_s=0.0,
                apply_s=0.0,
                total_s=self._clock.monotonic() - began,
                num_bytes=0,
                requests_in_flight=0,
                finished_at=self._clock.now(),
                failure=f"{sync_failure_of(error)}: {error.name}: {error}"[:500],
            )
        )

    async def _stage(self, version: types.VersionId) -> staging.Staged:
        self._move(Event.FETCH)
        try:
            staged = await self._to_thread(lambda: self._stager.stage(version))
        except errors.RLJobError:
            self._move(Event.FETCH_FAILED)
            raise
        self._newest_step = max(self._newest_step, staged.manifest.step)
        if version != self._stager.initial.version:
            self._changed_ratio = staged.manifest.changed_ratio
        self._move(Event.FETCHED)
        return staged

    async def _swap(self, staged: staging.Staged, began: float) -> None:
        self._gate.close()
        if not self._options.in_flight:
            await self._gate.drained()
        in_flight, paused_at = self._gate.num_in_flight, self._clock.monotonic()
        apply_s = 0.0
        self._on_pause(True)
        try:
            apply_s = await self._bounded(self._replace(staged), self._options.pause_deadline_s)
        except errors.EngineError as error:
            await self._recover(staged, error, began)
        finally:
            self._on_pause(False)
            # Where recovery failed as well the weights are a mixture: the gate stays closed.
            if states.may_generate(self._state):
                self._open()
        ended = self._clock.monotonic()
        self._sync_seconds = [*self._sync_seconds[-8:], ended - began]
        self._report(
            types.WeightSync(
                version=staged.manifest.version,
                step=staged.manifest.step,
                fetch_s=staged.fetch_s,
                verify_s=staged.verify_s,
                pause_s=ended - paused_at,
                apply_s=apply_s,
                total_s=ended - began,
                num_bytes=staged.num_bytes,
                delta_bytes=staged.delta_bytes,
                requests_in_flight=in_flight,
                finished_at=self._clock.now(),
            )
        )

    async def _replace(self, staged: staging.Staged) -> float:
        await self._engine.pause(clear_cache=self._options.recompute)
        self._move(Event.PAUSED)
        began = self._clock.monotonic()
        await self._load(staged)
        return self._clock.monotonic() - began

    async def _load(self, staged: staging.Staged) -> None:
        self._move(Event.APPLY)
        await self._engine.load(self._stager.layout)
        self._move(Event.APPLIED)
        # The label changes while nothing is decoded and only after every tensor was checked: no token carries a version
        # that did not sample it.
        await self._engine.verify()
        await self._engine.commit(staged.manifest.version)
        await self._engine.resume()
        self._served = Served(version=staged.manifest.version, step=staged.manifest.step)
        self._move(Event.COMMITTED)

    async def _bounded(self, work: Awaitable[T], deadline_s: float) -> T:
        """Run `work` under a watchdog that does not depend on it. Raises EngineError when it bites.

        An engine that continues loading is slow, not dead: the time restarts with whatever it has loaded since.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                loaded = self._engine.loaded_bytes()
                watchdog = asyncio.ensure_future(self._clock.sleep(deadline_s))
                try:
                    await asyncio.wait({task, watchdog}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    watchdog.cancel()
                if not task.done() and self._engine.loaded_bytes() == loaded:
                    raise errors.EngineTimeoutError(
                        f"the engine did not finish in {self._state} and loaded nothing for {deadline_s:g} s"
                    )
            return task.result()
        finally:
            task.cancel()

    async def _recover(self, staged: staging.Staged, error: errors.EngineError, began: float) -> None:
        logger.error("weight update broke in %s: %s", self._state, error, extra={"version": staged.manifest.version})
        if self._state in (enums.ReceiverState.STAGED, enums.ReceiverState.PAUSED) and self._engine.alive():
            await self._let_go(staged, error, began)
            return
        await self._forward(staged, error, began)

    async def _let_go(self, staged: staging.Staged, error: errors.EngineError, began: float) -> None:
        # Nothing was loaded yet: the old version is whole.
        try:
            await self._bounded(self._engine.resume(), self._options.pause_deadline_s)
        except errors.EngineError:
            await self._forward(staged, error, began)
            return
        self._move(Event.LET_GO)
        raise errors.WeightsError(f"pausing failed, version {self._served.version} stays: {error}") from error

    async def _forward(self, staged: staging.Staged, error: errors.EngineError, began: float) -> None:
        self._report_failure(staged.manifest.version, error, began)
        self._move(Event.BROKEN)
        try:
            await self._bounded(self._repair_and_load(staged), self._options.pause_deadline_s)
        except errors.EngineError as again:
            logger.error("forward recovery failed: %s", again, extra={"version": staged.manifest.version})
            self._move(Event.BROKEN)
            await self._restart(staged)

    async def _repair_and_load(self, staged: staging.Staged) -> None:
        # A call that failed or hung may still have taken effect: pause again before the weights are touched.
        await self._engine.pause(clear_cache=self._options.recompute)
        await self._engine.abort_all()
        await self._engine.repair()
        await self._load(staged)

    async def _restart(self, staged: staging.Staged) -> None:
        """A new engine process, then the staged image by the ordinary path, behind the closed gate."""
        await self._bounded(self._engine.restart(), self._options.restart_deadline_s)
        self._move(Event.RESTART)
        await self._engine.commit(self._stager.initial.version)
        self._move(Event.LABELLED)
        # The image is still staged; the machine only has to pass through these states.
        for event in (Event.FETCH, Event.FETCHED):
            self._move(event)
        await self._bounded(self._replace(staged), self._options.pause_deadline_s)

    async def _revive(self) -> None:
        """The engine process died while serving: restart it and come back on the version that was served."""
        self._gate.close()
        self._move(Event.BROKEN)
        self._on_pause(True)
        try:
            version = self._served.version
            staged = await self._to_thread(lambda: self._stager.stage(version))
            await self._restart(staged)
        finally:
            self._on_pause(False)
        self._open()

    def _open(self) -> None:
        # During the start an older version than the head may be whole, but no one is to see it.
        if self._started:
            self._gate.open(self._served.version)
        self._notify()

    def _report(self, sync: types.WeightSync) -> None:
        self._syncs = [*self._syncs[-(_KEPT_SYNCS - 1) :], sync]
        self._news.set()

    def _move(self, event: Event) -> None:
        self._state = states.after(self._state, event)
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
