"""Attention over packed segments: no padding in the model, no mask over the whole pack, a shared prompt appears once.

Segments tile the flat stream [0, T); a token sees its own segment up to itself, and all of the parent's tokens. So a
prompt with G completions costs P + G R tokens instead of G (P + R), and the result is exact: keys and values of a
prompt do not depend on what follows it. A layer with a sliding window of W sees of that the W newest positions, its
own among them. Three ways to compute the same thing, chosen by `make_plan`:
grid      small blocks (a root and its children) side by side in a padded [blocks, width, width] batch; CPU
segments  one scaled_dot_product_attention per segment, keys = parent + own; any device, any length, no waste
flex      flex_attention with a block mask made from the segments' bounds, compiled; CUDA
"""

import dataclasses
import functools
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy
import torch
import torch.nn.functional as F  # noqa: N812  # the name that every reader of torch code knows
from torch.nn.attention import flex_attention

from rljob_api import errors, types

NAME = "rljob_packed"
# Beyond this width the square of a block costs more than the calls that `segments` makes.
GRID_WIDTH = 256
# Padded slots of a grid over real tokens; above it `segments` wastes less.
GRID_WASTE = 1.5
# Tokens per side of a block of flex_attention's mask; its kernels are made for this one.
BLOCK_TOKENS = 128


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Blocks side by side. slots [T]: place of each token in the flat grid; bias [blocks, width, width]: 0 or -inf.

    dense: there is no padding slot.
    """

    slots: torch.Tensor
    bias: torch.Tensor
    dense: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Return (blocks, width)."""
        return self.bias.shape[0], self.bias.shape[1]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """How one micro-batch attends. `longest` is the longest path root + child in tokens; both fields None: segments.

    window: of sliding attention, in tokens; None: all of the path. windowed: the same plan by window, made once each.
    """

    segments: tuple[types.Segment, ...]
    longest: int
    grid: Grid | None = None
    block_mask: flex_attention.BlockMask | None = None
    window: int | None = None
    windowed: dict[int, "AttentionPlan"] = dataclasses.field(default_factory=dict)

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
    blocks = _blocks(segments)
    longest = max(_path_length(segments, segment) for segment in segments)
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        return AttentionPlan(tuple(segments), longest, block_mask=make_block_mask(segments, device))
    width = max(end - start for start, end in blocks)
    if device.type == "cpu" and width <= GRID_WIDTH and width * len(blocks) <= GRID_WASTE * segments[-1].end:
        return AttentionPlan(tuple(segments), longest, grid=make_grid(segments, device))
    return AttentionPlan(tuple(segments), longest)


def _path_length(segments: Sequence[types.Segment], segment: types.Segment) -> int:
    parent = segments[segment.parent] if segment.parent >= 0 else None
    return segment.end - segment.start + (parent.end - parent.start if parent else 0)


def _blocks(segments: Sequence[types.Segment]) -> list[tuple[int, int]]:
    """Return [start, end) of each root with the children that follow it."""
    starts = [segment.start for segment in segments if segment.parent < 0]
    return list(zip(starts, [*starts[1:], segments[-1].end], strict=True))


