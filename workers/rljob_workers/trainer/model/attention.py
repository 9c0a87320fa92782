"""Attention over packed segments: no padding in the model, no mask over the whole pack, what rows share appears once.

Segments tile the flat stream [0, T) and form trees in depth-first order: a parent stands before its children, and all
descendants of a segment follow it without a gap. A token sees its path: its own segment up to itself and all of its
ancestors' tokens. So a prompt with G completions costs P + G R tokens instead of G (P + R), a conversation that forks
what its rows hold once, and the result is exact: keys and values do not depend on what follows. A layer with a sliding
window of W sees of the path the W newest positions, its own among them. Three ways to compute the same thing, chosen by
`make_plan`:
grid      small trees side by side in a padded [cells, width, width] batch; CPU
branches  one scaled_dot_product_attention per branch, keys = its path; any device, any length, no waste
flex      flex_attention with a block mask made from the segments' bounds, compiled; CUDA

A branch is a segment with its first child, that one's first child and so on: one causal stretch of the stream.
"""

import bisect
import dataclasses
import functools
import importlib.util
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
import torch.nn.functional as F  # noqa: N812  # the name that every reader of torch code knows
from torch.nn.attention import flex_attention

from rljob_api import errors, types

NAME = "rljob_packed"
# Of what is in front of a text model: a picture's patches see one another.
_TOWERS = "sdpa"
# The largest tree that is one cell, whose square is computed.
GRID_WIDTH = 256
# A larger one is cut into cells of as many tokens.
CELL_TOKENS = 64
# Where cells would see more tokens, that costs more than the calls that `branches` makes.
GRID_DEPTH = 512
# Padded slots of a grid over real tokens; above it `branches` wastes less.
GRID_WASTE = 1.5
# Tokens per side of a block of flex_attention's mask; its kernels are made for this one.
BLOCK_TOKENS = 128


