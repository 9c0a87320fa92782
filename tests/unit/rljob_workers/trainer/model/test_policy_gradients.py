"""Loss and gradient of a whole model: packed, prefix-shared and split in any way, against rows computed one by one.

The reference knows no packing: Hugging Face's own attention on one row at a time, log_softmax, and the equation of the
loss written out per token. fp32, 1e-5 relative to the largest entry.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api import types
from rljob_api.manifest.loss import CorrectionSpec, LossSpec
from rljob_testing import trainer_makers as makers
from rljob_testing.packed_loss import Gradients, gradients_of, packed_gradients
from rljob_testing.sections import section
from rljob_workers.trainer.model import attention, policy

GROUPS = makers.make_rows(groups=3, size=3, seed=5)
TEMPERATURE = 0.9
LOSS = section(
    LossSpec, constant_denominator=8.0, entropy_coef=0.01, rollout_correction=section(CorrectionSpec, high=2.0)
)


@pytest.fixture(scope="module")
def ours(tiny_model: pathlib.Path) -> policy.Policy:
    transformers.AttentionInterface.register(attention.NAME, attention.packed_attention)
    lm = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=attention.NAME)
    return policy.Policy(lm.train(), temperature=TEMPERATURE, chunk_tokens=7)


@pytest.fixture(scope="module")
def plain(tiny_model: pathlib.Path) -> torch.nn.Module:
    loaded: torch.nn.Module = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="eager")
    return loaded.train()


def plain_gradients(
    model: torch.nn.Module, rows: Sequence[makers.Row], minibatch: types.Minibatch, config: LossSpec
) -> tuple[float, Gradients]:
    """One row at a time; r is 1 in value, w = min(importance weight, 2), nothing shared with the code under test."""
    model.zero_grad()
    total = 0.0
    for row in rows:
        logits = model(input_ids=torch.tensor([row.tokens])).logits[0] / TEMPERATURE
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        value = torch.zeros(())
        for target, behavior, advantage in zip(row.targets, row.behavior, row.advantages, strict=True):
            at = log_probs[target - 1]
            theta = at[row.tokens[target]]
            ratio = torch.exp(theta - theta.detach())
            weight = min(float(torch.exp(theta.detach() - behavior)), 2.0)
            entropy = -(at.exp() * at).sum()
            value = value - weight * advantage * ratio / share(row, minibatch, config)
            value = value - config.entropy_coef * entropy / minibatch.num_tokens
        value.backward()
        total += float(value.detach())
    return total, gradients_of(model)


def share(row: makers.Row, minibatch: types.Minibatch, config: LossSpec) -> float:
    return {
        "TokenMean": float(minibatch.num_tokens),
        "SequenceMean": float(minibatch.num_rows * len(row.targets)),
        "Constant": minibatch.num_rows * config.constant_denominator,
    }[config.aggregation]


def assert_same(found: tuple[float, Gradients], expected: tuple[float, Gradients]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-6)
    assert found[1].keys() == expected[1].keys()
    for name, theirs in expected[1].items():
        bound = 1e-5 * float(theirs.abs().max()) + 1e-7
        torch.testing.assert_close(found[1][name], theirs, rtol=1e-5, atol=bound, msg=name)


def all_rows(groups: Sequence[Sequence[makers.Row]]) -> list[makers.Row]:
    return [row for group in groups for row in group]


@pytest.mark.covers("algorithms 6.5")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("aggregation", ["TokenMean", "SequenceMean", "Constant"])
def test_one_pack_equals_rows_one_by_one(
    ours: policy.Policy, plain: torch.nn.Module, shared: bool, aggregation: str
) -> None:
    config = LOSS.model_copy(update={"aggregation": aggregation})
    minibatch = makers.minibatch_of(GROUPS)
    found = packed_gradients(ours, [makers.pack(GROUPS, shared=shared)], minibatch, config)
    assert_same(found, plain_gradients(plain, all_rows(GROUPS), minibatch, config))


def test_rows_of_several_turns_equal_rows_one_by_one(ours: policy.Policy, plain: torch.nn.Module) -> None:
    groups = makers.make_rows(groups=2, size=2, seed=9, turns=True)
    minibatch = makers.minibatch_of(groups)
    found = packed_gradients(ours, [makers.pack(groups, shared=False)], minibatch, LOSS)
    assert_same(found, plain_gradients(plain, all_rows(groups), minibatch, LOSS))


def test_blocks_too_deep_for_the_grid_equal_rows_one_by_one(
    ours: policy.Policy, plain: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "GRID_DEPTH", 0)
    minibatch = makers.minibatch_of(GROUPS)
    found = packed_gradients(ours, [makers.pack(GROUPS, shared=True)], minibatch, LOSS)
    assert_same(found, plain_gradients(plain, all_rows(GROUPS), minibatch, LOSS))


def test_rows_left_out_for_zero_advantages_change_nothing(ours: policy.Policy, plain: torch.nn.Module) -> None:
    quiet = [[_without_advantage(row) for row in group] for group in makers.make_rows(groups=1, size=3, seed=8)]
    config = LOSS.model_copy(update={"entropy_coef": 0.0})
    minibatch = makers.minibatch_of([*GROUPS, *quiet])
    found = packed_gradients(ours, [makers.pack(GROUPS, shared=True)], minibatch, config)
    assert_same(found, plain_gradients(plain, all_rows([*GROUPS, *quiet]), minibatch, config))


def _without_advantage(row: makers.Row) -> makers.Row:
    return dataclasses.replace(row, advantages=(0.0,) * len(row.advantages))


def test_gradient_checkpointing_changes_nothing(ours: policy.Policy) -> None:
    minibatch, parts = makers.minibatch_of(GROUPS), [makers.pack(GROUPS, shared=True)]
    expected = packed_gradients(ours, parts, minibatch, LOSS)
    ours.lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    try:
        assert_same(packed_gradients(ours, parts, minibatch, LOSS), expected)
    finally:
        ours.lm.gradient_checkpointing_disable()


@st.composite
def splits(draw: st.DrawFn) -> list[types.MicroBatch]:
    """Any order of groups, any cut into micro-batches, each shared or not; a group may itself be cut."""
    rows = [[row] for row in all_rows(GROUPS)] if draw(st.booleans()) else [list(group) for group in GROUPS]
    pieces = draw(st.permutations(rows))
    cuts = sorted(draw(st.sets(st.integers(1, len(pieces) - 1), max_size=3)))
    bounds = zip([0, *cuts], [*cuts, len(pieces)], strict=True)
    return [makers.pack(pieces[start:end], shared=draw(st.booleans())) for start, end in bounds]


@pytest.mark.covers("algorithms 6.5")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(splits())
@pytest.mark.parametrize("aggregation", ["TokenMean", "SequenceMean"])
def test_no_split_changes_loss_or_gradient(
    ours: policy.Policy, aggregation: str, parts: list[types.MicroBatch]
) -> None:
    config = LOSS.model_copy(update={"aggregation": aggregation})
    minibatch = makers.minibatch_of(GROUPS)
    whole = packed_gradients(ours, [makers.pack(GROUPS, shared=False)], minibatch, config)
    assert_same(packed_gradients(ours, parts, minibatch, config), whole)


def test_a_model_with_another_head_is_refused(ours: policy.Policy) -> None:
    ours.lm.config.logits_scaling = 8.0
    try:
        with pytest.raises(Exception, match="logits_scaling"):
            policy.Policy(ours.lm, temperature=1.0, chunk_tokens=8)
    finally:
        del ours.lm.config.logits_scaling
