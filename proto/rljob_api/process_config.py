"""What each process is started with: which run and which process it is, and the manifest with every value filled in.

    ProcessConfig       identity, addresses, ports, folders, processors: what a launcher decides
      SpecConfig        ... and `spec`, the manifest without pod settings
        CoordinatorConfig   RolloutConfig   TrainerConfig
      VerifierConfig    ... and the sections that grading reads, because it runs what a model wrote
      JudgeConfig       ... and the rewards that it asks a language model for
      AgentsConfig      ... and the user's command; on one machine alone
      EnvironmentConfig ... and the limits of its places

`resolve.py` makes these from a manifest; the operator and the local runner write them as JSON; each program is
started with `--config role.json`. A value of the manifest is written down in its section alone: what a manifest calls
spec.trainer.optimizer.learningRate, a process reads as `config.spec.trainer.optimizer.learning_rate`. Data sources in
`spec` have absolute paths.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializationInfo, field_serializer

from rljob_api import enums, grading, suites, types
from rljob_api.devices import Device
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.lifecycle import LogLevel, ObservabilitySpec
from rljob_api.manifest.storage import S3Spec
from rljob_api.manifest.verifier import LEAST_MEMORY, LEAST_SCRATCH, ExecutionSettings, RewardSpec

# The slowest reward's wall cap, once more after a lost grading worker, and time to wait for a free slot.
VERIFY_TRIES = 2
VERIFY_QUEUE_S = 30.0
# Groups leased per sequence slot: finished members of a slow group leave no slot of the engine empty.
OVERSUBSCRIPTION = 2

# Environment and volumes of pods may name Secrets, and no process reads them.
_POD_SETTINGS: Any = {str(role): {"pod"} for role in enums.Role}


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class JobIdentity(_Frozen):
    """Which run this is. `uid` fences volumes and sessions of another job with the same name."""

    name: str
    namespace: str
    uid: str
    config_generation: int = 1


class TlsConfig(_Frozen):
    """Paths of PEM files, read again when they change; None in ProcessConfig.tls means plain text.

    trust_domain: of the identities that peers must have.
    """

    ca_file: str
    cert_file: str
    key_file: str
    trust_domain: str = "cluster.local"


class ModelFiles(_Frozen):
    """Where a model is loaded from: `path`, a folder, a hub id or the URI of an object store, or if empty the built-in
    `name`. What is made or fetched is kept in cache_dir. s3: for URIs.
    """

    name: str
    revision: str = ""
    path: str = ""
    cache_dir: str
    s3: S3Spec = S3Spec()


class ProcessConfig(_Frozen):
    """What every process has. `health_port` serves /healthz, /readyz, /metrics and POST /stop with a token."""

    job: JobIdentity
    role: enums.Role
    pod: str
    health_host: str = "0.0.0.0"
    health_port: int
    tls: TlsConfig | None = None
    scratch_dir: str
    num_threads: int = 0
    cpu_affinity: tuple[int, ...] = ()

    @property
    def log_level(self) -> LogLevel:
        raise NotImplementedError


class SpecConfig(ProcessConfig):
    """A process that reads the manifest."""

    spec: JobSpec

    @property
    def log_level(self) -> LogLevel:
        return self.spec.observability.log_level

    @field_serializer("spec")
    def _without_pods(self, spec: JobSpec, info: SerializationInfo) -> dict[str, Any]:
        return spec.model_dump(mode=info.mode, exclude=_POD_SETTINGS)


class CoordinatorConfig(SpecConfig):
    """Everything that `rljob-coordinator` reads. evaluates_only: no step is trained, the suites are evaluated.
    weights_dir: of the weight store.
    """

    kind: Literal["coordinator"] = "coordinator"
    bind_host: str
    control_port: int
    store_port: int
    store_address: str
    state_dir: str
    weights_dir: str
    evaluates_only: bool = False
    keep_versions: int = 3
    lease_s: float = 60.0
    heartbeat_s: float = 1.0

    @property
    def cache_dir(self) -> str:
        """Where data of object stores are kept, for the checks of the other roles too."""
        return f"{self.state_dir}/cache"

    @property
    def max_steps(self) -> int:
        """Steps of the run; 0 for an evaluation alone."""
        return 0 if self.evaluates_only else self.spec.max_steps

    @property
    def first_version(self) -> int:
        """The first that may be sampled from. 1 in a fork, whose model files are not what it starts with."""
        return 0 if self.spec.resume_from is None else 1

    @property
    def sampling(self) -> types.Sampling:
        return self.spec.rollout.sampling.request(self.spec.data.template)

    def sampling_of(self, suite: str) -> types.Sampling:
        """Return how the answers of an evaluation suite are sampled: its template may have stops of its own."""
        own = next((each.template for each in self.spec.evaluation.suites if each.name == suite), None)
        return self.spec.evaluation.sampling.request(own or self.spec.data.template)


def host_and_port(host: str, port: int) -> str:
    """Return the address of a port as URLs and gRPC write it: an IPv6 host is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PeerConfig(_Frozen):
    """Where a rollout serves weights to other rollouts. host: as they dial it, in a cluster the pod's own address,
    RLJOB_POD_IP; empty: it serves nobody. server_name: the name that certificates of rollouts have.
    """

    bind_host: str
    host: str
    port: int
    server_name: str = ""

    @property
    def address(self) -> str:
        """What others dial, empty if they cannot."""
        if not self.host:
            return ""
        return host_and_port(self.host, self.port)


