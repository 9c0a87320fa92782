"""One step's optimizer updates on this rank: forward, loss, backward, update, and what was measured.

Losses are shares of the minibatch's loss over all ranks; since gradients are averaged over ranks they are multiplied by
the number of ranks. Ranks with fewer micro-batches than others, or none, run idle ones: from ZeRO-2 on forward and
backward are collective. A critic takes the same minibatches; while it warms up, the policy stays as it is.
"""

import contextlib
import dataclasses
import math
import resource
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from rljob_api import enums, errors, types
from rljob_api.manifest.base import with_parts
from rljob_api.manifest.job import JobSpec
from rljob_workers.runtime import clock as clocks
from rljob_workers.trainer import critic as critics
from rljob_workers.trainer import pre_update
from rljob_workers.trainer.algorithms import distillation, entropy, loss, policy_losses, statistics, supervised
from rljob_workers.trainer.engine import mfu, schedule
from rljob_workers.trainer.model import batch_tensors, logprobs

Stat = enums.StepStat
# Why a rank waits in a collective of a few numbers.
PEERS = "peers"
_COUNTS = (Stat.MISMATCH_TOKENS, Stat.STALE_CACHE_TOKENS)


class PolicyEngine(Protocol):
    """What the learner needs of the model and its optimizer; `deepspeed.Engine` in production."""

    world_size: int
    device: torch.device
    # None where the CPU computes.
    accelerator: mfu.Accelerator | None

    def forward(self, tensors: batch_tensors.BatchTensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (logprobs, entropies) [N] with gradient."""

    def forward_taught(
        self, tensors: batch_tensors.BatchTensors, lesson: logprobs.Likeliest
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return also the agreements [N] with a lesson [N, K], `logprobs.selected_logprobs`; all with gradient."""

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        """Return logprobs [N] without gradient."""

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of `loss`."""

    def step(self, learning_rate: float) -> schedule.StepOutcome:
        """Reduce, clip, update."""

    def add_to_average(self, *, first: bool) -> None:
        """Count the weights into their mean, which begins with the `first` ones."""

    def take_average(self) -> None:
        """Put the mean in the place of the masters; the weights follow with the next update."""

    def total(self, values: Sequence[float]) -> list[float]:
        """Sum over ranks."""

    def largest(self, values: Sequence[float]) -> list[float]:
        """Maximum over ranks."""


def end_with_average(engine: PolicyEngine) -> schedule.StepOutcome:
    """Give an engine the mean of its weights: an update at a rate of 0 brings the masters to the weights, however they
    are divided.
    """
    engine.take_average()
    idle = batch_tensors.to_tensors(batch_tensors.idle_batch(0), engine.device)
    engine.backward(engine.forward(idle)[0].sum() * 0.0)
    return engine.step(0.0)


class Teacher(pre_update.Teacher, Protocol):
    """The model of spec.teacher."""

    # None for a mixture of experts.
    size: mfu.ModelSize | None


@dataclasses.dataclass(frozen=True, slots=True)
class Learned:
    """The statistics of a step, and what becomes metrics: values that are not finite, by what; masked shares by why."""

    stats: Mapping[Stat, float]
    nonfinite: Mapping[str, float]
    masked: Mapping[str, float]


@dataclasses.dataclass(slots=True)
class _Measured:
    tally: statistics.Tally
    outcomes: list[schedule.StepOutcome] = dataclasses.field(default_factory=list)
    critic_outcomes: list[schedule.StepOutcome] = dataclasses.field(default_factory=list)
    computed_tokens: int = 0
    proximal_s: float = 0.0
    forward_backward_s: float = 0.0
    optimizer_s: float = 0.0
    learning_rate: float = 0.0
    flops: float = 0.0


class Learner:
    """Applies steps to the engine. `count` and `entropy_coef` go into checkpoints."""

    def __init__(
        self,
        *,
        engine: PolicyEngine,
        reference: pre_update.Scorer | None = None,
        teacher: Teacher | None = None,
        critic: critics.Critic | None = None,
        spec: JobSpec,
        clock: clocks.Clock,
        count: schedule.UpdateCount | None = None,
        entropy_coef: entropy.AdaptiveCoefficient | None = None,
        waiting: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """Continue after `count`, with `entropy_coef`.

        `reference`: the frozen model of the KL term; `teacher`: that of spec.teacher; `waiting`: what counts waits.
        """
        self._waiting = waiting
        self.count = count or schedule.UpdateCount()
        # Supervised steps are this learner's with another loss, no other models; updates are counted on.
        self._supervised: Learner | None = None
        if spec.sft is not None:
            self._supervised = Learner(
                engine=engine,
                spec=with_parts(supervised.spec_of(spec), sft=None),
                clock=clock,
                count=self.count,
                waiting=waiting,
            )
        self._engine, self._spec, self._clock = engine, spec, clock
        self._algorithm = spec.algorithm
        self._reference, self._critic, self._teacher = reference, critic, teacher
        self.entropy_coef = entropy_coef or entropy.AdaptiveCoefficient.of(self._algorithm)

    def learn(self, header: types.BatchHeader, micro_batches: Sequence[types.MicroBatch]) -> Learned:
        """Apply the updates of a step. Raises RLJobError after too many skipped updates, WireError for a bad batch."""
        if header.supervised and self._supervised is not None:
            learned = self._supervised._learn(header, micro_batches)
            return dataclasses.replace(learned, stats=supervised.measured(learned.stats), masked={})
        return self._learn(header, micro_batches)

    def _learn(self, header: types.BatchHeader, micro_batches: Sequence[types.MicroBatch]) -> Learned:
        num_updates = self._algorithm.updates_per_step
        if header.num_updates != num_updates or len(header.minibatches) != num_updates:
            raise errors.WireError(f"the batch has {header.num_updates} updates where the config has {num_updates}")
        work, observed = self._lay_out(header, micro_batches)
        measured = _Measured(statistics.Tally(self._engine.device))
        started = self._clock.monotonic()
        teacher = self._teacher if self._is_taught(header) else None
        num_likeliest = 0 if self._spec.teacher is None else self._spec.teacher.top_k or 0
        prepared = pre_update.prepare(
            work,
            self._engine,
            self._reference,
            self._algorithm,
            self._critic,
            teacher,
            num_likeliest,
            has_advantages=self._has_advantages(header),
        )
        measured.proximal_s = self._clock.monotonic() - started
        measured.flops = self._flops(header, micro_batches)
        for update in range(num_updates):
            self._update(update, work[update], header, prepared.mean_weight, observed, measured)
        self._average(header.step, measured)
        return self._report(header, measured, prepared)

    def _is_taught(self, header: types.BatchHeader) -> bool:
        """Return whether the teacher scores a step, which is one of RL."""
        return self._teacher is not None and self._spec.is_taught(header.step - header.sft_steps)

    def _has_advantages(self, header: types.BatchHeader) -> bool:
        """Return whether tokens of a step have advantages: not where a teacher's likeliest ones are all it learns."""
        teacher = self._spec.teacher
        return teacher is None or not self._is_taught(header) or distillation.gives_advantages(teacher)

    def _flops(self, header: types.BatchHeader, micro_batches: Sequence[types.MicroBatch]) -> float:
        """Return this rank's operations of the step, 0 where utilisation cannot be computed."""
        chip = self._engine.accelerator
        if chip is None or chip.size is None or chip.peak_flops is None:
            return 0.0
        taught = 0.0
        if self._teacher is not None and self._is_taught(header):
            taught = mfu.scoring_flops(self._teacher.size, micro_batches)
        return taught + mfu.step_flops(
            chip.size,
            micro_batches,
            trains_policy=self._critic is None or not self._critic.warms_up(header),
            num_scores=(self._has_advantages(header) and pre_update.scores_first(self._algorithm))
            + (self._reference is not None),
            has_critic=self._critic is not None,
        )

    def _lay_out(
        self, header: types.BatchHeader, micro_batches: Sequence[types.MicroBatch]
    ) -> tuple[list[list[pre_update.Work]], statistics.Observed]:
        """Return the work of each update, as long on all ranks and never empty, and what observed rows stand for."""
        num_updates = header.num_updates
        work: list[list[pre_update.Work]] = [[] for _ in range(num_updates)]
        for micro_batch in micro_batches:
            if not 0 <= micro_batch.update < num_updates:
                raise errors.WireError(f"a micro-batch belongs to update {micro_batch.update} of {num_updates}")
            work[micro_batch.update].append(
                pre_update.Work(batch_tensors.to_tensors(micro_batch, self._engine.device), idle=False)
            )
        first = [item.tensors for part in work[: self._algorithm.minibatches] for item in part]
        with self._waiting(PEERS):
            most = self._engine.largest([float(len(part)) for part in work])
            computed = self._engine.total(self._computed(first, header))
        minibatches = header.minibatches[: self._algorithm.minibatches]
        observed = statistics.Observed.of(minibatches, trained=computed[:2], counted=computed[2:])
        for update, part in enumerate(work):
            idle = batch_tensors.to_tensors(batch_tensors.idle_batch(update), self._engine.device)
            part.extend(pre_update.Work(idle, idle=True) for _ in range(max(1, int(most[update])) - len(part)))
        return work, observed

    def _computed(self, parts: Sequence[batch_tensors.BatchTensors], header: types.BatchHeader) -> list[float]:
        """Return tokens and rows of this rank that are trained, then those that are only looked at."""
        totals = [0.0] * 4
        for tensors in parts:
            observed = self._observed(tensors, header)
            for place, chosen in ((0, ~observed), (2, observed)):
                totals[place] += float(tensors.row_tokens[chosen].sum())
                totals[place + 1] += float(chosen.sum())
        return totals

    def _observed(self, tensors: batch_tensors.BatchTensors, header: types.BatchHeader) -> torch.Tensor:
        """Return which rows [rows] are only looked at: without advantage, and where no term of the loss needs them."""
        if self._algorithm.trains_zero_advantage or self._is_taught(header):
            return torch.zeros_like(tensors.row_idle)
        return tensors.row_idle & ~tensors.row_masked

    def _update(
        self,
        update: int,
        part: list[pre_update.Work],
        header: types.BatchHeader,
        mean_weight: float,
        observed: statistics.Observed,
        measured: _Measured,
    ) -> None:
        warming = self._critic is not None and self._critic.warms_up(header)
        started = self._clock.monotonic()
        for item in part:
            if not warming:
                self._accumulate(update, item, header, mean_weight, observed, measured)
            if self._critic is not None:
                self._accumulate_values(self._critic, item, header.minibatches[update], measured)
        accumulated = self._clock.monotonic()
        measured.forward_backward_s += accumulated - started
        if not warming:
            self._step(header, measured)
        if self._critic is not None:
            measured.critic_outcomes.append(self._critic.step(header))
        measured.optimizer_s += self._clock.monotonic() - accumulated

    def _step(self, header: types.BatchHeader, measured: _Measured) -> None:
        warmup_steps = self._algorithm.critic.warmup_steps if self._algorithm.critic else 0
        # Each phase has a schedule of its own; a supervised step is one update.
        before, max_steps = header.sft_steps, self._spec.max_steps - header.sft_steps - warmup_steps
        if header.supervised:
            before, max_steps = 0, header.sft_steps
        measured.learning_rate = schedule.learning_rate(
            max(0, self.count.applied - before),
            config=self._spec.trainer.optimizer,
            updates_per_step=self._algorithm.updates_per_step,
            max_steps=max_steps,
        )
        outcome = self._engine.step(measured.learning_rate)
        measured.outcomes.append(outcome)
        self.count.add(outcome, rate_field="spec.trainer.optimizer.learningRate")

    def _average(self, step: int, measured: _Measured) -> None:
        """Count the weights of the last steps, and let the run end with their mean."""
        place = schedule.place_in_average(step, config=self._spec.trainer.optimizer, max_steps=self._spec.max_steps)
        if place is None:
            return
        started = self._clock.monotonic()
        self._engine.add_to_average(first=place.is_first)
        if place.is_last:
            end_with_average(self._engine)
        measured.optimizer_s += self._clock.monotonic() - started

    def _accumulate_values(
        self, critic: critics.Critic, item: pre_update.Work, minibatch: types.Minibatch, measured: _Measured
    ) -> None:
        tally = critic.accumulate(
            item.tensors,
            old_values=None if item.idle or item.values is None else item.values.tokens,
            returns=item.returns,
            minibatch=minibatch,
            world_size=self._engine.world_size,
        )
        if tally is not None:
            measured.tally.add(tally, batch_facts=False, mismatch=False)

    def _accumulate(
        self,
        update: int,
        item: pre_update.Work,
        header: types.BatchHeader,
        mean_weight: float,
        observed: statistics.Observed,
        measured: _Measured,
    ) -> None:
        agreements = None
        if item.lesson is None:
            logprobs, entropies = self._engine.forward(item.tensors)
        else:
            logprobs, entropies, agreements = self._engine.forward_taught(item.tensors, item.lesson)
        if item.idle:
            # No gradient, but as many backwards as the other ranks: from ZeRO-2 on each is collective.
            self._engine.backward(logprobs.sum() * 0.0)
            return
        advantages = item.tensors.advantages
        if item.teacher is not None and self._spec.teacher is not None:
            advantages = distillation.advantages(logprobs, item.teacher, advantages, self._spec.teacher)
        outputs = loss.policy_loss(
            loss.LossInputs(
                logprobs=logprobs,
                entropies=entropies,
                behavior=item.tensors.behavior,
                advantages=advantages,
                version_steps=item.tensors.version_steps,
                oldest_step=item.tensors.oldest_step,
                row_index=item.tensors.row_index,
                row_tokens=item.tensors.row_tokens,
                row_masked=item.tensors.row_masked,
                minibatch=header.minibatches[update],
                trainer_version=header.trainer_version,
                proximal=item.proximal,
                reference=item.reference,
                keep_mask=item.keep_mask,
                entropy_mask=item.entropy_mask,
                entropy_coef=self.entropy_coef.applied(self._algorithm.entropy),
                mean_weight=mean_weight,
                row_observed=self._observed(item.tensors, header),
                observed=observed,
            ),
            self._algorithm.loss,
        )
        whole = outputs.loss
        if item.teacher is not None and self._spec.teacher is not None:
            trained = ~item.tensors.row_masked[item.tensors.row_index]
            outputs.tally.put(distillation.sums(logprobs, item.teacher, trained), {})
            outputs.tally.sums[statistics.Sum.NONFINITE] += (~torch.isfinite(item.teacher)).sum()
            if agreements is not None:
                taught = distillation.loss(agreements, trained, header.minibatches[update], self._spec.teacher)
                outputs.tally.sums[statistics.Sum.LOSS] += taught.detach().double()
                whole = whole + taught
        self._engine.backward(whole * self._engine.world_size)
        measured.computed_tokens += item.tensors.tokens.numel()
        first_epoch = update < self._algorithm.minibatches
        # Where log-probabilities of the policy that the step starts from were not computed, only the first update's can
        # be compared with the engine: later forwards are of a policy that has moved.
        uses_proximal = policy_losses.find(self._algorithm.loss).uses_proximal
        moved = update > 0 and (item.proximal is None or not uses_proximal)
        measured.tally.add(outputs.tally, batch_facts=first_epoch, mismatch=first_epoch and not moved)

    def _report(self, header: types.BatchHeader, measured: _Measured, prepared: pre_update.Prepared) -> Learned:
        tally = measured.tally
        sums = [*tally.sums.tolist(), measured.flops, float(measured.computed_tokens)]
        with self._waiting(PEERS):
            totals = self._engine.total(sums)
        peak_rss = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        chip = self._engine.accelerator
        memory = [] if chip is None else [float(peak) for peak in chip.peak_memory()]
        peaks = self._engine.largest([*tally.peaks.tolist(), *memory, peak_rss])
        values = statistics.report(totals, peaks, header.minibatches, terms=self._terms())
        first = header.minibatches[: self._algorithm.minibatches]
        values |= prepared.stats
        if self._is_taught(header):
            # Of the task's rewards; the teacher has something to say of every group.
            values.pop(Stat.ZERO_ADVANTAGE_GROUPS, None)
        values |= {
            Stat.FORWARD_BACKWARD_S: measured.forward_backward_s,
            Stat.OPTIMIZER_S: measured.optimizer_s,
            Stat.PROXIMAL_S: measured.proximal_s,
            Stat.SKIPPED: float(
                sum(not outcome.applied for outcome in (*measured.outcomes, *measured.critic_outcomes))
            ),
            Stat.TOKENS_TRAINED: float(sum(part.num_tokens for part in first)),
            Stat.TOKENS_COMPUTED: totals[-1],
            Stat.ROWS: float(sum(part.num_rows for part in first)),
            Stat.DENOMINATOR: self._denominator(header.minibatches[0]),
            Stat.PEAK_RSS_BYTES: peaks[-1],
        }
        if memory:
            values |= {Stat.PEAK_GPU_ALLOCATED_BYTES: peaks[-3], Stat.PEAK_GPU_RESERVED_BYTES: peaks[-2]}
        if chip is not None and chip.peak_flops is not None and chip.size is not None:
            values[Stat.MFU] = mfu.utilisation(
                flops=totals[-2],
                seconds=measured.proximal_s + measured.forward_backward_s + measured.optimizer_s,
                num_devices=self._engine.world_size,
                peak_flops=chip.peak_flops,
            )
        for stat, outcomes in (
            (Stat.GRAD_NORM, measured.outcomes),
            (Stat.CRITIC_GRAD_NORM, measured.critic_outcomes),
        ):
            norms = [outcome.grad_norm for outcome in outcomes if outcome.applied]
            if norms:
                values[stat] = sum(norms) / len(norms)
        if measured.outcomes:
            values[Stat.LEARNING_RATE] = measured.learning_rate
            if self._algorithm.entropy.target is not None:
                values[Stat.ENTROPY_COEF] = self.entropy_coef.applied(self._algorithm.entropy)
        else:
            # The critic warms up: nothing of the policy was measured, and 0 would look like a value.
            for stat in (Stat.LOSS, *self._terms(), Stat.RATIO_MAX, Stat.WEIGHT_MAX, *_COUNTS):
                del values[stat]
        # Of all ranks, so that the next step's coefficient is one.
        self.entropy_coef.follow(values.get(Stat.ENTROPY), self._algorithm.entropy)
        tokens = totals[statistics.Sum.TOKENS] or 1.0
        return Learned(
            stats={name: value for name, value in values.items() if math.isfinite(value)},
            nonfinite={
                "logprob": totals[statistics.Sum.NONFINITE],
                "loss": totals[statistics.Sum.NONFINITE_LOSS],
                "gradient": values[Stat.SKIPPED],
            },
            masked={
                "correction": totals[statistics.Sum.CORRECTION_MASKED] / tokens,
                "reject": totals[statistics.Sum.REJECT_MASKED] / tokens,
                "stale": totals[statistics.Sum.STALE_MASKED] / tokens,
                "truncated": totals[statistics.Sum.TRUNCATED_MASKED] / tokens,
                "m2po": statistics.m2_share(totals),
                "entropy": statistics.low_entropy_share(totals),
            },
        )

    def _terms(self) -> list[Stat]:
        config = self._algorithm.loss
        in_loss = self._reference is not None and config.kl_placement == "Loss"
        return [Stat.KL_LOSS] * in_loss + [Stat.ENTROPY_LOSS] * self._algorithm.has_entropy_term

    def _denominator(self, minibatch: types.Minibatch) -> float:
        config = self._algorithm.loss
        if config.aggregation == "TokenMean":
            return float(minibatch.num_tokens)
        return minibatch.num_rows * (config.constant_denominator if config.aggregation == "Constant" else 1.0)
