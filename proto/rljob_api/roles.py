"""The resolved config of each process: complete, frozen, nothing optional that a process would have to guess.

`resolve.py` makes these from a manifest; the operator and the local runner write them as JSON; each program is
started with `--config role.json`. Durations `_s`, sizes `_bytes`, fractions are floats in 0..1.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rljob_api import names, types
from rljob_api.manifest.algorithm import CriticSpec, Decay, NormalizeSpec, OverlongSpec
from rljob_api.manifest.data import CurriculumSpec, FilterGroupsSpec
from rljob_api.manifest.loss import LossSpec
from rljob_api.manifest.rollout import AsyncSpec
from rljob_api.manifest.trainer import DeepspeedSpec, OptimizerSpec, WeightTransport


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class JobIdentity(_Frozen):
    """Which run this is. `uid` fences volumes and sessions of another job with the same name."""

    name: str
    namespace: str
    uid: str
    config_generation: int = 1


class TlsConfig(_Frozen):
    """Paths of PEM files, read again when they change; None in RoleConfig.tls means plain text.

    trust_domain: of the identities that peers must have.
    """

    ca_file: str
    cert_file: str
    key_file: str
    trust_domain: str = "cluster.local"


class CommonConfig(_Frozen):
    """What every process has. `health_port` serves /healthz, /readyz, /metrics and POST /stop with a token."""

    job: JobIdentity
    role: names.Role
    pod: str
    health_host: str = "0.0.0.0"
    health_port: int
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    tls: TlsConfig | None = None
    scratch_dir: str
    num_threads: int = 0
    cpu_affinity: tuple[int, ...] = ()


class ColumnsConfig(_Frozen):
    """Names of a record's columns; an empty id means the line number."""

    prompt: str = "prompt"
    answer: str = "answer"
    id: str = ""


class DataSourceConfig(_Frozen):
    """One named source: exactly one of path, hub, reasoning_gym. Paths are absolute."""

    name: str
    weight: float = 1.0
    path: str = ""
    hub: str = ""
    split: str = "train"
    reasoning_gym: str = ""
    reasoning_gym_config: dict[str, object] = Field(default_factory=dict)
    size: int = 0
    columns: ColumnsConfig = ColumnsConfig()
    format: Literal["auto", "math", "code", "gsm8k", "clevr", "dialogue"] = "auto"
    max_prompt_tokens: int
    on_invalid_record: Literal["fail", "drop"] = "fail"


class DataConfig(_Frozen):
    """Training sources and how prompts are drawn from them. epochs 0: without end."""

    train: tuple[DataSourceConfig, ...]
    template: str = "chat"
    shuffle: bool = True
    epochs: int = 0
    curriculum: CurriculumSpec | None = None


class RewardShapingConfig(_Frozen):
    """r' = clamp((r + bias) * scale, -clip, +clip), after the overlong penalty."""

    scale: float = 1.0
    bias: float = 0.0
    clip: float = 20.0
    overlong: OverlongSpec | None = None
    zero_truncated: bool = False
    mask_truncated: bool = False


class ReturnsConfig(_Frozen):
    """From the rewards of rows or turns to the advantages of tokens, algorithms reference 5; the trainer's part.

    bootstrap_truncated: a cut answer goes on with the critic's value. normalize is over the sampled tokens of the step;
    None leaves them as they are.
    """

    gamma: float = 1.0
    decay: Decay = Decay()
    unit: Literal["token", "turn"] = "token"
    bootstrap_truncated: bool = False
    normalize: NormalizeSpec | None = None


class AlgorithmConfig(_Frozen):
    """What the coordinator needs to turn rewards into advantages and groups into batches.

    trainer_returns: the trainer makes the advantages, from the rewards of tokens.
    train_zero_advantage: rows without advantage go to the trainer too, for terms besides the policy loss.
    train_masked: rows of maskTruncated go there too, for statistics over all sampled tokens.
    """

    advantage_estimator: Literal["grpo", "drgrpo", "rloo", "liteppo", "reinforcepp", "reinforceppBaseline", "ppo"] = (
        "grpo"
    )
    group_size: int
    prompts_per_step: int
    minibatches: int = 1
    epochs: int = 1
    rewards: RewardShapingConfig = RewardShapingConfig()
    normalize_reward: NormalizeSpec
    filter: FilterGroupsSpec
    trainer_returns: bool = False
    train_zero_advantage: bool = False
    train_masked: bool = False