class BroadcastConfig(_Frozen):
    """Where the trainer announces broadcasts of weights. host: as rollouts dial it and as its end of broadcasts is
    reached, in a cluster the pod's own address, RLJOB_POD_IP; port 0: any.
    """

    host: str
    port: int


class GatewayConfig(_Frozen):
    """Where a rollout serves agents. host: as they dial it, in a cluster that of the pod. service: the headless Service
    whose pods certificates name; empty: connections are not encrypted.
    """

    bind_host: str
    host: str
    port: int
    service: str = ""

    def in_pod(self, address: str) -> "GatewayConfig":
        """Return what the pod of this address serves. Certificates have no addresses: an encrypted one is dialed by the
        name that CoreDNS has for a pod of a headless Service, 10-1-2-3.<service>.
        """
        label = address.replace(".", "-").replace(":", "-")
        # As CoreDNS writes an IPv6 address that ends in "::": no label may end in a hyphen.
        label += "0" if label.endswith("-") else ""
        return self.model_copy(update={"host": f"{label}.{self.service}" if self.service else address})

    def url_of(self, host: str, port: int) -> str:
        """Return the URL of a gateway with this one's encryption."""
        return f"{'https' if self.service else 'http'}://{host_and_port(host, port)}"

    @property
    def url(self) -> str:
        """What agents dial."""
        return self.url_of(self.host, self.port)


