"""Figures of docs/design/performance.md#s-4."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from rljob_api.manifest.model import LoraSpec
from rljob_testing.large_models import HEAD_DIM, Width
from rljob_testing.sections import section
from rljob_workers.local.checks.memory import (
    MemoryEstimate,
    ModelShape,
    adapter_params,
    buffer_bytes,
    bytes_per_param,
    kv_bytes_per_token,
    memory_estimate,
    on_one_cpu,
)

ROOT = pathlib.Path(__file__).parents[5]
# What runs of `python -m tests.bench.large_model` took.
MEASURED = [json.loads(line) for line in (ROOT / "docs/large_models.jsonl").read_text().splitlines()]

SMOLLM2_135M = ModelShape(
    num_params=134_515_008, num_layers=30, hidden_size=576, vocab_size=49_152, num_kv_heads=3, head_dim=64
)


@pytest.mark.parametrize(
    ("stage", "ranks", "expected"),
    [(0, 8, 16.0), (1, 4, 7.0), (2, 7, 4.0), (3, 8, 2.0), (1, 1, 16.0), (2, 1, 16.0), (3, 1, 16.0)],
)
def test_bytes_per_parameter(stage: int, ranks: int, expected: float) -> None:
    assert bytes_per_param(zero_stage=stage, num_ranks=ranks) == pytest.approx(expected)


@pytest.mark.parametrize(("stage", "expected"), [(0, 18.0), (1, 9.0), (2, 6.0), (3, 4.5)])
def test_fp32_gradients_are_sharded_from_stage_2(stage: int, expected: float) -> None:
    assert bytes_per_param(zero_stage=stage, num_ranks=4, fp32_gradients=True) == pytest.approx(expected)


@pytest.mark.parametrize(("params", "gigabytes"), [(1_500_000_000, 24), (7_000_000_000, 112)])
def test_state_of_known_sizes_on_one_device(params: int, gigabytes: int) -> None:
    assert bytes_per_param(zero_stage=0, num_ranks=1) * params == gigabytes * 10**9


@pytest.mark.parametrize(
    ("layers", "heads", "size", "expected"), [(30, 3, 64, 23_040), (28, 2, 128, 28_672), (28, 4, 128, 57_344)]
)
def test_cache_per_token_of_known_models(layers: int, heads: int, size: int, expected: int) -> None:
    shape = ModelShape(num_params=1, num_layers=layers, hidden_size=1, vocab_size=1, num_kv_heads=heads, head_dim=size)
    assert kv_bytes_per_token(shape) == expected


def test_buffers_of_zero_3_are_bounded_by_its_bucket() -> None:
    assert [buffer_bytes(trained, zero_stage=3) for trained in (100, 7_000_000_000)] == [800, 4_000_000_000]
    assert buffer_bytes(7_000_000_000, zero_stage=2) == 0


def estimate_of(shape: ModelShape, *, zero_stage: int, num_ranks: int, **more: Any) -> MemoryEstimate:
    return memory_estimate(
        shape,
        zero_stage=zero_stage,
        num_ranks=num_ranks,
        tokens_per_micro_batch=1000,
        logits_chunk_tokens=1024,
        gradient_checkpointing=True,
        max_model_len=256,
        max_num_seqs=64,
        **more,
    )


def test_estimate_of_the_built_in_model() -> None:
    estimate = estimate_of(SMOLLM2_135M, zero_stage=0, num_ranks=1)
    # bf16 weights, fp32 gradients, masters and two moments.
    assert estimate.state_bytes == 18 * 134_515_008
    assert estimate.activation_bytes == 1000 * 576 * (30 * 2 + 34)
    assert estimate.head_bytes == 1000 * 49_152 * 10
    assert estimate.host_image_bytes == 4 * 134_515_008
    assert estimate.kv_bytes == 23_040 * 256 * 64
    assert estimate.trainer_rank_bytes == 18 * 134_515_008 + 54_144_000 + 491_520_000


@pytest.mark.parametrize(("zero_stage", "parts"), [(0, 1), (1, 4), (2, 4), (3, 4)])
def test_the_mean_of_weights_is_as_large_as_their_masters_and_divided_with_them(zero_stage: int, parts: int) -> None:
    without, with_mean = (
        estimate_of(SMOLLM2_135M, zero_stage=zero_stage, num_ranks=4, averages=averages, critic=True)
        for averages in (False, True)
    )
    assert with_mean.state_bytes - without.state_bytes == 4 * 134_515_008 // parts
    assert with_mean.critic_bytes == without.critic_bytes


def test_a_critic_doubles_the_state_and_a_reference_adds_its_weights_which_zero_3_divides() -> None:
    alone, both = (
        estimate_of(SMOLLM2_135M, zero_stage=3, num_ranks=4, critic=others, reference=others)
        for others in (False, True)
    )
    # Each with buffers of its own.
    assert both.critic_bytes == both.state_bytes == (18 + 4 * 8) * 134_515_008 // 4
    assert both.trainer_rank_bytes - alone.trainer_rank_bytes == (18 + 4 * 8 + 2) * 134_515_008 // 4
    assert estimate_of(SMOLLM2_135M, zero_stage=2, num_ranks=4, reference=True).reference_bytes == 2 * 134_515_008


def test_a_teacher_adds_its_own_weights_which_zero_3_divides_and_a_cpu_maps() -> None:
    whole, divided = (
        estimate_of(SMOLLM2_135M, zero_stage=stage, num_ranks=4, teacher_params=1_000_000) for stage in (2, 3)
    )
    assert (whole.teacher_bytes, divided.teacher_bytes) == (2_000_000, 500_000)
    without = estimate_of(SMOLLM2_135M, zero_stage=2, num_ranks=4)
    assert whole.trainer_rank_bytes == without.trainer_rank_bytes + 2_000_000
    on_cpu = on_one_cpu(whole, zero_stage=2, num_ranks=4, num_rollouts=1)
    assert on_cpu.mapped_bytes == 2_000_000
    assert on_cpu.total_bytes == on_one_cpu(without, zero_stage=2, num_ranks=4, num_rollouts=1).total_bytes


def test_a_model_that_the_judge_serves_is_a_second_engine_on_the_machine() -> None:
    needed = estimate_of(SMOLLM2_135M, zero_stage=0, num_ranks=1)
    alone = on_one_cpu(needed, zero_stage=0, num_ranks=1, num_rollouts=1)
    judged = on_one_cpu(needed, zero_stage=0, num_ranks=1, num_rollouts=1, judge_bytes=460_000_000)
    assert alone.judge_bytes == 0
    assert judged.total_bytes - alone.total_bytes == judged.judge_bytes
    assert judged.judge_bytes > 460_000_000 + 1_000_000_000, "its libraries take memory too"


def test_an_adapter_trains_rank_times_inputs_and_outputs_of_each_matrix_and_its_versions_hold_that_alone() -> None:
    shape = ModelShape(
        num_params=1_000_000,
        num_layers=3,
        hidden_size=8,
        vocab_size=100,
        num_kv_heads=1,
        head_dim=8,
        linear={"q_proj": (8, 16), "down_proj": (24, 8)},
    )
    adapter = adapter_params(shape, section(LoraSpec, rank=4))
    assert adapter == 3 * 4 * (8 + 16 + 24 + 8)
    assert adapter_params(shape, section(LoraSpec, rank=4, targets=("down_proj",))) == 3 * 4 * 32
    assert adapter_params(shape, section(LoraSpec, targets=("qkv_proj",))) is None

    def estimate(zero_stage: int, trained: int) -> MemoryEstimate:
        return estimate_of(shape, zero_stage=zero_stage, num_ranks=4, adapter=trained)

    # The model in bf16, and 18 bytes of each parameter of the adapter; ZeRO 3 divides both among the ranks.
    assert estimate(0, adapter).state_bytes == 2_000_000 + 18 * adapter
    assert estimate(3, adapter).state_bytes == 500_000 + round(4.5 * adapter) + 8 * adapter
    assert (estimate(0, adapter).frozen_bytes, estimate(0, 0).frozen_bytes) == (2_000_000, 0)
    assert estimate(0, adapter).version_bytes == 2 * adapter
    assert estimate(0, adapter).host_image_bytes == 2 * 2 * adapter
    assert estimate(0, adapter).weight_bytes == 2_000_000 + 2 * adapter
    assert estimate(0, 0).version_bytes == estimate(0, 0).weight_bytes == 2_000_000


def test_without_bfloat16_instructions_weights_and_cache_of_an_engine_and_a_layer_of_the_trainer_are_float32() -> None:
    shape = dataclasses.replace(SMOLLM2_135M, linear={"q_proj": (576, 576), "down_proj": (1536, 576)})
    usual, wide = (
        estimate_of(shape, zero_stage=0, num_ranks=1, computes_in_fp32=computes_in_fp32)
        for computes_in_fp32 in (False, True)
    )
    assert wide.weight_bytes == 2 * usual.weight_bytes
    assert wide.kv_bytes == 2 * usual.kv_bytes
    assert wide.activation_bytes == 2 * usual.activation_bytes + 4 * (576 * 576 + 1536 * 576)
    assert (wide.version_bytes, wide.state_bytes) == (usual.version_bytes, usual.state_bytes)


@pytest.mark.parametrize("run", MEASURED, ids=[f"{run['trains']}-{run['hidden']}x{run['layers']}" for run in MEASURED])
def test_measured_runs_of_large_models_took_what_is_estimated(run: dict[str, Any]) -> None:
    """At most 15 % less than the machine saw, and at most half as much again: not all roles peak at once."""
    width = Width(hidden=run["hidden"], layers=run["layers"])
    adapted = run["trains"] == "adapter"
    shape = ModelShape(
        num_params=run["weights_bytes"] // 2,
        num_layers=width.layers,
        hidden_size=width.hidden,
        vocab_size=300,
        num_kv_heads=width.hidden // 4 // HEAD_DIM,
        head_dim=HEAD_DIM,
        linear={name.partition(".")[2]: (inputs, outputs) for name, (outputs, inputs) in width.matrices().items()},
    )
    adapter = adapter_params(shape, section(LoraSpec, rank=8)) if adapted else 0
    assert adapter is not None
    zero_stage = 0 if adapted else 3
    estimate = memory_estimate(
        shape, zero_stage=zero_stage, num_ranks=1, tokens_per_micro_batch=1024, logits_chunk_tokens=1024,
        gradient_checkpointing=True, max_model_len=96, max_num_seqs=16,
        computes_in_fp32=run["computes_in_fp32"], adapter=adapter,
    )  # fmt: skip
    whole = on_one_cpu(estimate, zero_stage=zero_stage, num_ranks=1, num_rollouts=1)
    measured = run["memory"]["all"]["anonymous"]
    assert 0.85 * measured <= whole.total_bytes <= 1.5 * measured