class EvaluationSuite(_Frozen):
    """One evaluation suite."""

    source: DataSourceConfig
    samples_per_prompt: int = 1


class EvaluationConfig(_Frozen):
    """When and how to evaluate. every_steps 0: not during training; the last step is evaluated if suites exist.

    sampling_by_suite: of the suites whose own template stops otherwise than training's. rollout_fraction: share of the
    rollouts that an evaluation takes from training.
    """

    every_steps: int
    before_training: bool
    suites: tuple[EvaluationSuite, ...]
    sampling: types.Sampling
    sampling_by_suite: dict[str, types.Sampling] = Field(default_factory=dict)
    rollout_fraction: float = 0.25

    def sampling_of(self, suite: str) -> types.Sampling:
        """Return how the answers of a suite are sampled."""
        return self.sampling_by_suite.get(suite, self.sampling)


class FailureConfig(_Frozen):
    """Budgets of the failure policy that the coordinator enforces."""

    max_infra_attempts_per_prompt: int = 5
    max_data_attempts_per_prompt: int = 2
    min_group_fraction: float = 1.0
    min_step_batch_fraction: float = 1.0
    max_infra_failure_fraction: float = 0.2
    stall_timeout_s: float = 600.0
    stall_action: Literal["Condition", "Restart", "Fail"] = "Condition"


class ModelConfig(_Frozen):
    """`path` is a folder or hub id as the process should load it; builtin names are made under cache_dir."""

    name: str
    revision: str = ""
    tokenizer: str = ""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    trust_remote_code: bool = False
    path: str = ""
    cache_dir: str


class CoordinatorConfig(CommonConfig):
    """Everything that `rljob-coordinator` reads.

    first_version: the first that may be sampled from. 1 in a fork, whose model files are not what it starts with.
    """

    kind: Literal["coordinator"] = "coordinator"
    bind_host: str
    control_port: int
    store_port: int
    store_address: str
    state_dir: str
    max_steps: int
    seed: int
    data: DataConfig
    sampling: types.Sampling
    algorithm: AlgorithmConfig
    staleness: AsyncSpec
    evaluation: EvaluationConfig
    failure: FailureConfig
    world_size: int
    max_tokens_per_micro_batch: int
    publish_every_steps: int = 1
    checkpoint_every_steps: int
    keep_versions: int = 3
    lease_s: float = 60.0
    heartbeat_s: float = 1.0
    expected_rollouts: int = 1
    trainer_wait_target: float = 0.1
    first_version: int = 0


class EngineConfig(_Frozen):
    """The engine and its arguments; None leaves the engine's default. num_gpus: of a replica, on a job for GPUs."""

    type: str = "vllm"
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float | None = None
    max_model_len: int
    max_num_seqs: int
    enforce_eager: bool = False
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    kv_cache_bytes: int = 0
    extra_args: dict[str, object] = Field(default_factory=dict)
    num_gpus: int = 1


class RewardSummary(_Frozen):
    """Name and weight of one reward, for parts and metrics."""

    name: str
    weight: float


class RecordRules(_Frozen):
    """Which prompts of a source can be used, and whether records that cannot be are dropped."""

    max_prompt_tokens: int
    drops: bool


