"""bfloat16 weights multiplied in float32, for a CPU without instructions for bfloat16.

The parameters stay what is published and served: float32 parameters would see updates of 1e-5 that rounding to
bfloat16 swallows, and the trainer would then train another policy than the one that samples (a gap of 1 nat per token
after ten steps of the example was measured). Only the products, and the activations with them, are float32.
"""

import types
from typing import Any

import torch


def widen(lm: Any) -> bool:
    """Let `lm` compute in float32, in place; False where a weight is used by another module than these two kinds."""
    embedding = lm.get_input_embeddings()
    linear = [module for module in lm.modules() if type(module) is torch.nn.Linear]
    widened = {id(parameter) for module in (embedding, *linear) for parameter in module.parameters()}
    # What is frozen in front of a text model is widened where it is used (sight.py).
    trained = [parameter for parameter in lm.parameters() if parameter.requires_grad]
    if any(parameter.ndim > 1 and id(parameter) not in widened for parameter in trained):
        return False
    for module in linear:
        module.forward = types.MethodType(_product, module)  # type: ignore[method-assign]  # on this instance alone
    embedding.register_forward_hook(lambda _, __, output: output.float())
    lm.computes_in_float32 = True
    return True


def is_widened(lm: Any) -> bool:
    """Return whether `widen` has changed this model."""
    return bool(getattr(lm, "computes_in_float32", False))


def _product(layer: torch.nn.Linear, states: torch.Tensor) -> torch.Tensor:
    bias = None if layer.bias is None else layer.bias.to(states.dtype)
    return torch.nn.functional.linear(states, layer.weight.to(states.dtype), bias)
