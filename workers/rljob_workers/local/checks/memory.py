"""How much memory a job needs, by arithmetic from the model's shape. Pure; within about 15 % of measured peaks.

Per parameter with bf16 weights and gradients, fp32 master and two Adam moments on D ranks (ZeRO, arXiv:1910.02054):
stage 0: 16 B; stage 1: 4 + 12/D; stage 2: 2 + 14/D; stage 3: 16/D. A critic is a second trained model; a reference
model has 2 B per parameter on every rank, 4 B in fp32. Activations of one layer without attention scores: 34 B per
token and hidden unit (arXiv:2205.05198, with scores recomputed). Key-value cache per token: 4 B x layers x heads x head
size in bf16. With an adapter the model's own weights are held once, in the trainer's format, without gradients or
moments; they are the reference model as well.
"""

import dataclasses
from collections.abc import Mapping

from rljob_api.manifest.model import ALL_LINEAR, LoraSpec

LAYER_BYTES_PER_UNIT = 34
SAVED_BYTES_PER_UNIT = 2
HEAD_BYTES_PER_LOGIT = 10
# Of spec.model.dtype on the wire and in the engine.
BYTES_PER_PARAM = {"bfloat16": 2, "float16": 2, "float32": 4}
NUM_HOST_IMAGES = 2
FP32_GRADIENT_BYTES = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder: parameters, layers, hidden units, vocabulary, key-value heads and their size. linear: inputs
    and outputs of the matrices of one layer, by name.
    """

    num_params: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    num_kv_heads: int
    head_dim: int
    linear: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes per trainer rank (state, critic, reference, activations, head), per trainer host (images), per rollout
    (weights, cache) and of a whole version.
    """

    state_bytes: int
    critic_bytes: int
    reference_bytes: int
    activation_bytes: int
    head_bytes: int
    host_image_bytes: int
    version_bytes: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int

    @property
    def trainer_rank_bytes(self) -> int:
        """Return the peak of one trainer rank."""
        models = self.state_bytes + self.critic_bytes + self.reference_bytes
        return models + self.activation_bytes + self.head_bytes


def bytes_per_param(*, zero_stage: int, num_ranks: int, fp32_gradients: bool = False) -> float:
    """Return bytes of weights, gradients and optimizer state per parameter and rank. Raises KeyError beyond stage 3."""
    shared = {0: 16.0, 1: 4 + 12 / num_ranks, 2: 2 + 14 / num_ranks, 3: 16 / num_ranks}[zero_stage]
    extra = FP32_GRADIENT_BYTES / (num_ranks if zero_stage >= 2 else 1) if fp32_gradients else 0.0
    return shared + extra


def adapter_params(shape: ModelShape, lora: LoraSpec) -> int | None:
    """Return the parameters of an adapter, rank x (inputs + outputs) of each adapted matrix; None if the shape does not
    know one of the targets.
    """
    names = shape.linear.keys() if ALL_LINEAR in lora.targets else lora.targets
    if not names or any(name not in shape.linear for name in names):
        return None
    return shape.num_layers * lora.rank * sum(sum(shape.linear[name]) for name in names)


def kv_bytes_per_token(shape: ModelShape) -> int:
    """Return bytes of bf16 keys and values per token."""
    return 4 * shape.num_layers * shape.num_kv_heads * shape.head_dim


def memory_estimate(
    shape: ModelShape,
    *,
    zero_stage: int,
    num_ranks: int,
    tokens_per_micro_batch: int,
    logits_chunk_tokens: int,
    gradient_checkpointing: bool,
    max_model_len: int,
    max_num_seqs: int,
    dtype: str = "bfloat16",
    trainer_dtype: str = "bfloat16",
    fp32_gradients: bool = False,
    critic: bool = False,
    reference: bool = False,
    adapter: int = 0,
) -> MemoryEstimate:
    """Return the bytes that a job needs: one trainer rank, its host's images, one rollout with a full cache.

    dtype: of published weights; trainer_dtype: of the trainer's, which a reference model has too. adapter: parameters
    that are trained instead of the model's own; 0: those.
    """
    per_param = bytes_per_param(zero_stage=zero_stage, num_ranks=num_ranks, fp32_gradients=fp32_gradients)
    units = tokens_per_micro_batch * shape.hidden_size
    saved = shape.num_layers * SAVED_BYTES_PER_UNIT + LAYER_BYTES_PER_UNIT
    whole = shape.num_layers * LAYER_BYTES_PER_UNIT
    chunk = min(logits_chunk_tokens, tokens_per_micro_batch)
    model = BYTES_PER_PARAM[dtype] * shape.num_params
    image = BYTES_PER_PARAM[dtype] * adapter if adapter else model
    frozen = BYTES_PER_PARAM[trainer_dtype] * shape.num_params // (num_ranks if zero_stage == 3 else 1)
    state = per_param * (adapter or shape.num_params) + (frozen if adapter else 0)
    per_token = kv_bytes_per_token(shape)
    return MemoryEstimate(
        state_bytes=round(state),
        critic_bytes=round(per_param * shape.num_params) if critic else 0,
        reference_bytes=BYTES_PER_PARAM[trainer_dtype] * shape.num_params if reference else 0,
        activation_bytes=units * (saved if gradient_checkpointing else whole),
        head_bytes=chunk * shape.vocab_size * HEAD_BYTES_PER_LOGIT,
        host_image_bytes=NUM_HOST_IMAGES * image,
        version_bytes=image,
        weight_bytes=model + image if adapter else model,
        kv_bytes_per_token=per_token,
        kv_bytes=per_token * max_model_len * max_num_seqs,
    )