def of_parts(config: Any) -> str | dict[str, str]:
    """Return how a model's parts attend, as transformers wants to be told: the text model in packs."""
    has_tower = config.get("vision_config") if isinstance(config, Mapping) else getattr(config, "vision_config", None)
    if not has_tower:
        return NAME
    return {"text_config": NAME, "vision_config": _TOWERS}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Cells side by side: trees, or parts of one. slots [T]: place of each token in the flat grid; bias [cells, width,
    keys' width]: 0 or -inf.

    keys [cells * keys' width]: which token each key is, where cells see tokens of others; None where their own are
    their keys. dense: there is no padding slot.
    """

    slots: torch.Tensor
    bias: torch.Tensor
    dense: bool
    keys: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Return (cells, width)."""
        return self.bias.shape[0], self.bias.shape[1]


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens [start, end) of the stream that stand on one path without a gap; `depth`: tokens of the path before."""

    start: int
    end: int
    depth: int


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionPlan:
    """How one micro-batch attends. `longest` is the longest path in tokens; grid and block_mask None: branches.

    window: of sliding attention, in tokens; None: all of the path. windowed: the same plan by window, made once each.
    """

    segments: tuple[types.Segment, ...]
    longest: int
    grid: Grid | None = None
    block_mask: flex_attention.BlockMask | None = None
    window: int | None = None
    windowed: dict[int, "AttentionPlan"] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def branches(self) -> list[tuple[Stretch, ...]]:
        """Return what each branch attends to, itself last."""
        return _branches(self.segments)

    def within(self, window: int | None) -> "AttentionPlan":
        """Return the plan of a layer that sees `window` tokens; this one where no path is longer than that."""
        if window is None or self.longest <= window:
            return self
        if window not in self.windowed:
            grid, mask = self.grid, self.block_mask
            self.windowed[window] = AttentionPlan(
                self.segments,
                self.longest,
                grid=None if grid is None else make_grid(self.segments, grid.slots.device, window),
                block_mask=None if mask is None else make_block_mask(self.segments, mask.kv_indices.device, window),
                window=window,
            )
        return self.windowed[window]


def make_plan(segments: Sequence[types.Segment], device: torch.device) -> AttentionPlan:
    """Choose the cheapest way for these segments on that device."""
    longest = longest_path(segments)
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        return AttentionPlan(tuple(segments), longest, block_mask=make_block_mask(segments, device))
    if device.type == "cpu" and _suits_grid(segments):
        return AttentionPlan(tuple(segments), longest, grid=make_grid(segments, device))
    return AttentionPlan(tuple(segments), longest)


def _suits_grid(segments: Sequence[types.Segment]) -> bool:
    cells = _cells(segments)
    num_branches = sum(not _goes_on(segments, index) for index in range(len(segments)))
    widths = [cell[-1].end - cell[-1].start for cell in cells]
    return (
        max(cell[-1].depth + width for cell, width in zip(cells, widths, strict=True)) <= GRID_DEPTH
        and len(cells) <= num_branches
        and max(widths) * len(cells) <= GRID_WASTE * segments[-1].end
    )


def longest_path(segments: Sequence[types.Segment]) -> int:
    """Return the tokens of the longest path from a root to the end of a segment."""
    return max(tokens_before + segment.end - segment.start for segment, tokens_before in _with_depths(segments))


def _with_depths(segments: Sequence[types.Segment]) -> list[tuple[types.Segment, int]]:
    """Return each segment with the number of tokens that its ancestors hold."""
    depths: list[int] = []
    for segment in segments:
        parent = segments[segment.parent] if segment.parent >= 0 else None
        depths.append(depths[segment.parent] + parent.end - parent.start if parent else 0)
    return list(zip(segments, depths, strict=True))


def _trees(segments: Sequence[types.Segment]) -> list[tuple[int, int]]:
    """Return [start, end) of each root with its descendants, which follow it."""
    starts = [segment.start for segment in segments if segment.parent < 0]
    return list(zip(starts, [*starts[1:], segments[-1].end], strict=True))


def _cells(segments: Sequence[types.Segment]) -> list[tuple[Stretch, ...]]:
    """Return the cells in the order of the stream: what stands before each of them on its paths, then itself.

    A tree of up to `GRID_WIDTH` tokens is one cell; a larger one is cut anywhere. Descendants of a segment follow it
    without a gap, so what tokens of a cell see before it is on the path to its first token.
    """
    cells: list[tuple[Stretch, ...]] = []
    with_depths = _with_depths(segments)
    starts = [segment.start for segment in segments]
    for start, end in _trees(segments):
        num_cells = 1 if end - start <= GRID_WIDTH else -(-(end - start) // CELL_TOKENS)
        cuts = [start + (end - start) * cell // num_cells for cell in range(num_cells + 1)]
        for first, until in itertools.pairwise(cuts):
            before: list[Stretch] = []
            index, seen_until = bisect.bisect_right(starts, first) - 1, first
            depth = with_depths[index][1] + first - starts[index]
            while index >= 0:
                segment, above = with_depths[index]
                if segment.start < seen_until:
                    before.append(Stretch(segment.start, seen_until, above))
                index = segment.parent
                seen_until = segments[index].end
            cells.append((*reversed(before), Stretch(first, until, depth)))
    return cells


def sees(
    query: torch.Tensor,
    key: torch.Tensor,
    key_until: torch.Tensor,
    *,
    behind: torch.Tensor | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Return whether a token sees another one. query, key: their places in the stream; shapes that broadcast.

    key_until: the place at which the last descendant of the key's segment ends. A segment's descendants follow it
    without a gap, so a later token is on a path through the key exactly where it stands before that. behind: with a
    window, by how many tokens of a path the key is above the query.
    """
    is_visible = (query >= key) & (query < key_until)
    return is_visible if window is None or behind is None else is_visible & (behind < window)


def _until_and_depth(segments: Sequence[types.Segment]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, per token [T], where the last descendant of its segment ends, and its place on its path."""
    ends = [segment.end for segment in segments]
    for index in reversed(range(len(segments))):
        if (parent := segments[index].parent) >= 0:
            ends[parent] = max(ends[parent], ends[index])
    lengths = torch.tensor([segment.end - segment.start for segment in segments])
    # Where the path would begin in the stream if it was without gaps.
    begins = torch.tensor([segment.start - depth for segment, depth in _with_depths(segments)])
    until = torch.tensor(ends).repeat_interleave(lengths)
    return until, torch.arange(len(until)) - begins.repeat_interleave(lengths)


def make_grid(segments: Sequence[types.Segment], device: torch.device, window: int | None = None) -> Grid:
    """Return the padded batch of cells."""
    cells = _cells(segments)
    queries = _tokens_of([cell[-1:] for cell in cells])
    keys = _tokens_of(cells) if any(len(cell) > 1 for cell in cells) else queries
    until, depth = _until_and_depth(segments)
    behind = None if window is None else depth[queries][:, :, None] - depth[keys][:, None, :]
    # A padding slot stands before the stream. As a query it sees every slot, so that no softmax row is empty.
    visible = sees(queries[:, :, None], keys[:, None, :], until[keys][:, None, :], behind=behind, window=window)
    visible = visible & (keys >= 0)[:, None, :] | (queries < 0)[:, :, None]
    bias = torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))
    slots = (queries.flatten() >= 0).nonzero().flatten()
    return Grid(
        slots.to(device),
        bias.to(device),
        dense=len(slots) == queries.numel(),
        keys=None if keys is queries else keys.flatten().clamp(min=0).to(device),
    )


def _tokens_of(cells: Sequence[Sequence[Stretch]]) -> torch.Tensor:
    """Return the places of the cells' tokens, side by side, -1 in padding slots [cells, width]."""
    places = [torch.cat([torch.arange(part.start, part.end) for part in cell]) for cell in cells]
    return torch.nn.utils.rnn.pad_sequence(places, batch_first=True, padding_value=-1)


def make_block_mask(
    segments: Sequence[types.Segment], device: torch.device, window: int | None = None
) -> flex_attention.BlockMask:
    """Return flex_attention's block mask: what is on the path, never later than the query, within the window.

    The lists of blocks come from the segments' bounds. torch's own `create_block_mask` evaluates the mask for every
    pair of tokens, 11 bytes each, which is 46 GB at 64k tokens; this takes bytes per token, and 16 per pair of blocks.
    """
    until, depth = (values.to(device) for values in _until_and_depth(segments))

    def visible_pair(_batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        behind = None if window is None else depth[query] - depth[key]
        return sees(query, key, until[key], behind=behind, window=window)

    visible, whole = _blocks_seen(segments, window)
    partial_counts, partial_indices = _ordered(visible & ~whole, device)
    whole_counts, whole_indices = _ordered(whole, device)
    length = segments[-1].end
    return flex_attention.BlockMask.from_kv_blocks(
        partial_counts,
        partial_indices,
        whole_counts,
        whole_indices,
        BLOCK_SIZE=BLOCK_TOKENS,
        mask_mod=visible_pair,
        seq_lengths=(length, length),
    )


def _branches(segments: Sequence[types.Segment]) -> list[tuple[Stretch, ...]]:
    """Return the branches in the order of the stream: what is before each of them on its path, then itself.

    A branch ends where a segment is not the first child of the one before it.
    """
    paths: list[tuple[Stretch, ...]] = []
    # Of each segment: the branch that it is in.
    branch_of: list[int] = []
    for index, (segment, depth) in enumerate(_with_depths(segments)):
        if _goes_on(segments, index):
            *before, own = paths[-1]
            paths[-1] = (*before, dataclasses.replace(own, end=segment.end))
            branch_of.append(len(paths) - 1)
            continue
        before = []
        if segment.parent >= 0:
            *before, last = paths[branch_of[segment.parent]]
            before.append(dataclasses.replace(last, end=segments[segment.parent].end))
        branch_of.append(len(paths))
        paths.append((*before, Stretch(segment.start, segment.end, depth)))
    return paths


def _goes_on(segments: Sequence[types.Segment], index: int) -> bool:
    """Return whether a segment is the first child of the one before it."""
    return 0 <= segments[index].parent == index - 1


def _blocks_seen(
    segments: Sequence[types.Segment], window: int | None
) -> "tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]":
    """Return two bool arrays [query blocks, key blocks]: some query sees some key; every query sees every key.

    A last block that is not full is never whole, as in torch's own masks.
    """
    length = segments[-1].end
    count = -(-length // BLOCK_TOKENS)
    visible = numpy.zeros((count, count), dtype=bool)
    # Queries of a block that see all keys of the other.
    covered = numpy.zeros((count, count), dtype=numpy.int16)
    for path in _branches(segments):
        own = path[-1]
        for block in range(own.start // BLOCK_TOKENS, -(-own.end // BLOCK_TOKENS)):
            first = max(own.start, block * BLOCK_TOKENS)
            last = min(own.end, (block + 1) * BLOCK_TOKENS) - 1
            for (low, high), (inner_low, inner_high) in zip(
                _keys_seen(path, first, last, window, every=False),
                _keys_seen(path, first, last, window, every=True),
                strict=True,
            ):
                if low < high:
                    visible[block, low // BLOCK_TOKENS : -(-high // BLOCK_TOKENS)] = True
                covered[block, -(-inner_low // BLOCK_TOKENS) : max(0, inner_high // BLOCK_TOKENS)] += last + 1 - first
    return visible, covered == BLOCK_TOKENS


def _keys_seen(
    path: Sequence[Stretch], first: int, last: int, window: int | None, *, every: bool
) -> list[tuple[int, int]]:
    """Return the ranges of keys, one for each stretch of the path, that queries first..last of its last one see: some,
    or every one.

    The last query sees the newest keys and the first one the oldest: `every` is bounded by the other one of the two.
    """
    *before, own = path
    newest, oldest = (first, last) if every else (last, first)
    seen_from = 0 if window is None else own.depth + oldest - own.start - window + 1
    ranges = [(max(stretch.start, stretch.start + seen_from - stretch.depth), stretch.end) for stretch in before]
    return [*ranges, (max(own.start, own.start + seen_from - own.depth), newest + 1)]


def _ordered(blocks: "numpy.ndarray[Any, Any]", device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many blocks each row names [1, 1, rows], and which, those first [1, 1, rows, columns]."""
    mask = torch.from_numpy(blocks)
    counts = mask.sum(-1, dtype=torch.int32)
    indices = torch.argsort(mask.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)
    return counts[None, None].to(device), indices[None, None].to(device)


def packed_attention(
    module: torch.nn.Module,  # noqa: ARG001  # the interface's signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # always None: no mask function is registered under NAME
    scaling: float | None = None,
    dropout: float = 0.0,  # noqa: ARG001  # off: policy.py
    attention_plan: AttentionPlan | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **unused: Any,  # noqa: ARG001  # every keyword of the model's forward arrives here
) -> tuple[torch.Tensor, None]:
    """Attention function for transformers' AttentionInterface. query [1, H, T, D], key and value [1, Hkv, T, D].

    Returns [1, T, H, D] and no weights. Raises EngineError if there is no plan or the model asks for what it cannot do.
    """
    if attention_plan is None or attention_mask is not None:
        raise errors.EngineError("packed attention needs an attention_plan and no mask")
    if softcap is not None or s_aux is not None:
        raise errors.EngineError("packed attention has no soft cap and no attention sinks; this model needs them")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    plan = attention_plan.within(sliding_window)
    if plan.grid is not None:
        # torch leaves Function.apply untyped.
        return _GridAttention.apply(query, key, value, plan.grid, scale), None  # type: ignore[no-untyped-call]
    if plan.block_mask is not None:
        return _flex(query, key, value, plan.block_mask, scale), None
    return _by_branch(query, key, value, plan, scale), None


def _by_branch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: AttentionPlan, scale: float
) -> torch.Tensor:
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    outputs = [_of_branch(query, key, value, path, plan.window, scale) for path in plan.branches]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()


def _of_branch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    path: Sequence[Stretch],
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """Attend to the branch and to what is before it, of which a window leaves the end."""
    own = path[-1]
    q = query[:, :, own.start : own.end]
    ranges = _keys_seen(path, own.start, own.end - 1, window, every=False)
    keys, values = (
        torch.cat([tensor[:, :, start:end] for start, end in ranges if start < end], dim=2) for tensor in (key, value)
    )
    num_queries, num_keys = q.shape[2], keys.shape[2]
    if num_queries == num_keys and (window is None or num_keys <= window):
        return F.scaled_dot_product_attention(q, keys, values, is_causal=True, scale=scale)
    mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).tril(num_keys - num_queries)
    if window is not None:
        mask = mask.triu(num_keys - num_queries - window + 1)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)


@functools.cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention.flex_attention, dynamic=True)


def _flex(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: flex_attention.BlockMask, scale: float
) -> torch.Tensor:
    attend = _compiled_flex() if query.device.type == "cuda" else flex_attention.flex_attention
    attended: torch.Tensor = attend(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
    return attended.transpose(1, 2).contiguous()


class _GridAttention(torch.autograd.Function):
    """softmax(q k^T scale + bias) v per cell: scores in fp32, probabilities and products in the model's dtype.

    Small trees are bound by calls and memory, so plain batched products beat the tiled CPU kernel, whose backward is
    the most expensive part of a step otherwise. Query heads that share a key head are folded into its rows.
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grid: Grid, scale: float
    ) -> torch.Tensor:
        num_kv = key.shape[1]
        q, k, v = _to_grid(query, grid, num_kv), _keys_to_grid(key, grid), _keys_to_grid(value, grid)
        scores = torch.bmm(q.float(), k.float().transpose(1, 2)).mul_(scale)
        _per_head(scores, num_kv, grid).add_(grid.bias[None, :, None])
        probs = torch.softmax(scores, dim=-1, out=scores).to(query.dtype)
        ctx.save_for_backward(q, k, v, probs)
        ctx.grid, ctx.scale, ctx.num_heads = grid, scale, query.shape[1]
        return _from_grid(torch.bmm(probs, v), grid, query.shape[1], num_kv).transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, probs = ctx.saved_tensors
        grid, num_heads = ctx.grid, ctx.num_heads
        num_kv = q.shape[0] // grid.shape[0]
        upstream = _to_grid(gradients[0].transpose(1, 2), grid, num_kv)
        value_grad = torch.bmm(probs.transpose(1, 2), upstream)
        weighted = torch.bmm(upstream, v.transpose(1, 2)).float().mul_(probs)
        # d scores = p * (dp - sum(p * dp)); `weighted` is p * dp.
        score_grad = weighted.sub_(probs * weighted.sum(-1, keepdim=True)).mul_(ctx.scale).to(q.dtype)
        query_grad = torch.bmm(score_grad, k)
        key_grad = torch.bmm(score_grad.transpose(1, 2), q)
        num_tokens = gradients[0].shape[1]
        return (
            _from_grid(query_grad, grid, num_heads, num_kv),
            _keys_from_grid(key_grad, grid, num_kv, num_tokens),
            _keys_from_grid(value_grad, grid, num_kv, num_tokens),
            None,
            None,
        )


def _per_head(scores: torch.Tensor, num_kv: int, grid: Grid) -> torch.Tensor:
    """View [Hkv cells, group width, keys] as [Hkv, cells, group, width, keys]."""
    return scores.view(num_kv, grid.shape[0], -1, *grid.bias.shape[1:])


def _to_grid(tensor: torch.Tensor, grid: Grid, num_kv: int) -> torch.Tensor:
    """[1, H, T, D] -> [Hkv cells, (H / Hkv) width, D], zeros in padding slots."""
    num_cells, width = grid.shape
    _, num_heads, _, size = tensor.shape
    flat = tensor[0]
    if not grid.dense:
        padded = flat.new_zeros(num_heads, num_cells * width, size)
        flat = padded.index_copy_(1, grid.slots, flat)
    folded = flat.reshape(num_kv, num_heads // num_kv, num_cells, width, size).transpose(1, 2)
    return folded.reshape(num_kv * num_cells, -1, size)


def _from_grid(tensor: torch.Tensor, grid: Grid, num_heads: int, num_kv: int) -> torch.Tensor:
    """Undo `_to_grid`: [Hkv cells, group width, D] -> [1, H, T, D]."""
    num_cells, width = grid.shape
    size = tensor.shape[-1]
    unfolded = tensor.view(num_kv, num_cells, num_heads // num_kv, width, size).transpose(1, 2)
    flat = unfolded.reshape(num_heads, num_cells * width, size)
    return (flat if grid.dense else flat.index_select(1, grid.slots))[None]


def _keys_to_grid(tensor: torch.Tensor, grid: Grid) -> torch.Tensor:
    """[1, Hkv, T, D] -> [Hkv cells, keys, D]."""
    num_kv, size = tensor.shape[1], tensor.shape[-1]
    if grid.keys is None:
        return _to_grid(tensor, grid, num_kv)
    return tensor[0].index_select(1, grid.keys).view(num_kv * grid.shape[0], -1, size)


def _keys_from_grid(tensor: torch.Tensor, grid: Grid, num_kv: int, num_tokens: int) -> torch.Tensor:
    """[Hkv cells, keys, D] -> [1, Hkv, T, D]: the sum over the slots of a token, in fp32."""
    if grid.keys is None:
        return _from_grid(tensor, grid, num_kv, num_kv)
    size = tensor.shape[-1]
    total = torch.zeros(num_kv, num_tokens, size, dtype=torch.float32, device=tensor.device)
    return total.index_add_(1, grid.keys, tensor.view(num_kv, -1, size).float()).to(tensor.dtype)[None]
