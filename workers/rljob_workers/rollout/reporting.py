"""What a rollout says of itself once per heartbeat: load, metrics, the probes' verdicts."""

import dataclasses

from rljob_api import types
from rljob_api.enums import DrainResult, ReceiverState, SourceFailure, SourceKind, SyncFailure, WaitReason
from rljob_workers.rollout import wait_accounting
from rljob_workers.rollout.engines import base
from rljob_workers.rollout.sync import receiver, states
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.weights import transfers

LAG_GRACE_S = 30.0
LAG_GRACE_SYNCS = 3.0
STUCK_UNREADY_S = 60.0
STUCK_DEAD_S = 180.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is seen at one moment; `num_generated` counts tokens since the start."""

    now_s: float
    state: ReceiverState
    started: bool
    served_step: int
    newest_step: int
    median_sync_s: float
    num_running: int
    num_generated: int
    paused: bool


class Readiness:
    """Remembers since when it lags and since when nothing moved. Read by the probes' thread."""

    def __init__(self, *, max_lag_steps: int) -> None:
        """Not ready before the first observation."""
        self._max_lag_steps = max_lag_steps
        self._was_ready = False
        self._lagging_since: float | None = None
        self._moved_at: float | None = None
        self._last: Observation | None = None
        self.ready: tuple[bool, str] = (False, "starting")
        self.alive: tuple[bool, str] = (True, "ok")

    def observe(self, observation: Observation) -> None:
        stuck_s = self._stuck_s(observation)
        self.alive = (stuck_s < STUCK_DEAD_S, "ok" if stuck_s < STUCK_DEAD_S else f"no token for {stuck_s:.0f} s")
        self.ready = self._judge(observation, stuck_s)
        self._was_ready = self._was_ready or self.ready[0]
        self._last = observation

    def _judge(self, observation: Observation, stuck_s: float) -> tuple[bool, str]:
        if not observation.started:
            return False, "loading the newest version"
        if not states.may_generate(observation.state):
            return False, f"weight receiver is {observation.state}"
        if stuck_s >= STUCK_UNREADY_S:
            return False, f"no token for {stuck_s:.0f} s"
        lag = observation.newest_step - observation.served_step
        if lag <= self._max_lag_steps:
            self._lagging_since = None
            return True, f"serves step {observation.served_step}"
        if self._lagging_since is None:
            self._lagging_since = observation.now_s
        grace_s = max(LAG_GRACE_S, LAG_GRACE_SYNCS * observation.median_sync_s)
        within = self._was_ready and observation.now_s - self._lagging_since <= grace_s
        return within, f"serves step {observation.served_step}, {lag} behind"

    def _stuck_s(self, observation: Observation) -> float:
        last = self._last
        moved = (
            last is None
            or not observation.num_running
            or observation.paused
            or observation.num_generated != last.num_generated
        )
        if moved or self._moved_at is None:
            self._moved_at = observation.now_s
        return observation.now_s - self._moved_at


