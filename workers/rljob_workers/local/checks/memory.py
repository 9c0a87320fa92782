"""How much memory a job needs, by arithmetic from the model's shape. Pure; within about 15 % of measured peaks.

Per parameter with bf16 weights and gradients, fp32 master and two Adam moments on D ranks (ZeRO, arXiv:1910.02054):
stage 0: 16 B; stage 1: 4 + 12/D; stage 2: 2 + 14/D; stage 3: 16/D. Gradients of bf16 weights add up in fp32: 2 B more,
divided from stage 2 on. Stage 3 gathers weights and reduces gradients in buffers besides. A critic is a second trained
model; a reference model and a teacher have 2 B per parameter, 4 B in fp32, which stage 3 divides. Activations of one
layer without attention scores: 34 B per token and hidden unit (arXiv:2205.05198, with scores recomputed). Key-value
cache per token: 4 B x layers x heads x head size in bf16. With an adapter the model's own weights are held once, in the
trainer's format, without gradients or moments; they are the reference model as well. On a CPU without bf16 instructions
an engine holds weights and cache in fp32; its trainer has activations in fp32, and such a copy of the matrices that it
multiplies: of one layer, without checkpointing of all.
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
# Of stage 3, whatever the ranks: DeepSpeed's default bucket for gradients in fp32, and about as much again for what is
# gathered and reduced. Measured in tests/integration/trainer/test_memory.py.
_ZERO_3_BUCKET, _ZERO_3_BUFFER_BYTES = 500_000_000, 8
# Of a program on a CPU with its libraries, whatever the model; a rollout's with its engine's, a judge's with the server
# in front of another engine.
PROGRAM_BYTES = {
    "coordinator": 200_000_000,
    "judge": 800_000_000,
    "rollout": 2_000_000_000,
    "runner": 100_000_000,
    "trainer": 800_000_000,
    "verifier": 300_000_000,
}


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
    """Bytes per trainer rank (state, critic, reference, teacher, activations, head), per trainer host (images), per
    rollout (weights, cache) and of a whole version. frozen_bytes: the part of state_bytes that is never trained.
    """

    state_bytes: int
    frozen_bytes: int
    critic_bytes: int
    reference_bytes: int
    teacher_bytes: int
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
        models = self.state_bytes + self.critic_bytes + self.reference_bytes + self.teacher_bytes
        return models + self.activation_bytes + self.head_bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MachineEstimate:
    """Bytes of a machine that runs all of a job on its CPU, each role at its peak. mapped_bytes: pages of the model's
    files, which all processes share and the kernel drops where it needs memory.
    """

    trainer_bytes: int
    rollout_bytes: int
    judge_bytes: int
    other_bytes: int
    mapped_bytes: int

    @property
    def total_bytes(self) -> int:
        """Return what must be there; mapped pages may be."""
        return self.trainer_bytes + self.rollout_bytes + self.judge_bytes + self.other_bytes


def bytes_per_param(*, zero_stage: int, num_ranks: int, fp32_gradients: bool = False) -> float:
    """Return bytes of weights, gradients and optimizer state per parameter and rank. Raises KeyError beyond stage 3."""
    shared = {0: 16.0, 1: 4 + 12 / num_ranks, 2: 2 + 14 / num_ranks, 3: 16 / num_ranks}[zero_stage]
    extra = FP32_GRADIENT_BYTES / (num_ranks if zero_stage >= 2 else 1) if fp32_gradients else 0.0
    return shared + extra


def buffer_bytes(num_trained: int, *, zero_stage: int) -> int:
    """Return bytes of each rank's buffers for what is trained."""
    return _ZERO_3_BUFFER_BYTES * min(num_trained, _ZERO_3_BUCKET) if zero_stage == 3 else 0


def adapter_params(shape: ModelShape, lora: LoraSpec) -> int | None:
    """Return the parameters of an adapter, rank x (inputs + outputs) of each adapted matrix; None if the shape does not
    know one of the targets.
    """
    names = shape.linear.keys() if ALL_LINEAR in lora.targets else lora.targets
    if not names or any(name not in shape.linear for name in names):
        return None
    return shape.num_layers * lora.rank * sum(sum(shape.linear[name]) for name in names)