def _token_ids(segments: Sequence[types.Segment]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return, per token [T], its segment's index, that segment's parent (-1 for none) and its place on its path."""
    lengths = torch.tensor([segment.end - segment.start for segment in segments])
    own = torch.arange(len(segments)).repeat_interleave(lengths)
    parent = torch.tensor([segment.parent for segment in segments]).repeat_interleave(lengths)
    # Where the path would begin in the stream if the parent was right before its child.
    begins = torch.tensor([segment.end - _path_length(segments, segment) for segment in segments])
    return own, parent, torch.arange(len(own)) - begins.repeat_interleave(lengths)


def make_grid(segments: Sequence[types.Segment], device: torch.device, window: int | None = None) -> Grid:
    """Return the padded batch of blocks. A block is contiguous, so its children must follow their root."""
    blocks = _blocks(segments)
    num_blocks, width = len(blocks), max(end - start for start, end in blocks)
    slots = torch.cat([torch.arange(end - start) + row * width for row, (start, end) in enumerate(blocks)])
    own, parent, places = _token_ids(segments)
    # A padding slot gets an id of its own kind and sees itself only, so that no softmax row is empty.
    grid_own, grid_parent = torch.full((2, num_blocks * width), -2).unbind()
    grid_own[slots], grid_parent[slots] = own, parent
    o, p = grid_own.view(num_blocks, width), grid_parent.view(num_blocks, width)
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    same = (o[:, :, None] == o[:, None, :]) & causal & (o[:, :, None] != -2)
    visible = same | (p[:, :, None] == o[:, None, :]) & (p[:, :, None] >= 0)
    if window is not None:
        grid_places = torch.zeros(num_blocks * width, dtype=places.dtype)
        grid_places[slots] = places
        at = grid_places.view(num_blocks, width)
        visible &= at[:, :, None] - at[:, None, :] < window
    visible |= torch.eye(width, dtype=torch.bool)
    bias = torch.zeros(num_blocks, width, width).masked_fill_(~visible, float("-inf"))
    return Grid(slots.to(device), bias.to(device), dense=len(slots) == num_blocks * width)


def make_block_mask(
    segments: Sequence[types.Segment], device: torch.device, window: int | None = None
) -> flex_attention.BlockMask:
    """Return flex_attention's block mask: own segment or parent, never later than the query, within the window.

    The lists of blocks come from the segments' bounds. torch's own `create_block_mask` evaluates the mask for every
    pair of tokens, 11 bytes each, which is 46 GB at 64k tokens; this takes bytes per token, and 16 per pair of blocks.
    """
    own, parent, places = (ids.to(device) for ids in _token_ids(segments))

    def sees(_batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        is_visible = (query >= key) & ((own[query] == own[key]) | (parent[query] == own[key]))
        return is_visible if window is None else is_visible & (places[query] - places[key] < window)

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
        mask_mod=sees,
        seq_lengths=(length, length),
    )


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
    for segment in segments:
        for block in range(segment.start // BLOCK_TOKENS, -(-segment.end // BLOCK_TOKENS)):
            first = max(segment.start, block * BLOCK_TOKENS)
            last = min(segment.end, (block + 1) * BLOCK_TOKENS) - 1
            for (low, high), (inner_low, inner_high) in zip(
                _keys_seen(segments, segment, first, last, window, every=False),
                _keys_seen(segments, segment, first, last, window, every=True),
                strict=True,
            ):
                if low < high:
                    visible[block, low // BLOCK_TOKENS : -(-high // BLOCK_TOKENS)] = True
                covered[block, -(-inner_low // BLOCK_TOKENS) : max(0, inner_high // BLOCK_TOKENS)] += last + 1 - first
    return visible, covered == BLOCK_TOKENS


def _keys_seen(
    segments: Sequence[types.Segment],
    segment: types.Segment,
    first: int,
    last: int,
    window: int | None,
    *,
    every: bool,
) -> list[tuple[int, int]]:
    """Return the ranges of keys, in the own segment and the parent, that queries first..last see: some, or every one.

    The last query sees the newest keys and the first one the oldest: `every` is bounded by the other one of the two.
    """
    newest, oldest = (first, last) if every else (last, first)
    back = segment.start if window is None else oldest - window + 1
    ranges = [(max(segment.start, back), newest + 1)]
    if segment.parent >= 0:
        parent = segments[segment.parent]
        # As if the parent was right before its child.
        oldest_key = parent.start if window is None else back - segment.start + parent.end
        ranges.append((max(parent.start, oldest_key), parent.end))
    return ranges


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
    return _by_segment(query, key, value, plan, scale), None


def _by_segment(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: AttentionPlan, scale: float
) -> torch.Tensor:
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    outputs = []
    for segment in plan.segments:
        own = slice(segment.start, segment.end)
        if segment.parent < 0 and (plan.window is None or segment.end - segment.start <= plan.window):
            attended = F.scaled_dot_product_attention(
                query[:, :, own], key[:, :, own], value[:, :, own], is_causal=True, scale=scale
            )
        else:
            before = plan.segments[segment.parent] if segment.parent >= 0 else None
            attended = _with_mask(query, key, value, own, before, plan.window, scale)
        outputs.append(attended)
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()


def _with_mask(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    own: slice,
    parent: types.Segment | None,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """Attend to the own segment and what is before it, of which a window leaves the end."""
    keys, values = [key[:, :, own]], [value[:, :, own]]
    if parent is not None:
        oldest = parent.start if window is None else max(parent.start, parent.end - window + 1)
        keys.insert(0, key[:, :, oldest : parent.end])
        values.insert(0, value[:, :, oldest : parent.end])
    k, v = torch.cat(keys, dim=2), torch.cat(values, dim=2)
    num_queries, num_keys = own.stop - own.start, k.shape[2]
    mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).tril(num_keys - num_queries)
    if window is not None:
        mask = mask.triu(num_keys - num_queries - window + 1)
    return F.scaled_dot_product_attention(query[:, :, own], k, v, attn_mask=mask, scale=scale)


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
    """softmax(q k^T scale + bias) v per block: scores in fp32, probabilities and products in the model's dtype.

    Small blocks are bound by calls and memory, so plain batched products beat the tiled CPU kernel, whose backward is
    the most expensive part of a step otherwise. Query heads that share a key head are folded into its rows.
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grid: Grid, scale: float
    ) -> torch.Tensor:
        num_kv = key.shape[1]
        q, k, v = (_to_grid(part, grid, num_kv) for part in (query, key, value))
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
        return (
            _from_grid(query_grad, grid, num_heads, num_kv),
            _from_grid(key_grad, grid, num_kv, num_kv),
            _from_grid(value_grad, grid, num_kv, num_kv),
            None,
            None,
        )


def _per_head(scores: torch.Tensor, num_kv: int, grid: Grid) -> torch.Tensor:
    """View [Hkv blocks, group width, width] as [Hkv, blocks, group, width, width]."""
    num_blocks, width = grid.shape
    return scores.view(num_kv, num_blocks, -1, width, width)


def _to_grid(tensor: torch.Tensor, grid: Grid, num_kv: int) -> torch.Tensor:
    """[1, H, T, D] -> [Hkv blocks, (H / Hkv) width, D], zeros in padding slots."""
    num_blocks, width = grid.shape
    _, num_heads, _, size = tensor.shape
    flat = tensor[0]
    if not grid.dense:
        padded = flat.new_zeros(num_heads, num_blocks * width, size)
        flat = padded.index_copy_(1, grid.slots, flat)
    folded = flat.reshape(num_kv, num_heads // num_kv, num_blocks, width, size).transpose(1, 2)
    return folded.reshape(num_kv * num_blocks, -1, size)


def _from_grid(tensor: torch.Tensor, grid: Grid, num_heads: int, num_kv: int) -> torch.Tensor:
    """Undo `_to_grid`: [Hkv blocks, group width, D] -> [1, H, T, D]."""
    num_blocks, width = grid.shape
    size = tensor.shape[-1]
    unfolded = tensor.view(num_kv, num_blocks, num_heads // num_kv, width, size).transpose(1, 2)
    flat = unfolded.reshape(num_heads, num_blocks * width, size)
    return (flat if grid.dense else flat.index_select(1, grid.slots))[None]
