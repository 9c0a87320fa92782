"""An adapter's product, against PEFT's own layer and in float64 against finite differences."""

import pathlib
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rljob_api.manifest.model import LoraSpec
from rljob_testing.sections import section
from rljob_workers.trainer.model import adapters
from rljob_workers.weights import adapter as adapter_layouts

LORA = section(LoraSpec, rank=4, alpha=12, targets=("q_proj", "gate_proj", "down_proj"))


@pytest.mark.parametrize("has_bias", [False, True])
def test_gradients_are_those_of_finite_differences(has_bias: bool) -> None:
    torch.manual_seed(0)

    def numbers(*shape: int, trained: bool) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=trained)

    bias = numbers(6, trained=False) if has_bias else None
    inputs = (numbers(2, 3, 5, trained=True), numbers(6, 5, trained=False), bias)
    adapter = (numbers(2, 5, trained=True), numbers(6, 2, trained=True), 1.5)
    assert torch.autograd.gradcheck(adapters.AdaptedLinear.apply, (*inputs, *adapter))


@pytest.fixture
def adapted(tmp_path: pathlib.Path) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, attention_bias=True, initializer_range=0.2,
    )  # fmt: skip
    lm = LlamaForCausalLM(config)
    lm.save_pretrained(tmp_path)
    layout = adapter_layouts.layout_of(tmp_path, LORA, dtype="float32", name="tiny")
    values = {spec.name: torch.randn(spec.shape) for spec in layout.tensors}
    adapters.add(lm, adapters.Adapter(lora=LORA, layout=layout, values=values))
    return lm


def logits_and_gradients(lm: LlamaForCausalLM) -> list[torch.Tensor]:
    trained = [parameter for parameter in lm.parameters() if parameter.requires_grad]
    logits = lm(input_ids=torch.arange(20)[None]).logits
    return [logits.detach(), *torch.autograd.grad(logits.square().mean(), trained)]


def test_a_model_computes_what_pefts_own_layers_compute(adapted: LlamaForCausalLM, monkeypatch: Any) -> None:
    found = logits_and_gradients(adapted)
    with monkeypatch.context() as patched:
        patched.setattr(adapters.AdaptedLinear, "apply", None)
        for layer in adapters._layers(adapted):
            del layer.forward
        expected = logits_and_gradients(adapted)
    assert len(found) == 1 + 2 * 2 * 3
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_without_its_adapter_it_is_the_model(adapted: LlamaForCausalLM, tmp_path: pathlib.Path) -> None:
    tokens = torch.arange(20)[None]
    with adapters.without(adapted), torch.no_grad():
        found = adapted(input_ids=tokens).logits
    with torch.no_grad():
        expected = LlamaForCausalLM.from_pretrained(tmp_path)(input_ids=tokens).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
