"""A rank of the trainer with a whole model and no DeepSpeed, and a frozen model beside it."""

from collections.abc import Sequence

import torch

from rljob_workers.trainer.engine import mfu, schedule
from rljob_workers.trainer.model import batch_tensors, logprobs, policy


class ModelEngine:
    """A rank with a whole model, which keeps gradients instead of updating. Ranks are played one after the other."""

    def __init__(self, model: policy.Policy, *, world_size: int = 1, most: float = 0.0) -> None:
        self.world_size, self.device = world_size, torch.device("cpu")
        self.accelerator: mfu.Accelerator | None = None
        self.rates: list[float] = []
        self._model, self._most = model, most

    def forward(self, tensors: batch_tensors.BatchTensors) -> tuple[torch.Tensor, torch.Tensor]:
        scored, entropies, _ = self._model(*tensors.inputs)
        return scored, entropies

    def forward_taught(
        self, tensors: batch_tensors.BatchTensors, lesson: logprobs.Likeliest
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scored, entropies, agreements = self._model(*tensors.inputs, lesson=lesson)
        return scored, entropies, agreements

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        raise AssertionError(
            f"a step of one update needs no other forward of the policy, and update {tensors.update} had"
        )

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self, learning_rate: float) -> schedule.StepOutcome:
        self.rates.append(learning_rate)
        return schedule.StepOutcome(grad_norm=1.0, applied=True)

    def total(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def largest(self, values: Sequence[float]) -> list[float]:
        return [max(value, self._most) for value in values]


class FrozenScorer:
    """A model that scores; counts its forwards."""

    def __init__(self, model: policy.Policy) -> None:
        self.size: mfu.ModelSize | None = None
        self.scored = 0
        self._model = model

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        self.scored += 1
        with torch.no_grad():
            scored: torch.Tensor = self._model(*tensors.inputs)[0]
        return scored

    def teach(self, tensors: batch_tensors.BatchTensors, count: int) -> tuple[torch.Tensor, logprobs.Likeliest]:
        self.scored += 1
        scored: torch.Tensor
        lesson: logprobs.Likeliest
        with torch.no_grad():
            scored, _, lesson = self._model(*tensors.inputs, num_likeliest=count)
        return scored, lesson
