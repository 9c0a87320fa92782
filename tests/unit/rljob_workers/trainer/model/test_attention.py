"""Three ways of packed attention against one dense mask that is plainly right."""

import pathlib
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention

from rljob_api import errors, types
from rljob_workers.trainer.model import attention

CPU = torch.device("cpu")
# A shared prompt with two completions (one of a single token), a lone row, a prompt with one completion.
MIXED = [(0, 5, -1), (5, 8, 0), (8, 9, 0), (9, 13, -1), (13, 16, -1), (16, 20, 4)]
# Conversations: two that fork twice, at different depths, and one that goes on behind a fork; a lone row; two trees.
FORKS = [
    (0, 4, -1), (4, 7, 0), (7, 9, 1), (9, 12, 1), (12, 13, 3), (13, 17, 3), (17, 19, 0), (19, 24, -1), (24, 25, -1),
    (25, 28, 8),
]  # fmt: skip
# `cells` is the grid where trees are too large for one cell each.
WAYS = ["branches", "grid", "cells"]


def segments_of(described: list[tuple[int, int, int]]) -> list[types.Segment]:
    return [types.Segment(start=start, end=end, parent=parent) for start, end, parent in described]


def plan_of(segments: list[types.Segment], way: str) -> attention.AttentionPlan:
    grid = attention.make_grid(segments, CPU) if way in ("grid", "cells") else None
    block_mask = attention.make_block_mask(segments, CPU) if way == "flex" else None
    longest = attention.longest_path(segments)
    return attention.AttentionPlan(tuple(segments), longest, grid=grid, block_mask=block_mask)


def visible(segments: list[types.Segment], window: int | None = None) -> torch.Tensor:
    """The newest `window` of the keys that a query's path holds up to itself, or all of them."""
    length = segments[-1].end
    mask = torch.zeros(length, length, dtype=torch.bool)
    paths: list[list[int]] = []
    for segment in segments:
        before = paths[segment.parent] if segment.parent >= 0 else []
        paths.append([*before, *range(segment.start, segment.end)])
        for query in range(segment.start, segment.end):
            path = [*before, *range(segment.start, query + 1)]
            mask[query, path if window is None else path[-window:]] = True
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


