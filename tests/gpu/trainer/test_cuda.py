"""The trainer's CUDA paths: flex_attention against segments, and the engine in bf16."""

import pathlib

import pytest
import torch

from rljob_api import types
from rljob_api.manifest.trainer import OptimizerSpec
from rljob_testing import gpu
from rljob_testing import trainer_makers as makers
from rljob_testing.sections import section
from rljob_workers.trainer.model import attention, batch_tensors

pytestmark = gpu.NEEDS_GPU
SEGMENTS = [
    types.Segment(start=0, end=300),
    types.Segment(start=300, end=340, parent=0),
    types.Segment(start=340, end=341, parent=0),
    types.Segment(start=341, end=500),
    types.Segment(start=500, end=620),
    types.Segment(start=620, end=700, parent=4),
]


@pytest.mark.skipif(not gpu.HAS_GPU, reason="needs torch.cuda.is_available()")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_flex_attention_equals_segments(dtype: torch.dtype) -> None:
    device = gpu.DEVICE
    q, k, v = (torch.randn(1, heads, 700, 64, device=device, dtype=dtype, requires_grad=True) for heads in (6, 2, 2))
    upstream = torch.randn(1, 700, 6, 64, device=device, dtype=dtype)
    plans = [
        attention.AttentionPlan(tuple(SEGMENTS), 380),
        attention.AttentionPlan(tuple(SEGMENTS), 380, block_mask=attention.make_block_mask(SEGMENTS, device)),
    ]
    results = []
    for plan in plans:
        found, _ = attention.packed_attention(torch.nn.Identity(), q, k, v, None, attention_plan=plan)
        results.append((found, *torch.autograd.grad(found, (q, k, v), upstream)))
    bound = 0.05 if dtype is torch.bfloat16 else 2e-3
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_engine_trains_at_every_zero_stage(
    stage: int, one_rank: torch.device, tiny_model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    from rljob_workers.trainer.engine import deepspeed

    config = makers.make_trainer_config(
        tmp_path,
        dtype="bfloat16",
        zero_stage=stage,
        optimizer=section(OptimizerSpec, learning_rate=0.01),
        device=one_rank.type,
    )
    built = deepspeed.Engine(config, tiny_model, one_rank)
    tensors = batch_tensors.to_tensors(makers.pack(makers.make_rows(groups=2, size=3), shared=True), one_rank)
    before = float(built.score(tensors).mul(tensors.advantages).sum())
    for _ in range(3):
        logprobs, _ = built.forward(tensors)
        built.backward(-(logprobs * tensors.advantages).mean())
        assert built.step(0.01).applied
    assert float(built.score(tensors).mul(tensors.advantages).sum()) > before
