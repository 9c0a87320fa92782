"""Versions of an adapter in the real vLLM: the base stays, A and B are replaced in place while answers are sampled."""

import asyncio
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import pytest

from rljob_api import types
from rljob_api.manifest.model import LoraSpec
from rljob_testing import models
from rljob_testing.sections import section
from rljob_workers.rollout import generation

PROMPT = tuple(range(40, 120))
LORA = section(LoraSpec, rank=4, alpha=16)
# bf16 engine against an fp32 reference; the adapters below move log-probabilities by nats.
ROUNDING = 0.12
LONG = types.Sampling(max_tokens=150, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return models.make_tiny_llama(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapted(folder: pathlib.Path, make_rig) -> Iterator[object]:
    rig = make_rig(folder, lora=LORA)
    for version in (1, 2, 3):
        rig.store.publish_image(version, adapter_of(rig.stager.layout, version), rig.stager.layout)
    yield rig
    rig.close()


def adapter_of(layout: types.Layout, version: int) -> bytearray:
    """Return an adapter of random numbers that are large enough to change every answer."""
    import torch

    torch.manual_seed(version)
    data = bytearray(layout.image_bytes)
    for tensor in layout.tensors:
        values = (0.1 * torch.randn(tensor.shape)).to(torch.bfloat16)
        data[tensor.offset : tensor.offset + tensor.length] = values.view(torch.uint8).numpy().tobytes()
    return data


def gap(rig, folder: pathlib.Path, result: generation.GenerationResult, prompt: Sequence[int], version: int) -> float:
    """Return the largest distance to PEFT's own model with the adapter of `version`, in float32 and nats."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    kinds = sorted({each.name.split(".")[-3] for each in rig.stager.layout.tensors})
    config = peft.LoraConfig(r=LORA.rank, lora_alpha=LORA.alpha, target_modules=kinds, task_type="CAUSAL_LM")
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), config)
    if version:
        peft.set_peft_model_state_dict(model, tensors(rig.stager.layout, rig.store.images[version]))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *result.output_ids]])).logits[0]
    rows = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
    expected = [float(rows[index, token]) for index, token in enumerate(result.output_ids)]
    return max(abs(a - b) for a, b in zip(result.logprobs, expected, strict=True))


def tensors(layout: types.Layout, data: bytes) -> Mapping[str, object]:
    import torch

    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return {
        each.name: flat[each.offset : each.offset + each.length].view(torch.bfloat16).view(each.shape).float()
        for each in layout.tensors
    }


def generate(rig, *, count: int = 12, prompt: Sequence[int] = PROMPT, seed: int = 1) -> generation.GenerationResult:
    sampling = types.Sampling(max_tokens=count, ignore_eos=True)
    return rig.loop.run_until_complete(rig.gate.generate(rig.request(prompt, sampling, seed)))


def test_version_0_is_the_model_and_an_update_to_it_changes_nothing(adapted, folder: pathlib.Path) -> None:
    before = generate(adapted)
    assert gap(adapted, folder, before, PROMPT, 0) < ROUNDING
    adapted.test_itself(PROMPT)
    after = generate(adapted)
    assert (after.output_ids, set(after.versions)) == (before.output_ids, {0})


def test_log_probabilities_are_those_of_the_version_and_no_prefix_is_of_another(adapted, folder: pathlib.Path) -> None:
    """The same prompt each time: a block that another version filled would give other log-probabilities."""
    for version in (1, 2):
        assert adapted.loop.run_until_complete(adapted.follow(version)).failure == ""
        for seed in (1, 2):
            result = generate(adapted, seed=seed)
            assert set(result.versions) == {version}
            assert gap(adapted, folder, result, PROMPT, version) < ROUNDING
            assert gap(adapted, folder, result, PROMPT, 3 - version) > 5 * ROUNDING


def test_an_update_in_flight_changes_the_adapter_of_running_answers_and_each_token_says_which(
    adapted, folder: pathlib.Path
) -> None:
    if adapted.receiver.served.version != 1:
        adapted.loop.run_until_complete(adapted.follow(1))

    async def story() -> tuple[list[generation.GenerationResult], types.WeightSync]:
        running = [
            asyncio.ensure_future(adapted.gate.generate(adapted.request(PROMPT, LONG, seed))) for seed in range(8)
        ]
        already = adapted.engine.num_generated()
        while adapted.engine.num_generated() < already + 200:
            await asyncio.sleep(0.01)
        sync = await adapted.follow(3)
        return list(await asyncio.gather(*running)), sync

    results, sync = adapted.loop.run_until_complete(story())
    assert (sync.failure, sync.requests_in_flight) == ("", 8)
    print(f"pause {sync.pause_s:.4f} s, of it loading {sync.apply_s:.4f} s, {sync.num_bytes} bytes")
    for result in results:
        versions = list(result.versions)
        assert versions == sorted(versions)
        assert set(versions) == {1, 3}
        # The keys and values of the first part stay; what was sampled before the update is exact.
        first = versions.index(3)
        begun = generation.GenerationResult(
            output_ids=result.output_ids[:first],
            logprobs=result.logprobs[:first],
            versions=result.versions[:first],
            stop_reason="length",
        )
        assert gap(adapted, folder, begun, PROMPT, 1) < ROUNDING


def test_an_adapter_of_another_base_is_refused_before_a_byte_is_written(adapted, tmp_path: pathlib.Path) -> None:
    from rljob_workers.weights import adapter

    other = models.make_tiny_llama(tmp_path, seed=9)
    layout = adapter.layout_of(other, LORA, dtype="bfloat16", name="other")
    served = adapted.receiver.served.version
    adapted.store.publish_image(9, adapter_of(layout, 9), layout)
    sync = adapted.loop.run_until_complete(adapted.follow(9))
    assert "has another layout than an adapter of these model files" in sync.failure
    assert adapted.receiver.served.version == served


def test_an_adapter_of_few_layers_and_of_half_a_fused_one(folder: pathlib.Path, make_rig) -> None:
    """vLLM holds gate_proj and up_proj as one layer, and prepares those alone that are named."""
    rig = make_rig(folder, lora=section(LoraSpec, rank=4, alpha=16, targets=("gate_proj", "down_proj", "k_proj")))
    try:
        rig.store.publish_image(1, adapter_of(rig.stager.layout, 1), rig.stager.layout)
        assert gap(rig, folder, generate(rig), PROMPT, 0) < ROUNDING
        assert rig.loop.run_until_complete(rig.follow(1)).failure == ""
        result = generate(rig)
        assert gap(rig, folder, result, PROMPT, 1) < ROUNDING
        assert gap(rig, folder, result, PROMPT, 0) > 5 * ROUNDING
    finally:
        rig.close()