class RolloutConfig(SpecConfig):
    """Everything that `rljob-rollout` reads. kv_cache_bytes 0: the engine decides. dump_dir: of trajectories.
    weights_dir: of the weight store, where folders are shared. peers: None where rollouts do not serve one another.
    trainer_name: the name that certificates of trainers have, where they broadcast weights; else empty.
    gateway: None where no agents come from outside. judge_address: empty where no language model is asked.
    environment_addresses: empty where no episode has a shell.
    """

    kind: Literal["rollout"] = "rollout"
    coordinator_address: str
    verifier_addresses: tuple[str, ...]
    judge_address: str = ""
    environment_addresses: tuple[str, ...] = ()
    model: ModelFiles
    device: Device = "auto"
    user_code: str = ""
    kv_cache_bytes: int = 0
    weights_dir: str = ""
    dump_dir: str = ""
    peers: PeerConfig | None = None
    trainer_name: str = ""
    gateway: GatewayConfig | None = None

    @property
    def max_groups_in_flight(self) -> int:
        """What the engine's slots take, at most this replica's part of all groups in flight; at least 1."""
        spec = self.spec
        slots = -(-OVERSUBSCRIPTION * spec.rollout.engine.max_num_seqs // spec.algorithm.group_size)
        part = -(-spec.async_.max_inflight_groups // spec.rollout.replicas)
        return max(1, min(slots, part))

    @property
    def verify_timeout_s(self) -> float:
        """Seconds that a verifier may take for one answer."""
        seconds = self.spec.verifier.timeout_seconds
        longest = max(grading.most_wall_s(reward, seconds) for _, _, reward in suites.rewards(self.spec))
        return VERIFY_TRIES * longest + VERIFY_QUEUE_S

    @property
    def judge_timeout_s(self) -> float:
        """Seconds that a judge may take for one call; 0 without one."""
        return max((options.deadline_seconds for options in suites.judges(self.spec).values()), default=0.0)


class GraderConfig(RewardSpec):
    """One entry of verifier.rewards[], or of the rewards of an evaluation suite, which then alone it grades: `suite`.

    Limits are of one clock, `rljob_api.grading` says of what.

    tasks: the tasks whose records it grades; empty: records of any task, and of none.
    memory_bytes, output_bytes: of one run of a program. user_code: the user's file, where a type module:function may
    stand in it.
    """

    model_config = ConfigDict(validate_by_name=True)

    # Checked where a manifest is read: here also what a verifier is told of on its command line, and a file's own name.
    name: str
    type: str
    suite: str = ""
    tasks: tuple[str, ...] = ()
    cpu_limit_s: float = 10.0
    wall_limit_s: float = 30.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 64 << 10
    user_code: str = ""


def graders_of(rewards: Sequence[GraderConfig], suite: str) -> tuple[int, ...]:
    """Return the indexes of the rewards that grade a suite: its own, else those of training (suite "")."""
    own = tuple(index for index, reward in enumerate(rewards) if reward.suite == suite)
    return own or graders_of(rewards, "") if suite else own


class VerifierConfig(ProcessConfig):
    """Everything that `rljob-verifier` reads. rewards: with their limits, training's first. num_slots: gradings at
    once.
    """

    kind: Literal["verifier"] = "verifier"
    bind_host: str
    port: int
    num_slots: int
    max_waiting: int = 4096
    rewards: tuple[GraderConfig, ...]
    execution: ExecutionSettings = ExecutionSettings()
    observability: ObservabilitySpec = ObservabilitySpec()

    @property
    def log_level(self) -> LogLevel:
        return self.observability.log_level


# What the job's own judge is called by those who ask it.
OWN_JUDGE = "judge"


class ModelServerConfig(_Frozen):
    """A model that vLLM serves on loopback, at `port`. max_model_len: 0 for the model's own. extra_args: of
    `vllm serve`, by their Python names.
    """

    model: ModelFiles
    port: int
    tensor_parallel_size: int = 1
    max_model_len: int = 0
    extra_args: dict[str, Any] = {}
    num_gpus: int = 1
    device: Device = "auto"

    @property
    def url(self) -> str:
        """Where it answers, before `/score`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        """Where it answers, before `/chat/completions`."""
        return f"{self.url}/v1"

    def answers_at(self, url: str) -> bool:
        return url in (self.url, self.api_url)


class JudgeConfig(ProcessConfig):
    """Everything that `rljob-judge` reads. rewards: those of type judge, training's first; of those that ask the job's
    own model, its address is the URL. Keys come by the environment. server: that model, None without one.
    """

    kind: Literal["judge"] = "judge"
    bind_host: str
    port: int
    max_waiting: int = 4096
    rewards: tuple[GraderConfig, ...]
    server: ModelServerConfig | None = None
    observability: ObservabilitySpec = ObservabilitySpec()

    @property
    def log_level(self) -> LogLevel:
        return self.observability.log_level


class EnvironmentConfig(ProcessConfig):
    """Everything that `rljob-environment` reads. num_places: episodes at once. lease_s: how long a place stays an
    episode's after its last call. wall_s, output_bytes: of all commands of an episode; memory_bytes: of each command;
    scratch_bytes, scratch_entries: of its files, which lie below `scratch_dir`.
    """

    kind: Literal["environment"] = "environment"
    bind_host: str
    port: int
    num_places: int = Field(default=4, ge=1, le=256)
    max_waiting: int = Field(default=1024, ge=0)
    lease_s: float = Field(default=300.0, gt=0.0)
    wall_s: float = Field(default=600.0, gt=0.0)
    output_bytes: int = Field(default=1 << 20, ge=1)
    memory_bytes: int = Field(default=1 << 30, ge=LEAST_MEMORY)
    scratch_bytes: int = Field(default=256 << 20, ge=LEAST_SCRATCH)
    scratch_entries: int = Field(default=10_000, ge=16)
    observability: ObservabilitySpec = ObservabilitySpec()

    @property
    def log_level(self) -> LogLevel:
        return self.observability.log_level


class AgentsConfig(ProcessConfig):
    """How a process of the agents is started on one machine; a pod of them has its image's files alone, and no config.

    command: the user's program, which reads the gateway's URL and the file of its key from its environment. directory:
    what it starts in. variables: what the manifest says of its environment; own_variables: names that it takes over
    from the environment of the run, and no other process does. It serves no health.
    """

    kind: Literal["agents"] = "agents"
    health_port: int = 0
    command: tuple[str, ...]
    directory: str
    gateway_url: str
    variables: dict[str, str] = Field(default_factory=dict)
    own_variables: tuple[str, ...] = ()
    observability: ObservabilitySpec = ObservabilitySpec()

    @property
    def log_level(self) -> LogLevel:
        return self.observability.log_level


class TrainerConfig(SpecConfig):
    """Everything that `rljob-trainer` reads. `node_rank` differs per pod; the rest is equal on all ranks.

    reference: the frozen model of the KL term; None without one, and where it is the model without its adapter.
    teacher: the frozen model of spec.teacher.
    fork_from: a checkpoint, a folder of checkpoints or a run's folder, empty unless the run is a fork. spec_digests: of
    manifest sections that others read, for checkpoints. broadcasts: None where weights are not broadcast.
    """

    kind: Literal["trainer"] = "trainer"
    coordinator_address: str
    store_address: str
    model: ModelFiles
    reference: ModelFiles | None = None
    teacher: ModelFiles | None = None
    node_rank: int = 0
    rendezvous_host: str
    rendezvous_port: int
    attempt: int
    checkpoint_dir: str
    export_dir: str
    fork_from: str = ""
    weights_dir: str = ""
    spec_digests: dict[str, str] = Field(default_factory=dict)
    broadcasts: BroadcastConfig | None = None
    device: Device = "auto"


RoleConfig = Annotated[
    CoordinatorConfig | RolloutConfig | VerifierConfig | TrainerConfig | JudgeConfig | AgentsConfig | EnvironmentConfig,
    Field(discriminator="kind"),
]
