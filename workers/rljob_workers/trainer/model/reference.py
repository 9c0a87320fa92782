"""The frozen reference model of the KL term: a copy of its own, or the trained model without its adapter."""

import pathlib
from collections.abc import Callable
from typing import Protocol

import torch

from rljob_api import errors, process_config
from rljob_api.manifest.job import JobSpec
from rljob_workers.models import builtin
from rljob_workers.trainer.model import batch_tensors, loading, policy, selftest

# Returns a module to call in place of one that is never trained.
Place = Callable[[torch.nn.Module], torch.nn.Module]


class Reference:
    """Scores micro-batches with weights that never change, without gradient."""

    def __init__(self, spec: JobSpec, model_dir: pathlib.Path, device: torch.device, *, place: Place) -> None:
        """Load the model in the trainer's number format. place: brings it to where this rank computes; where it divides
        the model among the ranks, calls are collective. Raises ManifestError if the model does not load.
        """
        name = "" if spec.model.reference is None else spec.model.reference.name
        self._policy = policy.Policy(
            loading.load_model(model_dir, spec, device, name=name, frozen=True),
            temperature=spec.rollout.sampling.temperature,
            chunk_tokens=spec.trainer.logits_chunk_tokens,
        )
        self._placed = place(self._policy)

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        """Return logprobs [N] of the sampled tokens at the sampling temperature, fp32."""
        with torch.no_grad():
            logprobs, _ = self._placed(
                tensors.tokens, tensors.position_ids, tensors.plan, tensors.predictors, tensors.targets, tensors.repeats
            )
        scored: torch.Tensor = logprobs
        return scored

    def score_plainly(self, row: selftest.Row) -> torch.Tensor:
        with self._policy.plain(), torch.no_grad():
            logprobs: torch.Tensor = self._placed(row.tokens, row.position_ids, None, row.predictors, row.targets)[0]
        return logprobs

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


def of_job(spec: JobSpec, frozen: Reference | None, trained: AdaptedModel) -> Reference | WithoutAdapter | None:
    """Return what the KL term compares with: a model of its own, the trained one without its adapter, or nothing."""
    is_shared = frozen is None and spec.model.lora is not None and spec.algorithm.loss.kl_coef > 0
    return WithoutAdapter(trained) if is_shared else frozen


def load(config: process_config.TrainerConfig, device: torch.device, *, place: Place) -> Reference | None:
    """Return the model of spec.model.reference, or None where none is loaded. Raises ManifestError if it is missing."""
    if config.reference is None:
        return None
    try:
        return Reference(config.spec, builtin.ensure_model(config.reference), device, place=place)
    except errors.ManifestError as error:
        problems = (text.replace("spec.model.name", "spec.model.reference.name", 1) for text in error.problems)
        raise errors.ManifestError(*problems) from error
