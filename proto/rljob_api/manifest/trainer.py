"""`spec.trainer`, `spec.weightSync` and `spec.checkpoint`."""

from typing import Literal

from pydantic import Field

from rljob_api.manifest.base import FREE, INT32, Config, Decimal, Section
from rljob_api.manifest.pod import PodSpec


class OptimizerSpec(Section):
    """AdamW with fp32 master weights and moments."""

    type: Literal["adamw"] = Field(default="adamw", description="The optimizer.")
    learning_rate: Decimal = Field(default="1e-6", description="Peak learning rate.")
    betas: tuple[Decimal, ...] = Field(
        default=("0.9", "0.95"), min_length=2, max_length=2, description="Decay of the two moments."
    )
    eps: Decimal = Field(default="1e-8", description="Added to the root of the second moment.")
    weight_decay: Decimal = Field(default="0", description="Decoupled weight decay.")
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000, description="Steps over which the learning rate rises.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="Learning rate after the warm-up; linear and cosine fall to 0 at maxSteps."
    )
    max_grad_norm: Decimal = Field(default="1.0", description="Bound on the global L2 norm of the gradient.")


class DeepspeedSpec(Section):
    """Sharding."""

    zero_stage: int = Field(default=2, ge=0, le=3, description="ZeRO stage: what is sharded over the ranks.")
    offload_optimizer: bool = Field(default=False, description="Keep optimizer state in host memory.")
    offload_parameters: bool = Field(default=False, description="Keep parameters in host memory; zeroStage 3 only.")
    extra: Config = Field(
        default={}, max_length=64, json_schema_extra=FREE, description="DeepSpeed keys that we do not set ourselves."
    )


class TrainerSpec(Section):
    """The trainer."""

    nodes: int = Field(default=1, ge=1, le=1024, description="Trainer pods.")
    processes_per_node: int = Field(default=1, ge=1, le=16, description="Processes per pod, one per GPU.")
    optimizer: OptimizerSpec = Field(default=OptimizerSpec(), description="The optimizer.")
    deepspeed: DeepspeedSpec = Field(default=DeepspeedSpec(), description="Sharding.")
    max_tokens_per_micro_batch: int = Field(
        default=16384, ge=1, le=100_000_000, description="Packing budget of one forward and backward pass, tokens."
    )
    gradient_checkpointing: bool = Field(default=True, description="Recompute activations in the backward pass.")
    logits_chunk_tokens: int = Field(
        default=1024, ge=1, le=10_000_000, description="Tokens per chunk of the output head."
    )
    dtype: Literal["bfloat16", "float32"] = Field(
        default="bfloat16", description="Number format of forward and backward."
    )
    master_weights_dtype: Literal["float32"] = Field(
        default="float32", description="Number format of the optimizer's weights."
    )
    pod: PodSpec = Field(default=PodSpec(), description="Pod settings.")


class WeightSyncSpec(Section):
    """How new weights reach the rollouts."""

    every_steps: int = Field(default=1, ge=1, le=1000, description="Steps per published version.")
    transport: Literal["grpc"] = Field(default="grpc", description="How bytes travel.")
    delta: bool = Field(default=True, description="Publish changes against the last version where that is smaller.")
    anchor_every: int = Field(default=10, ge=1, le=1000, description="Versions per whole image.")
    kv_cache: Literal["keep", "recompute"] = Field(
        default="keep", description="What happens to the key-value cache of running requests at a weight update."
    )


class CheckpointSpec(Section):
    """What survives a restart."""

    every_steps: int = Field(
        default=10, ge=1, le=INT32, description="Steps per checkpoint; the last step always has one."
    )
    keep_last: int = Field(default=2, ge=1, le=1000, description="Newest checkpoints that are kept.")
    keep_every: int | None = Field(
        default=None, ge=1, le=INT32, description="Also keep those at multiples of this step."
    )
    export_hugging_face: bool = Field(default=True, description="Write a Hugging Face folder at the end.")
    save_optimizer: bool = Field(
        default=True, description="Save optimizer state; without it a restart forgets moments."
    )