def assert_equals_dense(segments: list[types.Segment], way: str, seed: int, window: int | None = None) -> None:
    q, k, v = heads(segments[-1].end, seed)
    with pytest.MonkeyPatch.context() as patches:
        if way == "cells":
            patches.setattr(attention, "GRID_WIDTH", 5)
            patches.setattr(attention, "CELL_TOKENS", 4)
        plan = plan_of(segments, way)
        found, weights = attention.packed_attention(
            torch.nn.Identity(), q, k, v, None, scaling=0.3, attention_plan=plan, sliding_window=window
        )
    expected = dense(q, k, v, visible(segments, window), 0.3)
    assert weights is None
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    for ours, theirs in zip(
        torch.autograd.grad(found, (q, k, v), upstream), torch.autograd.grad(expected, (q, k, v), upstream), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("described", [MIXED, FORKS])
@pytest.mark.parametrize("way", WAYS)
def test_output_and_gradients_equal_the_dense_mask(way: str, described: list[tuple[int, int, int]]) -> None:
    assert_equals_dense(segments_of(described), way, 0)


def test_a_branch_is_one_stretch_from_where_it_leaves_another() -> None:
    """Each row costs one call: a prompt goes with its first completion, a turn with the first one that follows it."""
    paths = [[(part.start, part.end, part.depth) for part in path] for path in attention._branches(segments_of(FORKS))]
    assert paths == [
        [(0, 9, 0)],
        [(0, 7, 0), (9, 13, 7)],
        [(0, 7, 0), (9, 12, 7), (13, 17, 10)],
        [(0, 4, 0), (17, 19, 4)],
        [(19, 24, 0)],
        [(24, 28, 0)],
    ]


def test_a_token_is_seen_until_the_last_descendant_of_its_segment_ends() -> None:
    """Worked by hand: segment 1 is [4, 7) and its last descendant ends at 17."""
    until, depth = attention._until_and_depth(segments_of(FORKS))
    assert until.tolist() == [19] * 4 + [17] * 3 + [9] * 2 + [17] * 3 + [13] + [17] * 4 + [19] * 2 + [24] * 5 + [28] * 4
    assert depth.tolist()[9:19] == [7, 8, 9, 10, 10, 11, 12, 13, 4, 5]
    place = torch.arange(28)
    mask = attention.sees(place[:, None], place[None], until[None])
    assert torch.equal(mask, visible(segments_of(FORKS)))


def test_a_large_tree_is_cut_into_cells_that_see_what_is_before_their_first_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "GRID_WIDTH", 12)
    monkeypatch.setattr(attention, "CELL_TOKENS", 5)
    large = [
        (0, 4, -1), (4, 6, 0), (6, 7, 1), (7, 9, 0), (9, 11, 3), (11, 13, 0), (13, 15, 5), (15, 18, 5), (18, 24, -1)
    ]  # fmt: skip
    cells = attention._cells(segments_of(large))
    assert [[(part.start, part.end, part.depth) for part in cell] for cell in cells] == [
        [(0, 4, 0)],
        [(0, 4, 0), (4, 9, 4)],
        [(0, 4, 0), (7, 9, 4), (9, 13, 6)],
        [(0, 4, 0), (11, 13, 4), (13, 18, 6)],
        [(18, 24, 0)],
    ]
    grid = attention.make_grid(segments_of(large), CPU)
    assert grid.bias.shape == (5, 6, 11)
    assert grid.keys is not None
    assert len(grid.slots) == 24


@pytest.mark.parametrize("way", WAYS)
def test_blocks_of_equal_width_need_no_padding_and_are_exact(way: str) -> None:
    segments = segments_of([(0, 3, -1), (3, 5, 0), (5, 8, -1), (8, 10, 2)])
    assert attention.make_grid(segments, CPU).dense
    assert_equals_dense(segments, way, 3)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("described", [MIXED, FORKS])
@pytest.mark.parametrize("window", [None, 4])
def test_flex_attention_sees_the_same_tokens(window: int | None, described: list[tuple[int, int, int]]) -> None:
    segments = segments_of(described)
    q, k, v = (part.detach() for part in heads(segments[-1].end, 5))
    found, _ = attention.packed_attention(
        torch.nn.Identity(), q, k, v, None, scaling=0.3, attention_plan=plan_of(segments, "flex"), sliding_window=window
    )
    torch.testing.assert_close(found, dense(q, k, v, visible(segments, window), 0.3), rtol=1e-5, atol=1e-6)


# Bounds on and off the edges of blocks of 128: siblings within one, a prompt of many, a row of several.
BLOCKY = [(0, 300, -1), (300, 310, 0), (310, 384, 0), (384, 700, 0), (700, 1024, -1), (1024, 1030, 4), (1030, 1290, 4)]
# Forks within a block, at its bound, and behind an ancestor of several blocks.
DEEP = [
    (0, 300, -1), (300, 310, 0), (310, 384, 1), (384, 500, 1), (500, 700, 3), (700, 900, 0), (900, 1000, 5),
    (1000, 1290, 5),
]  # fmt: skip


