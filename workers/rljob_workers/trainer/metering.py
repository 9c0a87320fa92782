"""A step's statistics as Prometheus series, and its one line in the log."""

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

from rljob_api import enums
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.trainer import learner

logger = logging.getLogger(__name__)
Stat = enums.StepStat

_GAUGES = {
    Stat.ENTROPY: "rljob_entropy",
    Stat.ENTROPY_COEF: "rljob_entropy_coef",
    Stat.GRAD_NORM: "rljob_grad_norm",
    Stat.LEARNING_RATE: "rljob_learning_rate",
    Stat.REF_KL: "rljob_kl_reference",
    Stat.TEACHER_KL: "rljob_kl_teacher",
    Stat.MISMATCH_KL: "rljob_mismatch_kl",
    Stat.LOGPROB_ABS_DIFF: "rljob_logprob_abs_diff",
    Stat.MFU: "rljob_mfu_ratio",
}
_CLIPS = {Stat.CLIP_LOW: "low", Stat.CLIP_HIGH: "high", Stat.CLIP_DUAL: "dual"}
_MEMORY = {Stat.PEAK_GPU_ALLOCATED_BYTES: "allocated", Stat.PEAK_GPU_RESERVED_BYTES: "reserved"}
_PHASES = {
    Stat.TOTAL_S: "total",
    Stat.WAIT_S: "wait",
    Stat.PROXIMAL_S: "proximal",
    Stat.FORWARD_BACKWARD_S: "forward_backward",
    Stat.OPTIMIZER_S: "optimizer",
    Stat.PUBLISH_S: "publish",
    Stat.CHECKPOINT_S: "checkpoint",
}
_LOSSES = {
    Stat.LOSS: "policy",
    Stat.KL_LOSS: "kl",
    Stat.ENTROPY_LOSS: "entropy",
    Stat.VALUE_LOSS: "value",
}
_NONFINITE = ("loss", "gradient", "logprob")


class Meter:
    """Exports steps; only rank 0 has one."""

    def __init__(self, metrics: metrics_module.Metrics, clock: clocks.Clock) -> None:
        """A wait that continues is counted whenever `metrics` is read."""
        self._metrics = metrics
        self._waits = Waits(metrics.counter("rljob_trainer_wait_seconds_total"), clock)
        metrics.before_exposition(self._waits.settle)
        # From 0: Prometheus sees no increase in a series that begins with its first event.
        for what in _NONFINITE:
            metrics.counter("rljob_nonfinite_total").inc(0.0, what=what)
        for reason in ("batch", "publish", "checkpoint", learner.PEERS):
            metrics.counter("rljob_trainer_wait_seconds_total").inc(0.0, reason=reason)

    def step(self, step: int, learned: learner.Learned, stats: Mapping[Stat, float]) -> None:
        """Set the gauges of a finished step and log its line. `stats` holds the loop's own seconds too."""
        for stat, gauge in _GAUGES.items():
            if stat in stats:
                self._metrics.gauge(gauge).set(stats[stat])
        for stat, bound in _CLIPS.items():
            if stat in stats:
                self._metrics.gauge("rljob_clip_fraction").set(stats[stat], bound=bound)
        for stat, kind in _MEMORY.items():
            if stat in stats:
                self._metrics.gauge("rljob_gpu_memory_bytes").set(stats[stat], kind=kind)
        for stat, phase in _PHASES.items():
            if stat in stats:
                self._metrics.histogram("rljob_step_seconds").observe(stats[stat], phase=phase)
        for stat, component in _LOSSES.items():
            if stat in stats:
                self._metrics.gauge("rljob_loss").set(stats[stat], component=component)
        for reason, share in learned.masked.items():
            self._metrics.gauge("rljob_masked_token_ratio").set(share, reason=reason)
        self._metrics.counter("rljob_tokens_total").inc(stats[Stat.TOKENS_TRAINED], kind="trained")
        for what in _NONFINITE:
            self._metrics.counter("rljob_nonfinite_total").inc(learned.nonfinite.get(what, 0.0), what=what)
        logger.info(
            "finished step %d: loss %s, grad norm %s, entropy %s, engine gap %s, waited %.1f s, worked %.1f s",
            step,
            *(_text(stats.get(stat)) for stat in (Stat.LOSS, Stat.GRAD_NORM, Stat.ENTROPY, Stat.LOGPROB_ABS_DIFF)),
            stats.get(Stat.WAIT_S, 0.0),
            sum(stats.get(stat, 0.0) for stat in (Stat.PROXIMAL_S, Stat.FORWARD_BACKWARD_S, Stat.OPTIMIZER_S)),
            extra={"event": "step", "step": step},
        )

    def waiting(self, reason: str) -> AbstractContextManager[None]:
        """Count the seconds of a block in which the loop cannot work, while they pass."""
        return self._waits.waiting(reason)

    def checkpointed(self, seconds: float, now: float) -> None:
        self._metrics.histogram("rljob_checkpoint_seconds").observe(seconds)
        self._metrics.gauge("rljob_checkpoint_last_success_timestamp_seconds").set(now)

    def checkpoint_failed(self) -> None:
        self._metrics.counter("rljob_checkpoint_failures_total").inc()

    def checkpoint_lag(self, steps: int) -> None:
        self._metrics.gauge("rljob_checkpoint_lag_steps").set(steps)

    def uploaded(self, num_bytes: int, seconds: float) -> None:
        """Count a checkpoint that is whole in its object store; the upload thread calls it."""
        self._metrics.counter("rljob_checkpoint_upload_bytes_total").inc(num_bytes)
        self._metrics.histogram("rljob_checkpoint_upload_seconds").observe(seconds)

    def upload_failed(self) -> None:
        """Count a try that failed; the upload thread calls it."""
        self._metrics.counter("rljob_checkpoint_upload_failures_total").inc()


class Waits:
    """Counts seconds in which the step loop cannot work while they pass, in a counter with the label `reason`.

    Counted at its end only, a wait would be a jump after a silence: a rate over a shorter window would not show it, and
    a wait that never ends would not be seen at all. One wait at a time; a metrics scrape may settle it meanwhile.
    """

    def __init__(self, counter: metrics_module.Counter, clock: clocks.Clock) -> None:
        self._counter, self._clock = counter, clock
        self._lock = threading.Lock()
        self._reason, self._since = "", 0.0

    @contextlib.contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        """Count for as long as the block runs, however it ends."""
        with self._lock:
            self._reason, self._since = reason, self._clock.monotonic()
        try:
            yield
        finally:
            self.settle()
            with self._lock:
                self._reason = ""

    def settle(self) -> None:
        """Count what has passed of the current wait, if there is one."""
        with self._lock:
            if self._reason:
                now = self._clock.monotonic()
                self._counter.inc(now - self._since, reason=self._reason)
                self._since = now


def _text(value: float | None) -> str:
    """Return a statistic for the log: a step without groups has no loss, one without fresh tokens no gap."""
    return "none" if value is None else f"{value:.3g}"
