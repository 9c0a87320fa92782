"""What is computed before the step's first update: prox, reference, advantages of tokens, tokens that M2PO drops.

Everything here sees the weights that the step starts from and all of its rows, so that no result depends on how rows
are cut into minibatches, micro-batches and ranks. Later epochs hold the same rows once more: they are filled in too,
and counted once. The calls are collective: every rank makes them in the same order.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch

from rljob_api import roles
from rljob_workers.trainer import batch as batches
from rljob_workers.trainer import correction, gae, m2po, reference_kl, whitening


class Engine(Protocol):
    """What the preparation needs of the policy."""

    def score(self, tensors: batches.BatchTensors) -> torch.Tensor:
        """Return logprobs [N] without gradient."""

    def total(self, values: Sequence[float]) -> list[float]:
        """Sum over ranks."""

    def largest(self, values: Sequence[float]) -> list[float]:
        """Maximum over ranks."""


class Reference(Protocol):
    """The frozen model of the KL term."""

    def score(self, tensors: batches.BatchTensors) -> torch.Tensor:
        """Return its logprobs [N]."""


@dataclasses.dataclass(slots=True)
class Work:
    """One micro-batch of the step. `idle`: it only keeps collectives in step. kept [N]: what M2PO leaves."""

    tensors: batches.BatchTensors
    idle: bool
    proximal: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    kept: torch.Tensor | None = None

    @property
    def rows(self) -> correction.Rows:
        """Return which row each token belongs to."""
        return correction.Rows(self.tensors.row_index, self.tensors.row_tokens)


def prepare(
    work: Sequence[Sequence[Work]], engine: Engine, reference: Reference | None, config: roles.TrainerConfig
) -> float:
    """Fill in what the losses need; return the mean weight of the step for batchNormalize, else 1.

    `work` lists the micro-batches of each update.
    """
    if needs_proximal(config):
        for part in work:
            for item in part:
                item.proximal = engine.score(item.tensors)
    if reference is not None:
        for item in _active(work):
            item.reference = reference.score(item.tensors)
    if config.returns is not None:
        _set_advantages(work, engine, config, config.returns)
    if config.loss.m2_threshold is not None:
        _drop_far_tokens(work, engine, config.loss.m2_threshold)
    return _mean_weight(work, engine, config)


def needs_proximal(config: roles.TrainerConfig) -> bool:
    """Return whether prox costs a forward before the first update.

    With one update the training forward itself is prox, unless something must be known before the first loss: a mean
    weight, M2PO's cut, a KL term in the reward.
    """
    loss = config.loss
    moving = loss.proximal == "recompute" and loss.type != "reinforce" and config.minibatches * config.epochs > 1
    normalized = loss.correction is not None and loss.correction.batch_normalize
    early = normalized or loss.m2_threshold is not None or _kl_in_reward(loss)
    return moving or (early and loss.proximal in ("recompute", "reuse"))


def _kl_in_reward(config: roles.LossConfig) -> bool:
    return config.kl_coef > 0 and config.kl_placement == "reward"


def _active(work: Sequence[Sequence[Work]]) -> list[Work]:
    return [item for part in work for item in part if not item.idle]


def _first_epoch(work: Sequence[Sequence[Work]], config: roles.TrainerConfig) -> list[Work]:
    return _active(work[: config.minibatches])


def _proximal_or_behave(item: Work) -> torch.Tensor:
    # Without a computed prox the loss takes the engine's policy as such (proximal: behaviour).
    return item.tensors.behave if item.proximal is None else item.proximal


def _set_advantages(
    work: Sequence[Sequence[Work]], engine: Engine, config: roles.TrainerConfig, returns: roles.ReturnsConfig
) -> None:
    items = _active(work)
    found = [_advantages(item, config.loss, returns.gamma) for item in items]
    if returns.normalize is not None:
        counted = found[: len(_first_epoch(work, config))]
        found = whitening.normalize(found, counted, returns.normalize, total=engine.total, largest=engine.largest)
    for item, values in zip(items, found, strict=True):
        item.tensors = dataclasses.replace(item.tensors, advantages=values.float())


def _advantages(item: Work, loss: roles.LossConfig, gamma: float) -> torch.Tensor:
    """Return A [N], float64, without a critic: the row's reward on its last sampled token, less KL, discounted."""
    rows = item.rows
    last = rows.tokens.long().cumsum(0) - 1
    rewards = torch.zeros_like(item.tensors.advantages, dtype=torch.float64)
    rewards[last] = item.tensors.advantages[last].double()
    if _kl_in_reward(loss):
        assert item.reference is not None, "the reference is scored first"
        rewards -= reference_kl.penalty(
            _proximal_or_behave(item), item.reference, coef=loss.kl_coef, estimator=loss.kl_estimator
        )
    nothing = torch.zeros_like(rows.tokens, dtype=torch.float64)
    estimated = gae.over_tokens(
        rewards,
        torch.zeros_like(rewards),
        rows,
        gamma=gamma,
        decay=torch.ones_like(nothing),
        bootstrap=nothing,
    )
    return estimated.advantages


def _drop_far_tokens(work: Sequence[Sequence[Work]], engine: Engine, threshold: float) -> None:
    squares = [
        [m2po.squares(item.tensors.behave, _proximal_or_behave(item)) for item in part if not item.idle]
        for part in work
    ]
    whole = [torch.cat(part) if part else torch.zeros(0) for part in squares]
    cuts = m2po.cuts(whole, threshold, total=engine.total, largest=engine.largest)
    for part, values, cut in zip(work, squares, cuts, strict=True):
        for item, value in zip((item for item in part if not item.idle), values, strict=True):
            item.kept = value.double() <= cut


def _mean_weight(work: Sequence[Sequence[Work]], engine: Engine, config: roles.TrainerConfig) -> float:
    correct = config.loss.correction
    if correct is None or not correct.batch_normalize:
        return 1.0
    terms = [_weight_terms(item, correct) for item in _first_epoch(work, config)]
    total, count = engine.total([sum(term[0] for term in terms), sum(term[1] for term in terms)])
    return total / count if total > 0 else 1.0


def _weight_terms(item: Work, config: roles.CorrectionConfig) -> tuple[float, float]:
    assert item.proximal is not None, "prox comes before weights"
    corrected = correction.correct(item.proximal, item.tensors.behave, item.rows, config)
    return correction.mean_weight_terms(corrected, item.rows, config)
