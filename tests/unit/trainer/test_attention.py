"""Three ways of packed attention against one dense mask that is plainly right."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import errors, types
from rljob_workers.trainer import attention

CPU = torch.device("cpu")
# A shared prompt with two completions (one of a single token), a lone row, a prompt with one completion.
MIXED = [(0, 5, -1), (5, 8, 0), (8, 9, 0), (9, 13, -1), (13, 16, -1), (16, 20, 4)]
WAYS = ["segments", "grid"]


def segments_of(described: list[tuple[int, int, int]]) -> list[types.Segment]:
    return [types.Segment(start=start, end=end, parent=parent) for start, end, parent in described]


def plan_of(segments: list[types.Segment], way: str) -> attention.AttentionPlan:
    grid = attention.make_grid(segments, CPU) if way == "grid" else None
    block_mask = attention.make_block_mask(segments, CPU) if way == "flex" else None
    return attention.AttentionPlan(tuple(segments), 100, grid=grid, block_mask=block_mask)


def visible(segments: list[types.Segment]) -> torch.Tensor:
    """One comparison a pair: same segment and not later, or in the parent."""
    length = segments[-1].end
    mask = torch.zeros(length, length, dtype=torch.bool)
    for segment in segments:
        for query in range(segment.start, segment.end):
            mask[query, segment.start : query + 1] = True
            if segment.parent >= 0:
                parent = segments[segment.parent]
                mask[query, parent.start : parent.end] = True
    return mask


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(2, 3) * scale).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2)


def heads(length: int, seed: int, heads_q: int = 6, heads_kv: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(1, count, length, 8, dtype=torch.float64, generator=generator, requires_grad=True)
        for count in (heads_q, heads_kv, heads_kv)
    ]


def assert_equals_dense(segments: list[types.Segment], way: str, seed: int) -> None:
    q, k, v = heads(segments[-1].end, seed)
    found, weights = attention.packed_attention(
        torch.nn.Identity(), q, k, v, None, scaling=0.3, attention_plan=plan_of(segments, way)
    )
    expected = dense(q, k, v, visible(segments), 0.3)
    assert weights is None
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    for ours, theirs in zip(
        torch.autograd.grad(found, (q, k, v), upstream), torch.autograd.grad(expected, (q, k, v), upstream), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_output_and_gradients_equal_the_dense_mask(way: str) -> None:
    assert_equals_dense(segments_of(MIXED), way, 0)


@pytest.mark.parametrize("way", WAYS)
def test_blocks_of_equal_width_need_no_padding_and_are_exact(way: str) -> None:
    segments = segments_of([(0, 3, -1), (3, 5, 0), (5, 8, -1), (8, 10, 2)])
    assert attention.make_grid(segments, CPU).dense
    assert_equals_dense(segments, way, 3)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_sees_the_same_tokens() -> None:
    segments = segments_of(MIXED)
    q, k, v = (part.detach() for part in heads(20, 5))
    found, _ = attention.packed_attention(
        torch.nn.Identity(), q, k, v, None, scaling=0.3, attention_plan=plan_of(segments, "flex")
    )
    torch.testing.assert_close(found, dense(q, k, v, visible(segments), 0.3), rtol=1e-5, atol=1e-6)


@st.composite
def packs(draw: st.DrawFn) -> list[types.Segment]:
    described, position = [], 0
    for _ in range(draw(st.integers(1, 4))):
        root = len(described)
        for child in range(1 + draw(st.integers(0, 3))):
            length = draw(st.integers(1, 6))
            described.append((position, position + length, root if child else -1))
            position += length
    return segments_of(described)


@settings(max_examples=25, deadline=None)
@given(packs(), st.sampled_from(WAYS), st.integers(0, 1000))
def test_any_pack_equals_the_dense_mask(segments: list[types.Segment], way: str, seed: int) -> None:
    assert_equals_dense(segments, way, seed)


def test_small_blocks_take_the_grid_and_long_or_uneven_ones_do_not() -> None:
    small = segments_of([(0, 50, -1), (50, 58, 0), (58, 108, -1), (108, 116, 2)])
    assert attention.make_plan(small, CPU).grid is not None
    long = segments_of([(0, 500, -1), (500, 508, 0)])
    assert attention.make_plan(long, CPU).grid is None
    uneven = segments_of([(0, 200, -1), (200, 201, -1), (201, 202, -1)])
    assert attention.make_plan(uneven, CPU).grid is None


def test_the_longest_path_is_a_root_with_its_longest_child() -> None:
    assert attention.make_plan(segments_of(MIXED), CPU).longest == 8


def test_a_row_longer_than_a_sliding_window_is_refused_and_a_shorter_one_exact() -> None:
    segments = segments_of(MIXED)
    q, k, v = heads(20, 0)
    plan = attention.AttentionPlan(tuple(segments), longest=8)
    with pytest.raises(errors.EngineError, match="8 tokens exceeds the model's sliding window of 7"):
        attention.packed_attention(torch.nn.Identity(), q, k, v, None, attention_plan=plan, sliding_window=7)
    assert attention.packed_attention(torch.nn.Identity(), q, k, v, None, attention_plan=plan, sliding_window=8)


def test_a_model_with_a_soft_cap_is_refused() -> None:
    q, k, v = heads(20, 0)
    with pytest.raises(errors.EngineError, match="soft cap"):
        attention.packed_attention(
            torch.nn.Identity(), q, k, v, None, attention_plan=plan_of(segments_of(MIXED), "grid"), softcap=30.0
        )


def test_a_forward_without_a_plan_is_refused() -> None:
    q, k, v = heads(20, 0)
    with pytest.raises(errors.EngineError, match="attention_plan"):
        attention.packed_attention(torch.nn.Identity(), q, k, v, None)