@pytest.mark.parametrize("window", [None, 1, 100, 128, 290, 500])
@pytest.mark.parametrize(("described", "length"), [(BLOCKY, 1280), (BLOCKY, 1290), (DEEP, 1290)])
def test_blocks_are_listed_as_torch_lists_them_from_every_pair_of_tokens(
    window: int | None, described: list[tuple[int, int, int]], length: int
) -> None:
    segments = segments_of([(start, min(end, length), parent) for start, end, parent in described])
    ours, mask = attention.make_block_mask(segments, CPU, window), visible(segments, window)
    theirs = flex_attention.create_block_mask(
        lambda _batch, _head, query, key: mask[query, key], None, None, length, length, device="cpu"
    )
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for counts, indices in (("kv_num_blocks", "kv_indices"), ("full_kv_num_blocks", "full_kv_indices")):
        for row, count in enumerate(getattr(ours, counts)[0, 0].tolist()):
            named = [getattr(made, indices)[0, 0, row, :count].tolist() for made in (ours, theirs)]
            assert sorted(named[0]) == sorted(named[1]), (indices, row)


def peak_kib(length: int) -> int:
    """Memory above what was there before that building the mask of a prompt with 8 completions took at its highest."""
    step = (length - 1024) // 8
    segments = segments_of([(0, 1024, -1), *((1024 + step * i, 1024 + step * (i + 1), 0) for i in range(8))])
    status = pathlib.Path("/proc/self/status")
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = int(re.findall(r"VmRSS:\s+(\d+)", status.read_text())[0])
    attention.make_block_mask(segments, CPU)
    return int(re.findall(r"VmHWM:\s+(\d+)", status.read_text())[0]) - before


def test_memory_of_a_block_mask_grows_with_tokens_not_with_their_square() -> None:
    attention.make_block_mask(segments_of(MIXED), CPU)
    peaks = {length: peak_kib(length * 1024) for length in (8, 16, 32)}
    # The square at 11 bytes is 11 GB at 32k. 256 bytes a token and 2 MiB that an allocator may round up to.
    assert all(peak < length * 256 + 2048 for length, peak in peaks.items()), peaks


@st.composite
def packs(draw: st.DrawFn) -> list[types.Segment]:
    """Any trees: the parent of each segment is the one before it, an ancestor of that, or none."""
    described: list[tuple[int, int, int]] = []
    position = 0
    for index in range(draw(st.integers(1, 10))):
        path, parent = [-1], index - 1
        while parent >= 0:
            path.append(parent)
            parent = described[parent][2]
        length = draw(st.integers(1, 6))
        described.append((position, position + length, draw(st.sampled_from(path))))
        position += length
    return segments_of(described)


@settings(max_examples=25, deadline=None)
@given(packs(), st.sampled_from(WAYS), st.integers(0, 1000), st.one_of(st.none(), st.integers(1, 12)))
def test_any_pack_equals_the_dense_mask(segments: list[types.Segment], way: str, seed: int, window: int | None) -> None:
    assert_equals_dense(segments, way, seed, window)


def test_small_blocks_take_the_grid_and_long_or_uneven_ones_do_not() -> None:
    small = segments_of([(0, 50, -1), (50, 58, 0), (58, 108, -1), (108, 116, 2)])
    assert attention.make_plan(small, CPU).grid is not None
    long = segments_of([(0, 500, -1), (500, 508, 0)])
    assert attention.make_plan(long, CPU).grid is None
    shared = [(0, 60, -1)] + [(60 + 12 * i, 72 + 12 * i, 0) for i in range(40)]
    assert attention.make_plan(segments_of(shared), CPU).grid is not None
    uneven = segments_of([(0, 200, -1), (200, 201, -1), (201, 202, -1)])
    assert attention.make_plan(uneven, CPU).grid is None


def test_the_longest_path_goes_from_a_root_to_its_deepest_end() -> None:
    assert attention.make_plan(segments_of(MIXED), CPU).longest == 8
    assert attention.make_plan(segments_of(FORKS), CPU).longest == 14


def test_a_window_as_long_as_the_longest_path_costs_nothing() -> None:
    plan = attention.make_plan(segments_of(MIXED), CPU)
    assert plan.within(8) is plan
    assert plan.within(None) is plan
    assert plan.within(7) is plan.within(7) is not plan


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
