"""What is computed before the step's first update: proximal, reference, teacher, values, advantages, dropped tokens.

Everything here sees the weights that the step starts from and all of its rows, so that no result depends on how rows
are cut into minibatches, micro-batches and ranks. Later epochs hold the same rows once more: they are filled in too,
and counted once. The calls are collective: every rank makes them in the same order.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from rljob_api import enums
from rljob_api.manifest.algorithm import AlgorithmSpec
from rljob_api.manifest.loss import CorrectionSpec, LossSpec
from rljob_workers.trainer import critic
from rljob_workers.trainer.algorithms import advantages, correction, entropy, kl, m2po, policy_losses
from rljob_workers.trainer.algorithms.rows import Rows
from rljob_workers.trainer.model import batch_tensors, logprobs


class Engine(advantages.Ranks, Protocol):
    """What the preparation needs of the policy."""

    def forward(self, tensors: batch_tensors.BatchTensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (logprobs, entropies) [N]."""

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        """Return logprobs [N] without gradient."""


class Scorer(Protocol):
    """A frozen model: the reference of the KL term, or a teacher."""

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        """Return its logprobs [N]."""


class Teacher(Scorer, Protocol):
    """The model of spec.teacher."""

    def teach(self, tensors: batch_tensors.BatchTensors, count: int) -> tuple[torch.Tensor, logprobs.Likeliest]:
        """Return its logprobs [N], and what it finds likeliest in the places of the sampled tokens [N, count]."""


class Critic(Protocol):
    """The value model."""

    def score(self, tensors: batch_tensors.BatchTensors) -> advantages.Values:
        """Return its values, without gradient."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """mean_weight: divisor of batchNormalize, 1 without; stats: what is known of the step's advantages."""

    mean_weight: float
    stats: Mapping[enums.StepStat, float]


@dataclasses.dataclass(slots=True)
class Work:
    """One micro-batch of the step. `idle`: it only keeps collectives in step. proximal, reference, teacher [N]: their
    log-probabilities of the sampled tokens. lesson [N]: what the teacher finds likeliest in their places, if that is
    learned. keep_mask [N]: what M2PO leaves.

    entropies [N]: of the policy that the step starts from; entropy_mask [N]: those chosen for theirs.
    values, returns [N]: the critic's before the step, and what it is to learn.
    """

    tensors: batch_tensors.BatchTensors
    idle: bool
    proximal: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    teacher: torch.Tensor | None = None
    lesson: logprobs.Likeliest | None = None
    keep_mask: torch.Tensor | None = None
    entropies: torch.Tensor | None = None
    entropy_mask: torch.Tensor | None = None
    values: advantages.Values | None = None
    returns: torch.Tensor | None = None

    @property
    def rows(self) -> Rows:
        """Return which row each token belongs to."""
        return Rows(self.tensors.row_index, self.tensors.row_tokens)


def prepare(
    work: Sequence[Sequence[Work]],
    engine: Engine,
    reference: Scorer | None,
    algorithm: AlgorithmSpec,
    value_model: Critic | None = None,
    teacher: Teacher | None = None,
    num_likeliest: int = 0,
    has_advantages: bool = True,
) -> Prepared:
    """Fill in what the losses need. `work` lists the micro-batches of each update. num_likeliest: how many tokens of a
    teacher are learned in each place, 0 for the sampled one alone. has_advantages: without any, no token weighs more
    than another, and policies are not compared.
    """
    if has_advantages and scores_first(algorithm):
        for part in work:
            for item in part:
                _score(item, engine, algorithm)
    if reference is not None:
        # Idle ones too, and below: from ZeRO-3 on a forward of a trained model is collective.
        for part in work:
            for item in part:
                item.reference = reference.score(item.tensors)
    if teacher is not None:
        for part in work:
            for item in part:
                if num_likeliest:
                    item.teacher, item.lesson = teacher.teach(item.tensors, num_likeliest)
                else:
                    item.teacher = teacher.score(item.tensors)
    if value_model is not None:
        for part in work:
            for item in part:
                item.values = value_model.score(item.tensors)
    stats: dict[enums.StepStat, float] = {}
    if algorithm.trainer_returns:
        stats = _set_advantages(work, engine, algorithm)
    if not has_advantages:
        return Prepared(1.0, stats)
    if algorithm.loss.m2_threshold is not None:
        _drop_far_tokens(work, engine, algorithm.loss.m2_threshold)
    if algorithm.entropy.top_quantile is not None:
        _choose_uncertain_tokens(work, engine, algorithm.entropy.top_quantile)
    return Prepared(_mean_weight(work, engine, algorithm), stats)


def scores_first(algorithm: AlgorithmSpec) -> bool:
    """Return whether the policy is computed once more before the first update."""
    return needs_proximal(algorithm) or algorithm.entropy.top_quantile is not None


def needs_proximal(algorithm: AlgorithmSpec) -> bool:
    """Return whether the proximal policy costs a forward before the first update.

    With one update the training forward itself is the proximal policy, unless something must be known before the first
    loss: a mean weight, M2PO's cut, a KL term in the reward.
    """
    loss = algorithm.loss
    compared = policy_losses.find(loss).uses_proximal
    moving = compared and loss.proximal == "Recompute" and algorithm.updates_per_step > 1
    normalized = loss.normalizes_weights
    early = normalized or loss.m2_threshold is not None or loss.kl_in_reward
    return moving or (early and loss.proximal in ("Recompute", "Reuse"))


