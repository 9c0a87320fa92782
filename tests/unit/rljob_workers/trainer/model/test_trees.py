"""Rows of conversations that fork, as one tree, against the same rows apart: each token once, and nothing else differs.

fp32, 1e-6 of the largest log-probability and of the gradient's norm. That rows apart are what a model's own code makes
of them is tested for each family.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import pytest
import torch

from rljob_api import types
from rljob_api.manifest.loss import CorrectionSpec, LossSpec
from rljob_testing import model_families
from rljob_testing.forked_rows import make_forked_rows, num_distinct_prefixes
from rljob_testing.packed_loss import packed_gradients
from rljob_testing.sections import make_spec, section
from rljob_workers.coordinator.batching import blocks, packing
from rljob_workers.trainer.model import attention, batch_tensors, loading, policy

CPU = torch.device("cpu")
LOSS = section(LossSpec, entropy_coef=0.01, rollout_correction=section(CorrectionSpec, high=2.0))
# Plain attention, layers with a window that many rows outgrow, and experts that tokens choose.
FAMILIES = ["gemma3_text", "llama", "qwen3_moe"]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], policy.Policy]:
    made: dict[str, policy.Policy] = {}

    def model(family: str) -> policy.Policy:
        if family not in made:
            folder = model_families.save(family, tmp_path_factory.mktemp(family))
            lm = loading.load_model(folder, make_spec({"trainer.dtype": "float32"}), CPU)
            made[family] = policy.Policy(lm, temperature=0.9, chunk_tokens=50)
        return made[family]

    return model


def packed(rows: Sequence[types.TrainSample], *, max_tokens: int = 10_000) -> packing.Packed:
    shape = packing.Shape(seed=0, minibatches=1, epochs=1, world_size=1, max_tokens=max_tokens)
    return packing.pack(rows, step=1, shape=shape)


def apart(rows: Sequence[types.TrainSample]) -> packing.Packed:
    alone = [dataclasses.replace(row, group_id=types.GroupId(f"alone {row.row}")) for row in rows]
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(blocks, "SHARED_TOKENS", 1 << 20)
        return packed(alone)


def logprobs_of(model: policy.Policy, made: packing.Packed) -> dict[int, torch.Tensor]:
    """Return the log-probabilities of each row."""
    by_row: dict[int, torch.Tensor] = {}
    for part in made.micro_batches[0]:
        tensors = batch_tensors.to_tensors(part, CPU)
        with torch.no_grad():
            scores, *_ = model(*tensors.inputs)
        by_row |= {header.row: scores[tensors.row_index == index] for index, header in enumerate(part.rows)}
    return by_row


def assert_same_loss_and_gradients(model: policy.Policy, tree: packing.Packed, alone: packing.Packed) -> None:
    (minibatch,) = tree.minibatches
    loss, gradients = packed_gradients(model, tree.micro_batches[0], minibatch, LOSS)
    loss_apart, gradients_apart = packed_gradients(model, alone.micro_batches[0], minibatch, LOSS)
    assert loss == pytest.approx(loss_apart, abs=1e-6)
    assert gradients.keys() == gradients_apart.keys()
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients_apart.values()))
    for name, gradient in gradients.items():
        assert float((gradient - gradients_apart[name]).abs().max()) <= 1e-6 * norm, name


@pytest.mark.parametrize("grid_depth", [attention.GRID_DEPTH, 0])
@pytest.mark.parametrize("family", FAMILIES)
def test_trees_equal_their_rows_apart(
    family: str, grid_depth: int, model_of: Callable[[str], policy.Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "GRID_DEPTH", grid_depth)
    model = model_of(family)
    for seed in range(3):
        rows = make_forked_rows(groups=2, size=6, seed=seed, vocab=model_families.VOCAB)
        tree, alone = packed(rows), apart(rows)
        assert tree.computed_tokens == tree.unique_tokens == num_distinct_prefixes(rows)
        assert alone.computed_tokens == tree.row_tokens > 1.5 * tree.computed_tokens
        found, expected = logprobs_of(model, tree), logprobs_of(model, alone)
        largest = max(float(theirs.abs().max()) for theirs in expected.values())
        for row, theirs in expected.items():
            assert float((found[row] - theirs).abs().max()) <= 1e-6 * largest, (seed, row)
        assert_same_loss_and_gradients(model, tree, alone)


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_that_begin_alike_equal_their_rows_apart(
    family: str, model_of: Callable[[str], policy.Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six groups behind one text, in several cells of the grid."""
    for name, value in (("GRID_WIDTH", 80), ("CELL_TOKENS", 30), ("GRID_WASTE", 4)):
        monkeypatch.setattr(attention, name, value)
    model = model_of(family)
    rows = make_forked_rows(groups=6, size=3, seed=5, vocab=model_families.VOCAB, before=20)
    tree, alone = packed(rows), apart(rows)
    (whole,) = tree.micro_batches[0]
    assert [segment.parent for segment in whole.segments].count(-1) == 1
    assert batch_tensors.to_tensors(whole, CPU).plan.grid is not None
    assert tree.computed_tokens == num_distinct_prefixes(rows) - 5 * 20
    assert alone.computed_tokens == tree.row_tokens > 3 * tree.computed_tokens
    assert_same_loss_and_gradients(model, tree, alone)


def test_a_tree_that_is_divided_by_the_budget_equals_its_rows_apart(model_of: Callable[[str], policy.Policy]) -> None:
    model = model_of("llama")
    rows = make_forked_rows(groups=1, size=12, seed=7, vocab=model_families.VOCAB)
    divided, alone = packed(rows, max_tokens=40), apart(rows)
    assert len(divided.micro_batches[0]) > 1
    assert divided.unique_tokens < divided.computed_tokens < divided.row_tokens
    assert_same_loss_and_gradients(model, divided, alone)


@pytest.mark.parametrize("max_tokens", [2_000, 8_000])
def test_conversations_cost_their_distinct_tokens_within_a_fiftieth(max_tokens: int) -> None:
    """Groups of 8 conversations of some 400 tokens each, on one rank."""
    rows = make_forked_rows(groups=20, size=8, seed=3, vocab=30_000, longest=150)
    made = packed(rows, max_tokens=max_tokens)
    assert made.unique_tokens == num_distinct_prefixes(rows)
    assert made.computed_tokens <= 1.02 * made.unique_tokens
    assert made.row_tokens > 2 * made.computed_tokens
