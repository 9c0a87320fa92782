"""`spec.trainer`, `spec.weightSync` and `spec.checkpoint`."""

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field

from rljob_api.manifest.base import FORBIDDEN, FREE, INT32, CelRule, Config, Decimal, Problem, Section, no_effect, rule
from rljob_api.manifest.pod import PodSpec, gpu_problems

# Keys that the trainer sets from other fields: setting them twice could only contradict.
DEEPSPEED_KEYS = {
    "train_batch_size": "spec.algorithm",
    "train_micro_batch_size_per_gpu": "spec.trainer.maxTokensPerMicroBatch",
    "gradient_accumulation_steps": "spec.trainer.maxTokensPerMicroBatch",
    "gradient_clipping": "spec.trainer.optimizer.maxGradNorm",
    "optimizer": "spec.trainer.optimizer",
    "scheduler": "spec.trainer.optimizer.schedule",
    "bf16": "spec.trainer.dtype",
    "fp16": "spec.trainer.dtype",
}


class MuonSpec(Section):
    """Muon's own numbers; weight decay, warm-up and schedule are the optimizer's."""

    learning_rate: Decimal = Field(description="Peak learning rate of the layers' matrices.")
    momentum: Decimal = Field(default=Decimal("0.95"), description="Decay of the momentum.")

    @rule(
        CelRule(
            field="learningRate",
            rule="double(self.learningRate) > 0.0",
            message="muon.learningRate must be above 0",
        ),
    )
    def numbers_are_in_range(self) -> Iterator[Problem]:
        if self.learning_rate <= 0:
            yield "learningRate", self.learning_rate, "it must be above 0"
        if not 0 <= self.momentum < 1:
            yield "momentum", self.momentum, "it must be at least 0 and below 1"


class OptimizerSpec(Section):
    """AdamW with fp32 master weights and moments, or Muon for matrices and AdamW for the rest."""

    type: Literal["AdamW", "Muon"] = Field(
        default="AdamW", description="Muon: for the matrices of the layers; AdamW for all other weights."
    )
    muon: MuonSpec | None = Field(default=None, description="Numbers of type Muon.")
    learning_rate: Decimal = Field(default=Decimal("1e-6"), description="Peak learning rate.")
    betas: tuple[Decimal, ...] = Field(
        default=(Decimal("0.9"), Decimal("0.95")), min_length=2, max_length=2, description="Decay of the two moments."
    )
    eps: Decimal = Field(default=Decimal("1e-8"), description="Added to the root of the second moment.")
    weight_decay: Decimal = Field(default=Decimal("0"), description="Decoupled weight decay.")
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000, description="Steps over which the learning rate rises.")
    schedule: Literal["Constant", "Linear", "Cosine"] = Field(
        default="Constant", description="Learning rate after the warm-up; Linear and Cosine fall to 0 at maxSteps."
    )
    decay_steps: int | None = Field(
        default=None, ge=1, le=INT32, description="Last steps, in which the rate falls; unset: all after warm-up."
    )
    average_steps: int | None = Field(
        default=None, ge=2, le=INT32, description="Last steps, the mean of whose weights ends the run."
    )
    max_grad_norm: Decimal = Field(default=Decimal("1.0"), description="Bound on the global L2 norm of the gradient.")

    @rule(
        CelRule(
            field="learningRate",
            rule="double(self.learningRate) > 0.0",
            message="learningRate must be above 0",
        ),
    )
    def numbers_are_in_range(self) -> Iterator[Problem]:
        for key, value in (
            ("learningRate", self.learning_rate),
            ("maxGradNorm", self.max_grad_norm),
            ("eps", self.eps),
        ):
            if value <= 0:
                yield key, value, "it must be above 0"
        if self.weight_decay < 0:
            yield "weightDecay", self.weight_decay, "it must not be negative"
        for index, beta in enumerate(self.betas):
            if not 0 <= beta < 1:
                yield f"betas[{index}]", beta, "it must be at least 0 and below 1"

    @rule(
        CelRule(
            field="decaySteps",
            reason=FORBIDDEN,
            rule="!has(self.decaySteps) || self.schedule != 'Constant'",
            message="decaySteps is for Linear and Cosine",
        ),
    )
    def a_decay_has_a_curve(self) -> Iterator[Problem]:
        if self.decay_steps is not None and self.schedule == "Constant":
            yield "decaySteps", self.decay_steps, no_effect("schedule is Constant: use Linear or Cosine")

    @rule(
        CelRule(
            field="muon",
            rule="(self.type == 'Muon') == has(self.muon)",
            message="type Muon needs muon.learningRate, and no other type has muon",
        ),
    )
    def muon_has_a_rate(self) -> Iterator[Problem]:
        """Rates of the two differ by an order of magnitude, so that neither is a default of the other."""
        if self.type == "Muon" and self.muon is None:
            yield "type", "Muon", "muon is not set: write muon.learningRate"
        if self.type != "Muon" and self.muon is not None:
            yield "muon", self.muon, no_effect(f"type is '{self.type}'")


