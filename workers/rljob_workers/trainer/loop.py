"""The step loop of a rank.

    coordinator --fetch(k)--> [ forward, backward, update ] x updates --> commit(k) --> publish --> checkpoint --> k + 1
                                                             rank 0          |  export, then a thread behind
                                                                             '- every n steps, atomic

All ranks take part in updates, exports and checkpoints; rank 0 alone talks of them to the coordinator. A fetch blocks
while no batch is ready (staleness, rollouts), a publish while the one before is in flight; both waits are counted. The
order is what a crash relies on: a version of step k exists only after k is committed, and a checkpoint at k only after
its version was handed over. A checkpoint that cannot be written is tried again n steps later, twice at most. One that
goes to an object store is committed once it is there, some steps later; a stop and the end wait for that.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Sequence

from rljob_api import enums, errors, types
from rljob_workers.runtime import clock as clocks
from rljob_workers.trainer import batch_source, learner, metering
from rljob_workers.trainer.state import keeping, publish, saving

logger = logging.getLogger(__name__)
Stat = enums.StepStat

# Checkpoints in a row that may fail while training continues: a longer outage is worth a new process, and to be seen.
_MOST_FAILED_SAVES = 2
# How long the last checkpoint may take to its store where a pod is stopped, which has 10 minutes for that, the step and
# the writing (operator/rljob_operator/resources/workloads.py).
_STOP_SETTLE_S = 480.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """The loop's own settings. every 0: never, but at the end. finish_settle_s: how long the last checkpoint may take
    to its store where the run ends.
    """

    publish_every: int
    checkpoint_every: int
    export: bool
    finish_settle_s: float


class StepLoop:
    """Runs steps until the coordinator says stop or finished. `meter` None: this rank reports nothing."""

    def __init__(
        self,
        *,
        config: LoopConfig,
        source: batch_source.BatchSource,
        learner: learner.Learner,
        publisher: publish.VersionPublisher,
        checkpoints: saving.RankCheckpoints,
        meter: metering.Meter | None,
        clock: clocks.Clock,
        completed: int,
    ) -> None:
        """`completed`: the step of the checkpoint that was loaded, 0 for none; its state is published."""
        self._config, self._clock = config, clock
        self._source, self._learner, self._publisher, self._checkpoints = source, learner, publisher, checkpoints
        self._meter = meter
        self._completed = self._saved = self._published = self._durable_step = completed
        # Seconds of publishing and saving since the last commit; they are reported with the next step.
        self._behind: dict[Stat, float] = {}
        self._committed_at = clock.monotonic()
        self._failed_saves = 0

    @property
    def completed(self) -> int:
        """Return V, the number of completed steps."""
        return self._completed

    def run(self) -> enums.ExitCode:
        """Return OK when the run is finished, STOPPED_ON_REQUEST when it can continue later."""
        while True:
            requested_at = self._clock.monotonic()
            with self._waiting("batch"):
                header, micro_batches = self._source.fetch(self._completed + 1)
            waited_s = self._clock.monotonic() - requested_at
            if header.kind is enums.BatchKind.STOP:
                return self._stop()
            if header.kind is enums.BatchKind.FINISHED:
                return self._finish()
            self._step(header, micro_batches, waited_s)

    def _step(self, header: types.BatchHeader, micro_batches: Sequence[types.MicroBatch], waited_s: float) -> None:
        started_at = self._clock.now()
        learned = self._learner.learn(header, micro_batches)
        self._completed += 1
        self._commit(learned, started_at, waited_s)
        # What supervised steps led to is where RL begins: no group is sampled before it is published.
        if self._completed % self._config.publish_every == 0 or self._completed == header.sft_steps:
            self._publish()
        if self._config.checkpoint_every and self._completed % self._config.checkpoint_every == 0:
            self._try_to_save()
        self._keep(self._checkpoints.advance(), final=False)

    def _commit(self, learned: learner.Learned, started_at: float, waited_s: float) -> None:
        began, self._committed_at = self._committed_at, self._clock.monotonic()
        total_s = self._committed_at - began
        stats = {**learned.stats, **self._behind, Stat.WAIT_S: waited_s, Stat.TOTAL_S: total_s}
        self._behind = {}
        if self._meter is None:
            return
        self._source.commit_step(
            step=self._completed,
            stats={str(name): value for name, value in stats.items()},
            started_at=started_at,
            finished_at=self._clock.now(),
            storage_problem=self._checkpoints.problem(),
        )
        self._meter.step(self._completed, learned, stats)
        self._meter.checkpoint_lag(self._completed - self._durable_step)

    def _publish(self) -> None:
        started = self._clock.monotonic()
        # `publish` would wait for the one before by itself: here the time counts as a wait.
        with self._waiting("publish"):
            self._publisher.flush()
        self._publisher.publish(self._completed)
        self._published = self._completed
        self._behind[Stat.PUBLISH_S] = self._clock.monotonic() - started

    def _waiting(self, reason: str) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self._meter is None else self._meter.waiting(reason)

    def _try_to_save(self) -> None:
        """Save, but let training continue where that fails for now: the checkpoint before is still there."""
        try:
            self._save()
        except errors.CheckpointError as error:
            self._failed_saves += 1
            if self._failed_saves > _MOST_FAILED_SAVES:
                raise
            if self._meter is not None:
                logger.error("continuing without a checkpoint: %s", error, extra={"step": self._completed})

    def _save(self) -> None:
        """Write a checkpoint of the last completed step, unless there is one."""
        if self._saved == self._completed:
            return
        started = self._clock.monotonic()
        self._write_checkpoint()
        seconds = self._clock.monotonic() - started
        self._saved = self._completed
        self._behind[Stat.CHECKPOINT_S] = seconds
        self._checkpoints.offer(self._completed, seconds=seconds)

    def _keep(self, durable: keeping.DurableCheckpoint | None, *, final: bool) -> None:
        """Tell the coordinator of a checkpoint that lasts: it may let go what leads up to it."""
        if durable is None:
            return
        self._durable_step = durable.step
        if self._meter is not None:
            self._source.commit_checkpoint(step=durable.step, uri=durable.uri, seconds=durable.seconds, final=final)
            self._meter.checkpointed(durable.seconds, self._clock.now())
            self._meter.checkpoint_lag(self._completed - self._durable_step)
        self._checkpoints.prune()

    def _settle(self, *, timeout_s: float, final: bool) -> None:
        with self._waiting("checkpoint"):
            durable = self._checkpoints.settle(timeout_s=timeout_s)
        if durable is None and final:
            # Nothing was trained since the start: what it began with is what there is.
            durable = keeping.DurableCheckpoint(
                step=self._completed, uri=self._checkpoints.uri(self._completed), seconds=0.0
            )
        self._keep(durable, final=final)

    def _write_checkpoint(self) -> None:
        try:
            with self._waiting("checkpoint"):
                self._checkpoints.save(self._completed)
        except errors.CheckpointError:
            if self._meter is not None:
                self._meter.checkpoint_failed()
            raise
        self._failed_saves = 0

    def _stop(self) -> enums.ExitCode:
        """Leave a checkpoint of the last completed step, from which the next start continues."""
        # First: the grace of a pod that is taken away may be too short for the rest. A version that is still on its way
        # is published again from the checkpoint.
        self._save()
        self._settle(timeout_s=_STOP_SETTLE_S, final=False)
        self._publisher.flush()
        self._say("stopped on request", "stop")
        return enums.ExitCode.STOPPED_ON_REQUEST

    def _finish(self) -> enums.ExitCode:
        """Publish what is not, export, and save: the coordinator learns last that nothing is missing."""
        if self._published != self._completed:
            self._publish()
        self._publisher.flush()
        if self._config.export:
            self._checkpoints.export()
        self._save()
        self._settle(timeout_s=self._config.finish_settle_s, final=True)
        self._say("finished", "finish")
        return enums.ExitCode.OK

    def _say(self, what: str, event: str) -> None:
        if self._meter is not None:
            logger.info("%s after step %d", what, self._completed, extra={"event": event, "step": self._completed})
