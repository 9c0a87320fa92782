"""Models that score and are never trained: a teacher, and the reference model of the KL term, which is a copy of its
own, or the trained model without its adapter.
"""

import pathlib
from collections.abc import Callable
from typing import Protocol

import torch

from rljob_api import process_config
from rljob_api.manifest.job import JobSpec
from rljob_workers.models import builtin, vocabulary
from rljob_workers.trainer.engine import mfu
from rljob_workers.trainer.model import batch_tensors, loading, logprobs, policy, selftest

# Returns a module to call in place of one that is never trained.
Place = Callable[[torch.nn.Module], torch.nn.Module]


class FrozenModel:
    """Scores micro-batches with weights that never change, without gradient."""

    def __init__(
        self, spec: JobSpec, model_dir: pathlib.Path, device: torch.device, *, name: str, place: Place
    ) -> None:
        """Load the model in the trainer's number format. name: in errors. place: brings it to where this rank computes;
        where it divides the model among the ranks, calls are collective. Raises ManifestError if it does not load.
        """
        lm = loading.load_model(model_dir, spec, device, name=name, frozen=True)
        # While it is whole; on a CPU no one asks.
        self.size = mfu.model_size(lm) if device.type == "cuda" else None
        self._policy = policy.Policy(
            lm,
            temperature=spec.rollout.sampling.temperature,
            chunk_tokens=spec.trainer.logits_chunk_tokens,
            pixels=loading.pixels_of(lm, model_dir),
        )
        self._placed = place(self._policy)

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        """Return logprobs [N] of the sampled tokens at the sampling temperature, fp32."""
        with torch.no_grad():
            scored: torch.Tensor = self._placed(*tensors.inputs)[0]
        return scored

    def teach(self, tensors: batch_tensors.BatchTensors, count: int) -> tuple[torch.Tensor, logprobs.Likeliest]:
        """Return logprobs [N] of the sampled tokens, and the `count` tokens that it finds likeliest in their places."""
        scored: torch.Tensor
        lesson: logprobs.Likeliest
        with torch.no_grad():
            scored, _, lesson = self._placed(*tensors.inputs, num_likeliest=count)
        return scored, lesson

    def score_plainly(self, row: selftest.Row) -> torch.Tensor:
        with self._policy.plain(), torch.no_grad():
            scored: torch.Tensor = self._placed(row.tokens, row.position_ids, None, row.predictors, row.targets)[0]
        return scored

    @property
    def model(self) -> policy.Facts:
        return self._policy.facts


class AdaptedModel(Protocol):
    """The trained model, as far as it is its own reference."""

    def score_without_adapter(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        """Return logprobs [N] of the model as its files have it."""


class WithoutAdapter:
    """Scores micro-batches with the model that is trained, without its adapter: no second copy. Its calls are
    collective, as all of the trained model's.
    """

    def __init__(self, model: AdaptedModel) -> None:
        self._model = model

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        return self._model.score_without_adapter(tensors)


def of_job(spec: JobSpec, frozen: FrozenModel | None, trained: AdaptedModel) -> FrozenModel | WithoutAdapter | None:
    """Return what the KL term compares with: a model of its own, the trained one without its adapter, or nothing."""
    is_shared = frozen is None and spec.model.lora is not None and spec.algorithm.loss.kl_coef > 0
    return WithoutAdapter(trained) if is_shared else frozen


def load(config: process_config.TrainerConfig, device: torch.device, *, place: Place) -> FrozenModel | None:
    """Return the model of spec.model.reference, or None where none is loaded. Raises ManifestError if it is missing."""
    if config.reference is None:
        return None
    with builtin.named("spec.model.reference.name"):
        folder = builtin.ensure_model(config.reference)
        return FrozenModel(config.spec, folder, device, name=config.reference.name, place=place)


def load_teacher(
    config: process_config.TrainerConfig, model_dir: pathlib.Path, device: torch.device, *, place: Place
) -> FrozenModel | None:
    """Return the model of spec.teacher, or None without one. model_dir: of the policy. Raises ManifestError if it is
    missing, or reads other tokens than the policy writes.
    """
    if config.teacher is None:
        return None
    with builtin.named("spec.teacher.model"):
        folder = builtin.ensure_model(config.teacher)
    tokenizer = builtin.ensure_tokenizer(config.model, config.spec.model.tokenizer, model_dir)
    vocabulary.check_teacher(config.teacher.name, folder, policy=model_dir, tokenizer=tokenizer)
    with builtin.named("spec.teacher.model"):
        return FrozenModel(config.spec, folder, device, name=config.teacher.name, place=place)
