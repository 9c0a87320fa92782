"""Attention over packed segments: no padding in the model, no mask over the whole pack, a shared prompt stands once.

Segments tile the flat stream [0, T); a token sees its own segment up to itself, and all of the parent's tokens. So a
prompt with G completions costs P + G R tokens instead of G (P + R), and the result is exact: keys and values of a
prompt do not depend on what follows it. Three ways to compute the same thing, chosen by `make_plan`:
grid      small blocks (a root and its children) side by side in a padded [blocks, width, width] batch; CPU
segments  one scaled_dot_product_attention per segment, keys = parent + own; any device, any length, no waste
flex      flex_attention with a block mask made from segment ids, compiled; CUDA
"""

import dataclasses
import functools
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every reader of torch code knows
from torch.nn.attention import flex_attention

from rljob_api import errors, types

NAME = "rljob_packed"
# Beyond this width the square of a block costs more than the calls that `segments` makes.
GRID_WIDTH = 256
# Padded slots of a grid over real tokens; above it `segments` wastes less.
GRID_WASTE = 1.5


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
    """How one micro-batch attends. `longest` is the longest path root + child in tokens; both fields None: segments."""

    segments: tuple[types.Segment, ...]
    longest: int
    grid: Grid | None = None
    block_mask: flex_attention.BlockMask | None = None


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


def _token_ids(segments: Sequence[types.Segment], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, per token [T], the index of its segment and of that segment's parent (-1 for none)."""
    lengths = torch.tensor([segment.end - segment.start for segment in segments], device=device)
    own = torch.arange(len(segments), device=device).repeat_interleave(lengths)
    parent = torch.tensor([segment.parent for segment in segments], device=device).repeat_interleave(lengths)
    return own, parent


def make_grid(segments: Sequence[types.Segment], device: torch.device) -> Grid:
    """Return the padded batch of blocks. A block is contiguous, so its children must follow their root."""
    blocks = _blocks(segments)
    num_blocks, width = len(blocks), max(end - start for start, end in blocks)
    slots = torch.cat([torch.arange(end - start) + row * width for row, (start, end) in enumerate(blocks)])
    own, parent = _token_ids(segments, torch.device("cpu"))
    # A padding slot gets an id of its own kind and sees itself only, so that no softmax row is empty.
    grid_own, grid_parent = torch.full((2, num_blocks * width), -2).unbind()
    grid_own[slots], grid_parent[slots] = own, parent
    o, p = grid_own.view(num_blocks, width), grid_parent.view(num_blocks, width)
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    same = (o[:, :, None] == o[:, None, :]) & causal & (o[:, :, None] != -2)
    seen = same | (p[:, :, None] == o[:, None, :]) & (p[:, :, None] >= 0) | torch.eye(width, dtype=torch.bool)
    bias = torch.zeros(num_blocks, width, width).masked_fill_(~seen, float("-inf"))
    return Grid(slots.to(device), bias.to(device), dense=len(slots) == num_blocks * width)


def make_block_mask(segments: Sequence[types.Segment], device: torch.device) -> flex_attention.BlockMask:
    """Return flex_attention's block mask: own segment or parent, never later than the query."""
    own, parent = _token_ids(segments, device)

    def sees(_batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & ((own[query] == own[key]) | (parent[query] == own[key]))

    length = segments[-1].end
    return flex_attention.create_block_mask(sees, B=None, H=None, Q_LEN=length, KV_LEN=length, device=str(device))


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
    if sliding_window is not None and attention_plan.longest > sliding_window:
        raise errors.EngineError(
            f"a row of {attention_plan.longest} tokens exceeds the model's sliding window of {sliding_window}"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if attention_plan.grid is not None:
        # torch leaves Function.apply untyped.
        return _GridAttention.apply(query, key, value, attention_plan.grid, scale), None  # type: ignore[no-untyped-call]
    if attention_plan.block_mask is not None:
        return _flex(query, key, value, attention_plan.block_mask, scale), None
    return _by_segment(query, key, value, attention_plan.segments, scale), None


def _by_segment(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Sequence[types.Segment], scale: float
) -> torch.Tensor:
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    outputs = []
    for segment in segments:
        own = slice(segment.start, segment.end)
        if segment.parent < 0:
            attended = F.scaled_dot_product_attention(
                query[:, :, own], key[:, :, own], value[:, :, own], is_causal=True, scale=scale
            )
        else:
            attended = _with_parent(query, key, value, own, segments[segment.parent], scale)
        outputs.append(attended)
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()


def _with_parent(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, own: slice, parent: types.Segment, scale: float
) -> torch.Tensor:
    before = slice(parent.start, parent.end)
    keys = torch.cat((key[:, :, before], key[:, :, own]), dim=2)
    values = torch.cat((value[:, :, before], value[:, :, own]), dim=2)
    num_queries, num_keys = own.stop - own.start, keys.shape[2]
    mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).tril(num_keys - num_queries)
    return F.scaled_dot_product_attention(query[:, :, own], keys, values, attn_mask=mask, scale=scale)


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
