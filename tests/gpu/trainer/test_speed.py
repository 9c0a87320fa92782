"""How fast the trainer is alone: use of the device, prompts that stand once, a version's way out of it."""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest
import torch

from rljob_api import types
from rljob_api.manifest.trainer import DeepspeedSpec, OptimizerSpec
from rljob_testing import gpu
from rljob_testing import trainer_makers as makers
from rljob_testing.sections import section
from rljob_workers.trainer.engine import mfu
from rljob_workers.trainer.model import batch_tensors
from rljob_workers.trainer.state import export
from rljob_workers.weights import image

if TYPE_CHECKING:
    from rljob_workers.trainer.engine import deepspeed

pytestmark = gpu.NEEDS_GPU
WARM_UP, MEASURED = 2, 5
# Of a packed micro-batch; a rehearsal's are short.
PROMPT, ANSWER, GROUP = (64, 32, 4) if gpu.REHEARSAL else (512, 1024, 8)


def row(*, prompt: int, answer: int, vocabulary: int, seed: int) -> makers.Row:
    ids = torch.randint(1, vocabulary, (prompt + answer,), generator=torch.Generator().manual_seed(seed)).tolist()
    return makers.Row(
        prompt=tuple(ids[:prompt]),
        sampled=tuple(ids[prompt:]),
        behavior=(-5.0,) * answer,
        advantages=(1.0,) * answer,
        version_steps=(0,) * answer,
        rewards=(0.0,) * answer,
        turn_ids=(0,) * answer,
    )


def build(
    folder: pathlib.Path, model: pathlib.Path, device: torch.device, *, tokens: int, stage: int
) -> "deepspeed.Engine":
    # DeepSpeed looks for a device at its import: the fixture of the rank has said which.
    from rljob_workers.trainer.engine import deepspeed

    config = makers.make_trainer_config(
        folder,
        dtype="bfloat16",
        deepspeed=section(DeepspeedSpec, zero_stage=stage),
        optimizer=section(OptimizerSpec, learning_rate=1e-6),
        gradient_checkpointing=True,
    ).model_copy(update={"device": device.type, "max_tokens_per_micro_batch": tokens, "max_row_tokens": tokens})
    return deepspeed.Engine(config, model, device)


def synchronize() -> None:
    if gpu.HAS_GPU:
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], *, repeats: int = MEASURED) -> float:
    """Return the seconds of one call, the mean of `repeats` after the warm-up."""
    for _ in range(WARM_UP):
        work()
    synchronize()
    began = time.monotonic()
    for _ in range(repeats):
        work()
    synchronize()
    return (time.monotonic() - began) / repeats


def step_of(engine: "deepspeed.Engine", batch: types.MicroBatch, device: torch.device) -> Callable[[], None]:
    tensors = batch_tensors.to_tensors(batch, device)

    def step() -> None:
        logprobs, _ = engine.forward(tensors)
        engine.backward(-(logprobs * tensors.advantages).mean())
        assert engine.step(1e-6).applied

    return step


def batch_of(groups: Sequence[Sequence[makers.Row]], *, shared: bool) -> types.MicroBatch:
    return makers.pack(groups, shared=shared)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", list(gpu.SHAPES))