def _score(item: Work, engine: Engine, algorithm: AlgorithmSpec) -> None:
    if algorithm.entropy.top_quantile is None:
        item.proximal = engine.score(item.tensors)
        return
    with torch.no_grad():
        logprobs, item.entropies = engine.forward(item.tensors)
    if needs_proximal(algorithm):
        item.proximal = logprobs


def _active(work: Sequence[Sequence[Work]]) -> list[Work]:
    return [item for part in work for item in part if not item.idle]


def _first_epoch(work: Sequence[Sequence[Work]], algorithm: AlgorithmSpec) -> list[Work]:
    return _active(work[: algorithm.minibatches])


def _proximal_or_behavior(item: Work) -> torch.Tensor:
    # Without a computed proximal policy the loss takes the engine's policy as such (proximal: Behavior).
    return item.tensors.behavior if item.proximal is None else item.proximal


def _set_advantages(
    work: Sequence[Sequence[Work]], engine: Engine, algorithm: AlgorithmSpec
) -> dict[enums.StepStat, float]:
    items, counted = _active(work), _first_epoch(work, algorithm)
    for item in items:
        estimated = advantages.estimate(
            item.tensors, algorithm.gae, penalty=_penalty(item, algorithm.loss), values=item.values
        )
        item.returns = estimated.returns
        item.tensors = dataclasses.replace(item.tensors, advantages=estimated.advantages)
    normalization = algorithm.advantage_normalization
    if normalization is not None:
        parts = [advantages.Part(item.tensors.advantages, _token_groups(item)) for item in items]
        normalized = advantages.normalize(
            parts, normalization, counted=len(counted), total=engine.total, largest=engine.largest
        )
        for item, values in zip(items, normalized, strict=True):
            item.tensors = dataclasses.replace(item.tensors, advantages=values)
    for item in items:
        item.tensors = dataclasses.replace(item.tensors, advantages=item.tensors.advantages.float())
    stats = advantages.describe([item.tensors for item in counted], engine)
    if algorithm.critic is not None:
        old = [item.values.tokens for item in counted if item.values is not None]
        stats |= critic.explained_variance(old, [item.returns for item in counted if item.returns is not None], engine)
    return stats


def _token_groups(item: Work) -> torch.Tensor:
    return item.tensors.row_group[item.tensors.row_index]


def _penalty(item: Work, loss: LossSpec) -> torch.Tensor | None:
    """Return what the KL term takes off the reward of each token [N], None without one in the reward."""
    if not loss.kl_in_reward:
        return None
    assert item.reference is not None, "the reference is scored first"
    return kl.penalty(_proximal_or_behavior(item), item.reference, coef=loss.kl_coef, estimator=loss.kl_estimator)


def _drop_far_tokens(work: Sequence[Sequence[Work]], engine: Engine, threshold: float) -> None:
    squares = [
        [m2po.squares(item.tensors.behavior, _proximal_or_behavior(item)) for item in part if not item.idle]
        for part in work
    ]
    whole = [torch.cat(part) if part else torch.zeros(0) for part in squares]
    cuts = m2po.cuts(whole, threshold, total=engine.total, largest=engine.largest)
    for part, values, cut in zip(work, squares, cuts, strict=True):
        for item, value in zip((item for item in part if not item.idle), values, strict=True):
            item.keep_mask = value.double() <= cut


def _choose_uncertain_tokens(work: Sequence[Sequence[Work]], engine: Engine, top_quantile: float) -> None:
    entropies = [[entropy.comparable(_entropies(item)) for item in part if not item.idle] for part in work]
    whole = [torch.cat(part) if part else torch.zeros(0) for part in entropies]
    cuts = entropy.cuts(whole, top_quantile, total=engine.total)
    for part, values, cut in zip(work, entropies, cuts, strict=True):
        for item, value in zip((item for item in part if not item.idle), values, strict=True):
            item.entropy_mask = value >= cut


def _entropies(item: Work) -> torch.Tensor:
    assert item.entropies is not None, "entropies come before the choice of tokens"
    return item.entropies


def _mean_weight(work: Sequence[Sequence[Work]], engine: Engine, algorithm: AlgorithmSpec) -> float:
    correct = algorithm.loss.rollout_correction
    if correct is None or not correct.batch_normalize:
        return 1.0
    terms = [_weight_terms(item, correct) for item in _first_epoch(work, algorithm)]
    total, count = engine.total([sum(term[0] for term in terms), sum(term[1] for term in terms)])
    return total / count if total > 0 else 1.0


def _weight_terms(item: Work, config: CorrectionSpec) -> tuple[float, float]:
    assert item.proximal is not None, "the proximal policy comes before weights"
    corrected = correction.correct(item.proximal, item.tensors.behavior, item.tensors.advantages, item.rows, config)
    return correction.mean_weight_terms(corrected, item.rows, config)
