"""How well a step uses an accelerator: floating-point operations that the model needs against those it could do.

MFU = operations / (seconds x devices x dense bf16 peak). A forward costs 2 operations per parameter and token, and 4
per layer, width and pair of a token and one that it attends to; a backward twice that, or as much again where the
weights are frozen and only an adapter has gradients. What gradient checkpointing computes again does not count. The
head counts where it runs, at distinct sampled tokens; the embedding look-up does not. Pure.

Sources: Kaplan et al. (arXiv:2001.08361), section 2.1, and Chowdhery et al. (arXiv:2204.02311), appendix B.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from rljob_api import types

# Dense bf16 operations a second by the name that the driver gives the device; the vendor's sheets, without sparsity.
_PEAKS = (
    ("H200 NVL", 835.5e12),
    ("H200", 989.4e12),
    ("H100 PCIe", 756.0e12),
    ("H100 NVL", 835.5e12),
    ("H100", 989.4e12),
    ("A100", 312.0e12),
)
_TRAINING, _TRAINING_AN_ADAPTER = 3.0, 2.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """decoder_parameters: without embeddings and head. attention_width: heads x size of a head, of the queries.
    has_frozen: an adapter is trained, the parameters are not.
    """

    decoder_parameters: int
    head_parameters: int
    num_layers: int
    attention_width: int
    has_frozen: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """The device of a rank. peak_flops, size None: utilisation cannot be computed.

    peak_memory: bytes allocated and reserved at most since the last call.
    """

    peak_flops: float | None
    size: ModelSize | None
    peak_memory: Callable[[], tuple[int, int]]


def model_size(model: Any) -> ModelSize | None:
    """Return the sizes of a Hugging Face causal LM; None for a mixture of experts, of which a token uses a part."""
    config = model.config.get_text_config()
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        return None
    heads = int(config.num_attention_heads)
    embeddings = model.get_input_embeddings().weight.numel()
    return ModelSize(
        decoder_parameters=sum(each.numel() for each in model.base_model.parameters()) - embeddings,
        head_parameters=model.get_output_embeddings().weight.numel(),
        num_layers=int(config.num_hidden_layers),
        attention_width=heads * int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        has_frozen=not all(each.requires_grad for each in model.parameters()),
    )


def dense_bf16_peak(device_name: str) -> float | None:
    """Return operations a second; None for a device that is not in the table."""
    return next((peak for part, peak in _PEAKS if part in device_name), None)


def attended_pairs(segments: Iterable[types.Segment]) -> int:
    """Return the number of (token, attended token) pairs: causal within a segment, and all of its ancestors' tokens."""
    pairs, path_ends = 0, list[int]()
    for segment in segments:
        length, before = segment.end - segment.start, path_ends[segment.parent] if segment.parent >= 0 else 0
        path_ends.append(before + length)
        pairs += length * (length + 1) // 2 + length * before
    return pairs


def forward_flops(size: ModelSize, batch: types.MicroBatch, *, with_head: bool) -> float:
    """Return the operations of one forward over a micro-batch."""
    head = size.head_parameters * len(set(batch.target_index)) if with_head else 0
    products = 2.0 * (size.decoder_parameters * len(batch.tokens) + head)
    return products + 4.0 * size.num_layers * size.attention_width * attended_pairs(batch.segments)


def step_flops(
    size: ModelSize, batches: Iterable[types.MicroBatch], *, trains_policy: bool, num_scores: int, has_critic: bool
) -> float:
    """Return the operations of a step. num_scores: forwards of policies alone; a critic is scored once and trained."""
    training = _TRAINING_AN_ADAPTER if size.has_frozen else _TRAINING
    policy = num_scores + (training if trains_policy else 0.0)
    critic = 1.0 + _TRAINING if has_critic else 0.0
    return sum(
        policy * forward_flops(size, batch, with_head=True) + critic * forward_flops(size, batch, with_head=False)
        for batch in batches
    )


def scoring_flops(size: ModelSize | None, batches: Iterable[types.MicroBatch]) -> float:
    """Return the operations of a model that only scores; 0 for one whose size is not known."""
    return 0.0 if size is None else sum(forward_flops(size, batch, with_head=True) for batch in batches)


def utilisation(*, flops: float, seconds: float, num_devices: int, peak_flops: float) -> float:
    """Return MFU, 0..1; 0 for no time. Raises ValueError for a peak or a number of devices that is not positive."""
    if peak_flops <= 0 or num_devices < 1:
        raise ValueError(f"need {peak_flops=} to be above 0 and {num_devices=} at least 1")
    return flops / (seconds * num_devices * peak_flops) if seconds > 0 else 0.0
