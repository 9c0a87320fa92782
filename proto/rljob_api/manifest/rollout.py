"""`spec.workflow`, `spec.async` and `spec.rollout`: how episodes run and how old they may be."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from rljob_api.manifest.base import FREE, INT32, NAME_PATTERN, Config, Decimal, Section, Text, TokenId, one_of
from rljob_api.manifest.pod import PodSpec

WORKFLOWS = ("rlvr", "math_code_single_step", "multi_turn_math")

PythonFile = Annotated[str, Field(min_length=4, max_length=1024, pattern=r"^([^/]*/)*[A-Za-z_][A-Za-z0-9_]*\.py$")]

if TYPE_CHECKING:
    Workflow = str
else:
    Workflow = one_of(*WORKFLOWS)


class CodeSpec(Section):
    """One Python file of the user: a workflow, an agent, an environment. Its stem is the module in module:Class."""

    path: PythonFile = Field(
        description="The file, ending in .py; relative to the manifest on one machine. In a cluster: the key, that is"
        " the file's name, in the ConfigMap."
    )
    config_map: Annotated[str, Field(min_length=1, max_length=253, pattern=NAME_PATTERN)] | None = Field(
        default=None, description="ConfigMap of the job's namespace that holds the file; only read in a cluster."
    )


class WorkflowSpec(Section):
    """What happens inside one episode."""

    type: Workflow = Field(default="rlvr", description="rlvr, math_code_single_step, multi_turn_math, or module:Class.")
    config: Config = Field(
        default={},
        max_length=64,
        json_schema_extra=FREE,
        description="Options of the workflow, checked by its own model.",
    )
    code: CodeSpec | None = Field(default=None, description="The user's own file, for a type that is module:Class.")


class AsyncSpec(Section):
    """How far generation may run ahead of training."""

    max_off_policy_steps: int = Field(
        default=1, ge=0, le=64, description="Largest age of a trained token in trainer steps; 0 is synchronous."
    )
    on_stale: Literal["drop", "wait"] | None = Field(
        default=None, description="What happens to groups that grow too old. Default: drop."
    )
    in_flight_weight_updates: bool | None = Field(
        default=None,
        description="Change weights inside a generation instead of draining first. Default: true unless synchronous.",
    )
    max_inflight_groups: int | None = Field(
        default=None,
        ge=1,
        le=INT32,
        description="Groups in generation at once. Default and cap: (maxOffPolicySteps + 1) x promptsPerStep.",
    )


class EngineSpec(Section):
    """vLLM engine arguments; what is unset keeps vLLM's default."""

    tensor_parallel_size: int = Field(default=1, ge=1, le=64, description="GPUs per replica.")
    gpu_memory_utilization: Decimal | None = Field(
        default=None, description="Share of GPU memory for the engine, 0 to 1."
    )
    max_model_len: int | None = Field(
        default=None, ge=1, le=10_000_000, description="Longest prompt + answer, tokens. Default: what the job needs."
    )
    max_num_seqs: int = Field(default=256, ge=1, le=65536, description="Sequences that are decoded at once.")
    enforce_eager: bool = Field(default=False, description="Do not capture CUDA graphs or compile.")
    dtype: Literal["bfloat16", "float16", "float32"] | None = Field(
        default=None, description="Number format of the engine. Default: model.dtype."
    )
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] = Field(
        default="auto", description="Number format of the key-value cache."
    )
    extra_args: Config = Field(
        default={},
        max_length=64,
        json_schema_extra=FREE,
        description="Further vLLM engine arguments by their Python names.",
    )


class SamplingSpec(Section):
    """How training answers are sampled."""

    temperature: Decimal = Field(default="1.0", description="Softmax temperature, above 0.")
    top_p: Decimal = Field(default="1", description="Nucleus share; training needs 1.")
    top_k: int = Field(
        default=0, ge=0, le=INT32, description="Number of candidate tokens; 0 is off, as training needs."
    )
    min_p: Decimal = Field(default="0", description="Smallest relative probability; training needs 0.")
    max_tokens: int = Field(default=1024, ge=1, le=10_000_000, description="Longest answer, tokens.")
    min_tokens: int = Field(default=0, ge=0, le=10_000_000, description="Shortest answer, tokens.")
    stop: tuple[Text, ...] = Field(default=(), max_length=16, description="Texts that end an answer.")
    stop_token_ids: tuple[TokenId, ...] = Field(
        default=(), max_length=64, description="Token ids that end an answer, besides the end token."
    )
    ignore_eos: bool = Field(default=False, description="Go on after the end token.")


class AutoscalingSpec(Section):
    """Scaling of rollout replicas by an HPA or KEDA; the operator itself writes no replica count."""

    min_replicas: int = Field(default=1, ge=1, le=10_000, description="Fewest replicas.")
    max_replicas: int = Field(ge=1, le=10_000, description="Most replicas.")
    trainer_wait_target: Decimal = Field(default="0.1", description="Share of time that the trainer may wait, 0 to 1.")
    scale_down_stabilization_seconds: int = Field(
        default=600, ge=0, le=3600, description="Seconds of low load before replicas go."
    )
    provider: Literal["hpa", "keda"] = Field(default="hpa", description="Who scales.")


class RolloutSpec(Section):
    """Rollout replicas."""

    replicas: int = Field(default=1, ge=1, le=10_000, description="Number of rollout replicas; the scale subresource.")
    autoscaling: AutoscalingSpec | None = Field(default=None, description="Automatic scaling; off if unset.")
    engine: EngineSpec = Field(default=EngineSpec(), description="vLLM engine arguments.")
    sampling: SamplingSpec = Field(default=SamplingSpec(), description="How training answers are sampled.")
    drain_seconds: int = Field(
        default=120, ge=0, le=86_400, description="Seconds to finish or hand back leases before a pod goes."
    )
    pod: PodSpec = Field(default=PodSpec(), description="Pod settings.")