def test_use_of_the_device_and_the_way_of_a_version(
    name: str, one_rank: torch.device, tmp_path: pathlib.Path, figures: gpu.Figures
) -> None:
    model = gpu.random_model(tmp_path / "model", name)
    vocabulary = gpu.shape(name)["vocab_size"]
    lengths = (128, 256) if gpu.REHEARSAL else (4096, 16384)
    engine = build(tmp_path, model, one_rank, tokens=max(lengths), stage=0)
    for length in lengths:
        batch = batch_of(
            [[row(prompt=length // 8, answer=length - length // 8, vocabulary=vocabulary, seed=length)]], shared=False
        )
        took = seconds(step_of(engine, batch, one_rank))
        figures.add(f"trainer, {name}, {length} tokens: step", took, "s")
        figures.add(f"trainer, {name}, {length} tokens: rate", length / took, "tok/s")
        if engine.accelerator is not None and engine.accelerator.size and engine.accelerator.peak_flops:
            flops = mfu.step_flops(engine.accelerator.size, [batch], trains_policy=True, num_scores=0, has_critic=False)
            used = mfu.utilisation(flops=flops, seconds=took, num_devices=1, peak_flops=engine.accelerator.peak_flops)
            goal = 0.25 if length == max(lengths) else None
            figures.add(f"trainer, {name}, {length} tokens: MFU", used, "share", least=goal)
            peak, _ = engine.accelerator.peak_memory()
            figures.add(f"trainer, {name}, {length} tokens: peak memory", peak / 2**30, "GiB")
    layout = image.layout_from_safetensors(model, "bfloat16")
    exporter = export.ImageExporter(layout=layout, visit=engine.visit, writes=True)
    took = seconds(exporter.export, repeats=3)
    figures.add(f"trainer, {name}: export of a version", took, "s")
    figures.add(f"trainer, {name}: size of a version", layout.image_bytes / 1e9, "GB")


@pytest.mark.timeout(1200)
def test_a_prompt_that_stands_once_gives_the_same_gradients_in_less_time(
    one_rank: torch.device, tmp_path: pathlib.Path, figures: gpu.Figures
) -> None:
    name = "Qwen2.5-0.5B"
    model, vocabulary = gpu.random_model(tmp_path / "model", name), gpu.shape(name)["vocab_size"]
    prompt = row(prompt=PROMPT, answer=1, vocabulary=vocabulary, seed=0).prompt
    answers = [row(prompt=1, answer=ANSWER, vocabulary=vocabulary, seed=1 + index) for index in range(GROUP)]
    group = [dataclasses.replace(answer, prompt=prompt) for answer in answers]
    tokens = GROUP * (PROMPT + ANSWER)
    engine = build(tmp_path, model, one_rank, tokens=tokens, stage=0)
    batches = {shared: batch_of([group], shared=shared) for shared in (True, False)}
    scores = {shared: engine.score(batch_tensors.to_tensors(batch, one_rank)) for shared, batch in batches.items()}
    gap = (scores[True] - scores[False]).abs()
    figures.add("prefix sharing: largest gap of log-probabilities", float(gap.max()), "nats", most=0.2)
    # bfloat16: two orders of the same sums differ by rounding, and by no more (docs/models.md, the self-test).
    assert float(gap.max()) < 1.0
    assert float(gap.mean()) < 0.2
    # Answers that do not see their prompt have others: a wrong mask would show.
    alone = dataclasses.replace(
        batches[True], segments=[dataclasses.replace(segment, parent=-1) for segment in batches[True].segments]
    )
    blind = (engine.score(batch_tensors.to_tensors(alone, one_rank)) - scores[False]).abs()
    figures.add("prefix sharing: mean gap", float(gap.mean()), "nats")
    figures.add("prefix sharing: mean gap of answers without their prompt", float(blind.mean()), "nats")
    assert float(blind.mean()) > 4 * float(gap.mean()) + 0.01
    took = {shared: seconds(step_of(engine, batch, one_rank)) for shared, batch in batches.items()}
    computed = GROUP * ANSWER + PROMPT
    figures.add(
        f"prefix sharing, P {PROMPT}, R {ANSWER}, G {GROUP}: tokens that are not computed", tokens / computed, "x"
    )
    figures.add(
        f"prefix sharing, P {PROMPT}, R {ANSWER}, G {GROUP}: faster than repeated", took[False] / took[True], "x"
    )
    figures.add("prefix sharing: rate of all rows' tokens", tokens / took[True], "tok/s")


def test_a_checkpoint_goes_on_where_it_was_written(
    one_rank: torch.device, tiny_model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    engine = build(tmp_path, tiny_model, one_rank, tokens=1024, stage=2)
    batch = makers.pack(makers.make_rows(groups=2, size=3), shared=True)
    step = step_of(engine, batch, one_rank)
    step()
    engine.save(tmp_path / "state")
    step()
    expected = engine.score(batch_tensors.to_tensors(batch, one_rank))
    other = build(tmp_path, tiny_model, one_rank, tokens=1024, stage=2)
    other.load(tmp_path / "state")
    step_of(other, batch, one_rank)()
    found = other.score(batch_tensors.to_tensors(batch, one_rank))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.02)
