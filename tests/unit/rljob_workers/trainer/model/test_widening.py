"""A tiny Llama with bfloat16 weights: forward and gradient against the same weights as float32 parameters."""

import copy
import types

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rljob_workers.trainer.model import cpu_float32_matmul


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def lm(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=request.param, attention_bias=True, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config).bfloat16()


def loss_of(model: LlamaForCausalLM) -> torch.Tensor:
    tokens = torch.arange(20)[None]
    loss = model(input_ids=tokens, labels=tokens).loss
    assert isinstance(loss, torch.Tensor)
    return loss


def test_logits_are_those_of_the_same_weights_in_float32(lm: LlamaForCausalLM) -> None:
    exact = copy.deepcopy(lm).float()
    assert cpu_float32_matmul.widen(lm)
    tokens = torch.arange(20)[None]
    found = lm(input_ids=tokens).logits
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact(input_ids=tokens).logits, rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_float32_rounded_once(lm: LlamaForCausalLM) -> None:
    exact = copy.deepcopy(lm).float()
    assert cpu_float32_matmul.widen(lm)
    loss_of(lm).backward()
    loss_of(exact).backward()
    of_exact = dict(exact.named_parameters())
    for name, parameter in lm.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert parameter.grad is not None
        wanted = of_exact[name].grad
        assert wanted is not None
        # bfloat16 has 8 bits; the two gradients of a tied weight are rounded before they are added, and may cancel.
        torch.testing.assert_close(parameter.grad.float(), wanted, rtol=2**-8, atol=2**-8 * float(wanted.abs().max()))


def test_a_model_with_weights_of_another_kind_is_left_as_it_is() -> None:
    expert = torch.nn.Module()
    expert.weights = torch.nn.Parameter(torch.zeros(2, 4, 4))
    model = torch.nn.Module()
    model.embed, model.expert = torch.nn.Embedding(4, 4), expert
    model.get_input_embeddings = types.MethodType(lambda self: self.embed, model)  # type: ignore[assignment]
    assert not cpu_float32_matmul.widen(model)
    assert not model.embed._forward_hooks