def kv_bytes_per_token(shape: ModelShape, dtype: str = "bfloat16") -> int:
    """Return bytes of keys and values per token."""
    return 2 * BYTES_PER_PARAM[dtype] * shape.num_layers * shape.num_kv_heads * shape.head_dim


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
    computes_in_fp32: bool = False,
    critic: bool = False,
    reference: bool = False,
    teacher_params: int = 0,
    adapter: int = 0,
    averages: bool = False,
) -> MemoryEstimate:
    """Return the bytes that a job needs: one trainer rank, its host's images, one rollout with a full cache.

    dtype: of published weights; trainer_dtype: of the trainer's, which frozen models have too. computes_in_fp32:
    whatever the formats, on a CPU that has no instructions for them. adapter: parameters that are trained instead of
    the model's own; 0: those. averages: the mean of weights is kept next to their masters.
    """
    fp32_gradients = trainer_dtype != "float32"
    per_param = bytes_per_param(zero_stage=zero_stage, num_ranks=num_ranks, fp32_gradients=fp32_gradients)
    units = tokens_per_micro_batch * shape.hidden_size
    saved = shape.num_layers * SAVED_BYTES_PER_UNIT + LAYER_BYTES_PER_UNIT
    whole = shape.num_layers * LAYER_BYTES_PER_UNIT
    chunk = min(logits_chunk_tokens, tokens_per_micro_batch)
    image = BYTES_PER_PARAM[dtype] * (adapter or shape.num_params)
    in_engine = "float32" if computes_in_fp32 else dtype
    widened = computes_in_fp32 and trainer_dtype != "float32"
    copied = 4 * sum(inputs * outputs for inputs, outputs in shape.linear.values()) if widened else 0
    activations = units * (saved if gradient_checkpointing else whole) * (2 if widened else 1)
    per_untrained, parts = BYTES_PER_PARAM[trainer_dtype], num_ranks if zero_stage == 3 else 1
    untrained = per_untrained * shape.num_params // parts
    frozen, trained = untrained if adapter else 0, adapter or shape.num_params
    state = round(per_param * trained) + buffer_bytes(trained, zero_stage=zero_stage)
    means = BYTES_PER_PARAM["float32"] * trained // (num_ranks if zero_stage > 0 else 1) if averages else 0
    per_token = kv_bytes_per_token(shape, in_engine)
    return MemoryEstimate(
        state_bytes=state + means + frozen,
        frozen_bytes=frozen,
        critic_bytes=state if critic else 0,
        reference_bytes=untrained if reference else 0,
        teacher_bytes=per_untrained * teacher_params // parts,
        activation_bytes=activations + copied * (1 if gradient_checkpointing else shape.num_layers),
        head_bytes=chunk * shape.vocab_size * HEAD_BYTES_PER_LOGIT,
        host_image_bytes=NUM_HOST_IMAGES * image,
        version_bytes=image,
        weight_bytes=BYTES_PER_PARAM[in_engine] * (shape.num_params + adapter),
        kv_bytes_per_token=per_token,
        kv_bytes=per_token * max_model_len * max_num_seqs,
    )


def on_one_cpu(
    needed: MemoryEstimate, *, zero_stage: int, num_ranks: int, num_rollouts: int, judge_bytes: int = 0
) -> MachineEstimate:
    """Return what a job takes of a machine without GPUs: its processes' own pages, libraries included.

    Weights that no one trains stay in the pages of their files, but under ZeRO-3, which divides copies of them.
    judge_bytes: weights and cache of a model that the judge serves, 0 for none.
    """
    mapped = needed.frozen_bytes + needed.reference_bytes + needed.teacher_bytes if zero_stage < 3 else 0
    rank = needed.trainer_rank_bytes - mapped + PROGRAM_BYTES["trainer"]
    rollout = needed.weight_bytes + needed.kv_bytes + needed.version_bytes + PROGRAM_BYTES["rollout"]
    return MachineEstimate(
        trainer_bytes=num_ranks * rank + needed.host_image_bytes,
        rollout_bytes=num_rollouts * rollout,
        judge_bytes=judge_bytes and judge_bytes + PROGRAM_BYTES["judge"] + PROGRAM_BYTES["rollout"],
        other_bytes=PROGRAM_BYTES["coordinator"] + PROGRAM_BYTES["verifier"] + PROGRAM_BYTES["runner"],
        mapped_bytes=mapped,
    )