class Reporting:
    """Reads engine, receiver and slots; writes metrics and readiness."""

    def __init__(
        self,
        *,
        engine: base.Engine,
        receiver: receiver.WeightReceiver,
        slots: wait_accounting.SlotWaits,
        probes: Readiness,
        metrics: metrics_module.Metrics,
        transfers: transfers.Transfers,
        clock: clocks.Clock,
    ) -> None:
        """Totals count from here. transfers: of the weights."""
        self._engine, self._receiver, self._slots, self._probes = engine, receiver, slots, probes
        self._metrics, self._clock, self._transfers = metrics, clock, transfers
        self._waited = dict.fromkeys(WaitReason, 0.0)
        self._paused_s = 0.0
        self._last_sync_at = 0.0
        # From 0: Prometheus sees no increase in a series that begins with its first event.
        for reason in SyncFailure:
            metrics.counter("rljob_weight_sync_failures_total").inc(0.0, reason=str(reason))
        for kind in SourceKind:
            metrics.counter("rljob_weight_source_bytes_total").inc(0.0, source=str(kind))
        for failure in SourceFailure:
            metrics.counter("rljob_weight_source_failures_total").inc(0.0, reason=str(failure))
        self._fetched, self._failures, self._served = dict.fromkeys(SourceKind, 0), dict.fromkeys(SourceFailure, 0), 0
        for result in DrainResult:
            metrics.histogram("rljob_drain_seconds").show(result=str(result))

    def observe(self, *, num_groups: int, num_failed_dumps: int) -> types.RolloutLoad:
        """Look at everything once, and return the load of `num_groups` groups."""
        self._judge()
        self._count()
        waiting_for, for_s = self._slots.waiting()
        return types.RolloutLoad(
            running_sequences=self._engine.num_running(),
            groups_in_flight=num_groups,
            generated_tokens=self._engine.num_generated(),
            prompt_tokens=self._engine.num_prompt_tokens(),
            generating_s=self._slots.generating_s,
            paused_s=self._slots.paused_s,
            wait_s={str(reason): seconds for reason, seconds in self._slots.totals().items()},
            waiting_for=str(waiting_for or ""),
            waiting_since=self._clock.now() - for_s if waiting_for else 0.0,
            dump_failures=num_failed_dumps,
        )

    def drained(self, seconds: float, result: DrainResult) -> None:
        self._metrics.histogram("rljob_drain_seconds").observe(seconds, result=str(result))

    def _judge(self) -> None:
        receiver = self._receiver
        self._probes.observe(
            Observation(
                now_s=self._clock.monotonic(),
                state=receiver.state,
                started=receiver.started,
                served_step=receiver.served.step,
                newest_step=receiver.newest_step,
                median_sync_s=receiver.median_sync_s,
                num_running=self._engine.num_running(),
                num_generated=self._engine.num_generated(),
                paused=self._slots.is_paused,
            )
        )

    def _count(self) -> None:
        for reason, seconds in self._slots.totals().items():
            self._metrics.counter("rljob_rollout_wait_seconds_total").inc(
                seconds - self._waited[reason], reason=str(reason)
            )
            self._waited[reason] = seconds
        paused_s = self._slots.paused_s
        self._metrics.counter("rljob_generation_paused_seconds_total").inc(paused_s - self._paused_s)
        self._paused_s = paused_s
        self._count_transfers()
        served = self._receiver.served
        self._metrics.gauge("rljob_rollout_serving_version").set(served.version)
        self._metrics.gauge("rljob_rollout_version_lag").set(max(0, self._receiver.newest_step - served.step))
        if self._receiver.changed_ratio is not None:
            self._metrics.gauge("rljob_weight_changed_ratio").set(self._receiver.changed_ratio)
        for sync in self._receiver.syncs:
            if sync.finished_at > self._last_sync_at:
                self._count_sync(sync)
                self._last_sync_at = sync.finished_at

    def _count_transfers(self) -> None:
        for kind, num_bytes in self._transfers.fetched_bytes.items():
            self._metrics.counter("rljob_weight_source_bytes_total").inc(
                num_bytes - self._fetched[kind], source=str(kind)
            )
            self._fetched[kind] = num_bytes
        for reason, count in self._transfers.failures.items():
            self._metrics.counter("rljob_weight_source_failures_total").inc(
                count - self._failures[reason], reason=str(reason)
            )
            self._failures[reason] = count
        served = self._transfers.served_bytes
        self._metrics.counter("rljob_weight_served_bytes_total").inc(served - self._served)
        self._served = served

    def _count_sync(self, sync: types.WeightSync) -> None:
        if sync.failure:
            reason = sync.failure.split(":", 1)[0]
            self._metrics.counter("rljob_weight_sync_failures_total").inc(reason=reason)
            return
        phases = {
            "fetch": sync.fetch_s,
            "verify": sync.verify_s,
            "pause": sync.pause_s,
            "apply": sync.apply_s,
            "total": sync.total_s,
        }
        for phase, seconds in phases.items():
            self._metrics.histogram("rljob_weight_sync_seconds").observe(seconds, phase=phase)
        fetched = self._metrics.counter("rljob_weight_sync_bytes_total")
        fetched.inc(sync.num_bytes - sync.delta_bytes, kind="full")
        fetched.inc(sync.delta_bytes, kind="delta")
