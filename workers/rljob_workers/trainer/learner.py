"""One step's optimizer updates on this rank: forward, loss, backward, update, and what was measured.

Losses are shares of the minibatch's loss over all ranks; since gradients are averaged over ranks they are multiplied by
the number of ranks. Ranks with fewer micro-batches than others, or none, run idle ones: from ZeRO-2 on forward and
backward are collective.
"""

import dataclasses
import math
import resource
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from rljob_api import errors, names, roles, types
from rljob_workers.runtime import clock as clocks
from rljob_workers.trainer import batch as batches
from rljob_workers.trainer import loss, preparation, schedule, stats

Stat = names.StepStat
# So many updates in a row without a finite gradient are no accident.
MAX_SKIPPED_IN_A_ROW = 5


class UpdateOutcome(Protocol):
    """An optimizer update: the norm before clipping, and whether it was applied."""

    @property
    def grad_norm(self) -> float:
        """Global L2 norm."""

    @property
    def applied(self) -> bool:
        """False if the norm was not finite."""


class PolicyEngine(Protocol):
    """What the learner needs of the model and its optimizer; `engine.Engine` in production."""

    world_size: int
    device: torch.device

    def forward(self, tensors: batches.BatchTensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (logprobs, entropies) [N] with gradient."""

    def score(self, tensors: batches.BatchTensors) -> torch.Tensor:
        """Return logprobs [N] without gradient."""

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of `loss`."""

    def step(self, learning_rate: float) -> UpdateOutcome:
        """Reduce, clip, update."""

    def total(self, values: Sequence[float]) -> list[float]:
        """Sum over ranks."""

    def largest(self, values: Sequence[float]) -> list[float]:
        """Maximum over ranks."""


@dataclasses.dataclass(frozen=True, slots=True)
class Learned:
    """The statistics of a step, and the counts that become metrics."""

    stats: Mapping[Stat, float]
    nonfinite_values: float
    nonfinite_norms: int
    masked: Mapping[str, float]


@dataclasses.dataclass(slots=True)
class _Measured:
    tally: stats.Tally
    outcomes: list[UpdateOutcome] = dataclasses.field(default_factory=list)
    computed_tokens: int = 0
    proximal_s: float = 0.0
    forward_backward_s: float = 0.0
    optimizer_s: float = 0.0
    learning_rate: float = 0.0


class Learner:
    """Applies steps to the engine. `updates_applied` and `skipped_in_a_row` go into checkpoints."""

    def __init__(
        self,
        *,
        engine: PolicyEngine,
        reference: preparation.Reference | None = None,
        config: roles.TrainerConfig,
        clock: clocks.Clock,
        updates_applied: int = 0,
        skipped_in_a_row: int = 0,
    ) -> None:
        """Continue after `updates_applied` updates. `reference`: the frozen model of the KL term."""
        self._engine, self._config, self._clock = engine, config, clock
        self._reference = reference
        self.updates_applied, self.skipped_in_a_row = updates_applied, skipped_in_a_row

    def learn(self, header: types.BatchHeader, micro_batches: Sequence[types.MicroBatch]) -> Learned:
        """Apply the updates of a step. Raises RLJobError after too many skipped updates, WireError for a bad batch."""
        updates = self._config.minibatches * self._config.epochs
        if header.num_updates != updates or len(header.minibatches) != updates:
            raise errors.WireError(f"the batch has {header.num_updates} updates where the config has {updates}")
        work = self._lay_out(micro_batches, updates)
        measured = _Measured(stats.Tally(self._engine.device))
        started = self._clock.monotonic()
        mean_weight = preparation.prepare(work, self._engine, self._reference, self._config)
        measured.proximal_s = self._clock.monotonic() - started
        for update in range(updates):
            self._update(update, work[update], header, mean_weight, measured)
        return self._report(header, measured)

    def _lay_out(self, micro_batches: Sequence[types.MicroBatch], updates: int) -> list[list[preparation.Work]]:
        """Return the work of each update, of equal length on all ranks and never empty."""
        work: list[list[preparation.Work]] = [[] for _ in range(updates)]
        for micro_batch in micro_batches:
            if not 0 <= micro_batch.update < updates:
                raise errors.WireError(f"a micro-batch belongs to update {micro_batch.update} of {updates}")
            work[micro_batch.update].append(
                preparation.Work(batches.to_tensors(micro_batch, self._engine.device), idle=False)
            )
        most = self._engine.largest([float(len(part)) for part in work])
        for update, part in enumerate(work):
            idle = batches.to_tensors(batches.idle_batch(update), self._engine.device)
            part.extend(preparation.Work(idle, idle=True) for _ in range(max(1, int(most[update])) - len(part)))
        return work

    def _update(
        self,
        update: int,
        part: list[preparation.Work],
        header: types.BatchHeader,
        mean_weight: float,
        measured: _Measured,
    ) -> None:
        started = self._clock.monotonic()
        for item in part:
            self._accumulate(update, item, header, mean_weight, measured)
        accumulated = self._clock.monotonic()
        measured.learning_rate = schedule.learning_rate(
            self.updates_applied,
            config=self._config.optimizer,
            updates_per_step=self._config.minibatches * self._config.epochs,
            max_steps=self._config.max_steps,
        )
        outcome = self._engine.step(measured.learning_rate)
        measured.outcomes.append(outcome)
        measured.forward_backward_s += accumulated - started
        measured.optimizer_s += self._clock.monotonic() - accumulated
        self._count(outcome)

    def _accumulate(
        self, update: int, item: preparation.Work, header: types.BatchHeader, mean_weight: float, measured: _Measured
    ) -> None:
        logprobs, entropies = self._engine.forward(item.tensors)
        if item.idle:
            self._engine.backward(logprobs.sum() * 0.0)
            return
        outputs = loss.policy_loss(
            loss.LossInputs(
                logprobs=logprobs,
                entropies=entropies,
                behave=item.tensors.behave,
                advantages=item.tensors.advantages,
                version_steps=item.tensors.version_steps,
                row_index=item.tensors.row_index,
                row_tokens=item.tensors.row_tokens,
                row_masked=item.tensors.row_masked,
                minibatch=header.minibatches[update],
                trainer_version=header.trainer_version,
                proximal=item.proximal,
                reference=item.reference,
                kept=item.kept,
                mean_weight=mean_weight,
            ),
            self._config.loss,
        )
        self._engine.backward(outputs.loss * self._engine.world_size)
        measured.computed_tokens += item.tensors.tokens.numel()
        first_epoch = update < self._config.minibatches
        chosen = self._config.loss
        moved = update > 0 and (chosen.type == "reinforce" or chosen.proximal in ("loglinear", "behaviour"))
        measured.tally.add(outputs.tally, batch_facts=first_epoch, mismatch=first_epoch and not moved)

    def _count(self, outcome: UpdateOutcome) -> None:
        if outcome.applied:
            self.updates_applied += 1
            self.skipped_in_a_row = 0
            return
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise errors.RLJobError(
                f"{self.skipped_in_a_row} updates in a row had a gradient norm that is not finite; the last good state"
                " is the newest checkpoint. Lower spec.trainer.optimizer.learningRate, or look at mismatch/kl"
            )

    def _report(self, header: types.BatchHeader, measured: _Measured) -> Learned:
        tally = measured.tally
        totals = self._engine.total([*tally.sums.tolist(), float(measured.computed_tokens)])
        peak_rss = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        peaks = self._engine.largest([*tally.peaks.tolist(), peak_rss])
        values = stats.report(totals, peaks, header.minibatches)
        first = header.minibatches[: self._config.minibatches]
        values |= {
            Stat.FORWARD_BACKWARD_S: measured.forward_backward_s,
            Stat.OPTIMIZER_S: measured.optimizer_s,
            Stat.PROXIMAL_S: measured.proximal_s,
            Stat.LEARNING_RATE: measured.learning_rate,
            Stat.SKIPPED: float(sum(not outcome.applied for outcome in measured.outcomes)),
            Stat.TOKENS_TRAINED: float(sum(part.num_tokens for part in first)),
            Stat.TOKENS_COMPUTED: totals[-1],
            Stat.ROWS: float(sum(part.num_rows for part in first)),
            Stat.DENOMINATOR: self._denominator(header.minibatches[0]),
            Stat.PEAK_RSS_BYTES: peaks[-1],
        }
        norms = [outcome.grad_norm for outcome in measured.outcomes if outcome.applied]
        if norms:
            values[Stat.GRAD_NORM] = sum(norms) / len(norms)
        tokens = totals[stats.Sum.TOKENS] or 1.0
        return Learned(
            stats={name: value for name, value in values.items() if math.isfinite(value)},
            nonfinite_values=totals[stats.Sum.NONFINITE],
            nonfinite_norms=len(measured.outcomes) - len(norms),
            masked={
                "correction": totals[stats.Sum.CORRECTION_MASKED] / tokens,
                "truncated": totals[stats.Sum.TRUNCATED_MASKED] / tokens,
                "m2po": stats.m2_share(totals),
            },
        )

    def _denominator(self, minibatch: types.Minibatch) -> float:
        config = self._config.loss
        if config.aggregation == "tokenMean":
            return float(minibatch.num_tokens)
        return minibatch.num_rows * (config.constant_denominator if config.aggregation == "constant" else 1.0)
