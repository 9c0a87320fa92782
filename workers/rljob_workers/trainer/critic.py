"""The critic's part of a step (estimator ppo): values before the first update, then its own loss and optimizer.

The value model starts as the policy's with a head of zeros, so first values are 0 and first advantages the returns. It
sees all sampled tokens of all rows: neither the rollout correction nor maskTruncated is about values.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from rljob_api import enums, types
from rljob_api.manifest.job import JobSpec
from rljob_workers.trainer.algorithms import advantages, statistics, value_loss
from rljob_workers.trainer.algorithms.statistics import Sum
from rljob_workers.trainer.engine import schedule
from rljob_workers.trainer.model import batch_tensors

Stat = enums.StepStat


class ValueEngine(Protocol):
    """The value model and its optimizer; `deepspeed.CriticEngine` in production."""

    def values(self, tensors: batch_tensors.BatchTensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values before each token [N] and after each row [rows], fp32, with gradient."""

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of `loss`."""

    def step(self, learning_rate: float) -> schedule.StepOutcome:
        """Reduce, clip, update."""


class Critic:
    """Steps the value model alongside the policy: same minibatches and epochs, own AdamW and update count."""

    def __init__(self, engine: ValueEngine, spec: JobSpec, count: schedule.UpdateCount) -> None:
        """`spec` must have a critic."""
        settings = spec.algorithm.critic
        assert settings is not None, "a critic needs its settings"
        self._engine, self._spec, self._settings, self.count = engine, spec, settings, count
        self._optimizer = spec.trainer.optimizer.model_copy(update={"learning_rate": settings.learning_rate})

    def warms_up(self, header: types.BatchHeader) -> bool:
        """Return whether only the critic is updated in a step; supervised ones come before its own first step."""
        return header.step - header.sft_steps <= self._settings.warmup_steps

    def score(self, tensors: batch_tensors.BatchTensors) -> advantages.Values:
        """Return the values of one micro-batch, without gradient."""
        with torch.no_grad():
            tokens, ends = self._engine.values(tensors)
        return advantages.Values(tokens, ends)

    def accumulate(
        self,
        tensors: batch_tensors.BatchTensors,
        *,
        old_values: torch.Tensor | None,
        returns: torch.Tensor | None,
        minibatch: types.Minibatch,
        world_size: int,
    ) -> statistics.Tally | None:
        """Add the gradient of one micro-batch's share; without targets [N] only take part in the collectives."""
        values, ends = self._engine.values(tensors)
        # The value after a row has no target; it stays in the graph so that every rank's backward is alike.
        nothing = ends.sum() * 0.0
        if old_values is None or returns is None:
            self._engine.backward(values.sum() * 0.0 + nothing)
            return None
        loss = value_loss.value_loss(
            values,
            old_values,
            returns.float(),
            value_clip=self._settings.value_clip,
            coef=self._settings.vf_coef,
            num_tokens=minibatch.num_tokens,
        )
        self._engine.backward((loss.share + nothing) * world_size)
        tally = statistics.Tally(values.device)
        tally.put(
            {
                Sum.VALUE_TOKENS: torch.tensor(float(len(values))),
                Sum.VALUE_LOSS: loss.share.detach().double(),
                Sum.VALUE_CLIPPED: loss.clipped.sum(),
            },
            {},
        )
        return tally

    def step(self, header: types.BatchHeader) -> schedule.StepOutcome:
        """Update the value model and count it."""
        rate = schedule.learning_rate(
            self.count.applied,
            config=self._optimizer,
            updates_per_step=self._spec.algorithm.updates_per_step,
            max_steps=self._spec.max_steps - header.sft_steps,
        )
        outcome = self._engine.step(rate)
        self.count.add(outcome, rate_field="spec.algorithm.critic.learningRate")
        return outcome


def explained_variance(
    old_values: Sequence[torch.Tensor], returns: Sequence[torch.Tensor], ranks: advantages.Ranks
) -> dict[Stat, float]:
    """Return 1 - Var(ret - v_old) / Var(ret) over the sampled tokens of the step. Lists: this rank's, each once."""
    residuals = [target - old.double() for old, target in zip(old_values, returns, strict=True)]
    sums = ranks.total([*_moments(residuals), *_moments(returns)])
    if sums[0] == 0:
        return {}
    residual, returned = (sums[0], sums[1], sums[2]), (sums[3], sums[4], sums[5])
    return {Stat.EXPLAINED_VARIANCE: value_loss.explained_variance(residual, returned)}


def _moments(parts: Sequence[torch.Tensor]) -> tuple[float, float, float]:
    return (
        float(sum(len(part) for part in parts)),
        math.fsum(float(part.sum()) for part in parts),
        math.fsum(float(part.square().sum()) for part in parts),
    )