class RolloutConfig(CommonConfig):
    """Everything that `rljob-rollout` reads. template_by_suite: of the suites that have one of their own.

    record_rules: by training source; record_rules_by_suite: of all suites. A source without any has no bound.
    """

    kind: Literal["rollout"] = "rollout"
    coordinator_address: str
    verifier_addresses: tuple[str, ...]
    model: ModelConfig
    engine: EngineConfig
    device: Literal["auto", "cpu", "cuda"] = "auto"
    template: str
    template_by_suite: dict[str, str] = Field(default_factory=dict)
    record_rules: dict[str, RecordRules] = Field(default_factory=dict)
    record_rules_by_suite: dict[str, RecordRules] = Field(default_factory=dict)
    group_predicate: str = ""
    workflow: str
    workflow_config: dict[str, object] = Field(default_factory=dict)
    user_code: str = ""
    group_size: int
    max_groups_in_flight: int
    in_flight_weight_updates: bool
    kv_cache_policy: Literal["keep", "recompute"] = "keep"
    weight_transport: WeightTransport = "grpc"
    weights_dir: str = ""
    max_off_policy_steps: int
    drain_s: float
    verify_timeout_s: float
    max_infra_attempts: int
    seed: int
    dump_dir: str = ""
    dump_groups_per_version: int = 0
    dump_text: bool = False
    dump_monitor: bool = False
    publish_port: int = 0


class GraderConfig(_Frozen):
    """One entry of verifier.rewards[], or of the rewards of an evaluation suite, which then alone it grades: `suite`.

    Limits are of one clock, `grading_limits` says of what.

    tasks: the tasks whose records it grades; empty: records of any task, and of none.
    memory_bytes, output_bytes: of one run of a program. packages: what it may import beside the standard library.
    user_code: the user's file, where a type module:function may stand in it.
    """

    name: str
    type: str
    suite: str = ""
    tasks: tuple[str, ...] = ()
    weight: float = 1.0
    mode: Literal["strict", "compat"] = "strict"
    config: dict[str, object] = Field(default_factory=dict)
    cpu_limit_s: float = 10.0
    wall_limit_s: float = 30.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 64 << 10
    packages: tuple[str, ...] = ()
    user_code: str = ""


class VerifierConfig(CommonConfig):
    """Everything that `rljob-verifier` reads."""

    kind: Literal["verifier"] = "verifier"
    bind_host: str
    port: int
    rewards: tuple[GraderConfig, ...]
    isolation: str = "sandbox"
    allow_unsafe: bool = False
    memory_bytes: int = 512 << 20
    max_output_bytes: int = 64 << 10
    max_concurrent: int
    max_waiting: int = 4096


class CheckpointConfig(_Frozen):
    """keep_every 0: none beyond keep_last. Directories are absolute."""

    dir: str
    every_steps: int
    keep_last: int
    keep_every: int = 0
    export_hugging_face: bool = True
    export_dir: str
    save_optimizer: bool = True


class ForkConfig(_Frozen):
    """Where a fork begins: a checkpoint, a folder of checkpoints or a run's folder. step None: the last one."""

    path: str
    step: int | None = None


class TrainerConfig(CommonConfig):
    """Everything that `rljob-trainer` reads. `node_rank` differs per pod; the rest is equal on all ranks.

    reference: the frozen model of the KL term. returns None: a batch's advantages come ready for every token.
    critic None: no estimator but ppo has one. max_row_tokens: of a prompt with its answers. spec_digests: of manifest
    sections that others read, for checkpoints.
    """

    kind: Literal["trainer"] = "trainer"
    coordinator_address: str
    store_address: str
    model: ModelConfig
    nodes: int
    processes_per_node: int
    node_rank: int = 0
    rendezvous_host: str
    rendezvous_port: int
    attempt: int
    max_steps: int
    seed: int
    loss: LossSpec
    temperature: float = 1.0
    reference: ModelConfig | None = None
    returns: ReturnsConfig | None = None
    critic: CriticSpec | None = None
    minibatches: int
    epochs: int
    optimizer: OptimizerSpec
    deepspeed: DeepspeedSpec
    gradient_checkpointing: bool
    logits_chunk_tokens: int
    max_tokens_per_micro_batch: int
    max_row_tokens: int
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    publish_every_steps: int = 1
    weight_transport: WeightTransport = "grpc"
    weights_dir: str = ""
    spec_digests: dict[str, str] = Field(default_factory=dict)
    checkpoint: CheckpointConfig
    fork: ForkConfig | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"


RoleConfig = Annotated[CoordinatorConfig | RolloutConfig | VerifierConfig | TrainerConfig, Field(discriminator="kind")]
