"""Loss and gradients of a policy over micro-batches, as the trainer computes them, without DeepSpeed."""

from collections.abc import Sequence

import torch

from rljob_api import types
from rljob_api.manifest.loss import LossSpec
from rljob_workers.trainer.algorithms import loss
from rljob_workers.trainer.model import batch_tensors, policy

Gradients = dict[str, torch.Tensor]


def packed_gradients(
    model: policy.Policy, parts: Sequence[types.MicroBatch], minibatch: types.Minibatch, config: LossSpec
) -> tuple[float, Gradients]:
    """Return the sum of the losses and the gradients by parameter."""
    model.zero_grad()
    total = 0.0
    for part in parts:
        tensors = batch_tensors.to_tensors(part, torch.device("cpu"))
        logprobs, entropies, _ = model(*tensors.inputs)
        outputs = loss.policy_loss(
            loss.LossInputs(
                logprobs=logprobs,
                entropies=entropies,
                behavior=tensors.behavior,
                advantages=tensors.advantages,
                version_steps=tensors.version_steps,
                row_index=tensors.row_index,
                row_tokens=tensors.row_tokens,
                row_masked=tensors.row_masked,
                minibatch=minibatch,
                trainer_version=0,
            ),
            config,
        )
        outputs.loss.backward()
        total += float(outputs.loss.detach())
    return total, gradients_of(model.lm)


def gradients_of(model: torch.nn.Module) -> Gradients:
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