class DeepspeedSpec(Section):
    """Sharding."""

    zero_stage: int = Field(default=2, ge=0, le=3, description="ZeRO stage: what is sharded over the ranks.")
    offload_optimizer: bool = Field(default=False, description="Keep optimizer state in host memory.")
    offload_parameters: bool = Field(default=False, description="Keep parameters in host memory; zeroStage 3 only.")
    extra: Config = Field(
        default={}, max_length=64, json_schema_extra=FREE, description="DeepSpeed keys that we do not set ourselves."
    )

    @rule(
        CelRule(
            field="offloadParameters",
            rule="!self.offloadParameters || self.zeroStage == 3",
            message="offloadParameters needs zeroStage 3",
        ),
        CelRule(
            field="offloadOptimizer",
            rule="!self.offloadOptimizer || self.zeroStage > 0",
            message="offloadOptimizer needs zeroStage 1, 2 or 3",
        ),
    )
    def offload_needs_sharding(self) -> Iterator[Problem]:
        """Offload is a feature of the sharded stages."""
        if self.offload_parameters and self.zero_stage != 3:
            yield "offloadParameters", True, f"zeroStage is {self.zero_stage}: only stage 3 can"
        if self.offload_optimizer and self.zero_stage == 0:
            yield "offloadOptimizer", True, "zeroStage is 0: stages 1 to 3 can"

    @rule()
    def extra_keys_are_extra(self) -> Iterator[Problem]:
        """Free-form options do not repeat what other fields set."""
        for key in (key for key in self.extra if key in DEEPSPEED_KEYS):
            yield f"extra.{key}", self.extra[key], f"{DEEPSPEED_KEYS[key]} sets it: leave it out"


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
    pod: PodSpec = Field(default=PodSpec(), description="Pod settings.")

    @property
    def world_size(self) -> int:
        """Number of trainer processes, which is the data-parallel size."""
        return self.nodes * self.processes_per_node

    @rule(
        CelRule(
            field="optimizer.type",
            reason=FORBIDDEN,
            rule="self.optimizer.type != 'Muon' || (self.dtype == 'bfloat16' && self.deepspeed.zeroStage <= 1"
            " && !self.deepspeed.offloadOptimizer)",
            message="Muon needs dtype bfloat16, zeroStage 0 or 1 and no offloadOptimizer",
        ),
    )
    def muon_clips_gradients(self) -> Iterator[Problem]:
        """Elsewhere DeepSpeed bounds the norm of Muon's update in place of the gradient's, or updates by a NaN."""
        if self.optimizer.type != "Muon":
            return
        if self.dtype != "bfloat16":
            yield "optimizer.type", "Muon", f"dtype is '{self.dtype}': use bfloat16, or AdamW"
        if self.deepspeed.zero_stage > 1:
            yield "optimizer.type", "Muon", f"deepspeed.zeroStage is {self.deepspeed.zero_stage}: use 0 or 1, or AdamW"
        if self.deepspeed.offload_optimizer:
            yield "optimizer.type", "Muon", "deepspeed.offloadOptimizer is true: use false, or AdamW"

    @rule()
    def gpus_hold_the_processes(self) -> Iterator[Problem]:
        """Each process of a pod has a GPU of its own."""
        because = f"processesPerNode {self.processes_per_node}"
        yield from gpu_problems(self.pod, needed=self.processes_per_node, because=because)


# Each is a module `<transport>_store` of rljob_workers.weights.backends.
WeightTransport = Literal["grpc", "file", "gloo"]


class WeightSyncSpec(Section):
    """How new weights reach the rollouts."""

    transport: WeightTransport = Field(
        default="grpc",
        description="What carries the bytes of a version: connections through the coordinator's weight store; files in"
        " a shared folder, in a cluster storage.checkpoints with ReadWriteMany; or, next to grpc, unencrypted"
        " broadcasts from trainer to rollouts by torch.distributed.",
    )
    every_steps: int = Field(default=1, ge=1, le=1000, description="Steps per published version.")
    delta: bool = Field(
        default=True,
        description="Send a version as its changes against the one before, without loss: a hundredth of the bytes"
        " at usual learning rates. Larger changes are sent whole.",
    )
    anchor_every: int = Field(
        default=10,
        ge=1,
        le=1000,
        description="Of this many versions in a row at least one is sent whole, too: it bounds what the weight store"
        " keeps and a rollout fetches at its start.",
    )
    kv_cache: Literal["Keep", "Recompute"] = Field(
        default="Keep", description="What happens to the key-value cache of running requests at a weight update."
    )

    def unused(self) -> Mapping[str, str]:
        return {} if self.delta else {"anchorEvery": "weightSync.delta is false: every version is sent whole"}


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
