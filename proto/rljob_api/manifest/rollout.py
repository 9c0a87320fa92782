"""`spec.workflow`, `spec.async`, `spec.rollout` and `spec.agents`: how episodes run, how old they may be, and what
program of the user's answers those of `workflow.type: external`.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic
from pydantic import Field

from rljob_api import plugins, types
from rljob_api.manifest import reward_options
from rljob_api.manifest.base import (
    FREE,
    INT32,
    NAME_PATTERN,
    NO_SHARE,
    SET,
    CelRule,
    Config,
    Decimal,
    Problem,
    Section,
    Text,
    TokenId,
    one_of,
    rule,
)
from rljob_api.manifest.pod import KeyRefSpec, PodSpec, gpu_problems

# Each is a folder of rljob_workers.rollout.engines.
ENGINES = ("vllm",)
EXTERNAL = "external"
TOOL_USE = "tool_use"
WORKFLOWS = ("rlvr", "math_code_single_step", "multi_turn_math", TOOL_USE, EXTERNAL)
SINGLE_TURN_WORKFLOWS = ("rlvr", "math_code_single_step")
# Of multi_turn_math: its default number of turns, and room for one feedback text in any tokenizer.
DEFAULT_NUM_TURNS = 5
FEEDBACK_TOKENS = 128
# Of tool_use: its default number of turns, what the model sees of a command by default, and room for the declarations
# of the shell and, by default, of all other tools.
TOOL_TURNS, TOOL_OUTPUT_CHARS, DECLARATION_TOKENS, SERVED_DECLARATION_TOKENS = 8, 2048, 256, 2048
SHELL, TERMINAL = "shell", "terminal"
MOST_TOOL_SERVERS = 16
# Ported configs say "all candidate tokens" by 1e8, more than any vocabulary has.
ALL_TOKENS = 100_000_000
# Keys that the rollout sets from other fields: setting them twice could only contradict.
ENGINE_KEYS = {
    "model": "spec.model.name",
    "tokenizer": "spec.model.tokenizer",
    "dtype": "spec.rollout.engine.dtype",
    "max_model_len": "spec.rollout.engine.maxModelLen",
    "max_num_seqs": "spec.rollout.engine.maxNumSeqs",
    "tensor_parallel_size": "spec.rollout.engine.tensorParallelSize",
    "gpu_memory_utilization": "spec.rollout.engine.gpuMemoryUtilization",
    "enforce_eager": "spec.rollout.engine.enforceEager",
    "kv_cache_dtype": "spec.rollout.engine.kvCacheDtype",
    "seed": "spec.seed",
    "trust_remote_code": "spec.model.trustRemoteCode",
    "worker_extension_cls": "the rollout itself",
    "weight_transfer_config": "the rollout itself",
    "logprobs_mode": "the rollout itself",
}

PIPELINE_KEY = "pipeline_parallel_size"

# What an agent's environment says: where it asks for tasks, the file with the key that it asks by, and that with the
# CAs by which it knows an encrypted gateway.
GATEWAY_VARIABLE, KEY_FILE_VARIABLE = "RLJOB_GATEWAY", "RLJOB_GATEWAY_KEY_FILE"
CA_FILE_VARIABLE = "RLJOB_GATEWAY_CA_FILE"
# The gateway's key in the environment of who serves it.
KEY_VARIABLE = "RLJOB_GATEWAY_KEY"
# Of nodes and of clouds, which give credentials to whoever asks there.
LINK_LOCAL = ("169.254.0.0/16", "fe80::/10")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def lies_in(part: Network, block: Network) -> bool:
    """Return whether a network is a part of another, or the same."""
    return part.version == block.version and part.subnet_of(block)  # type: ignore[arg-type]  # of one version


Word = Annotated[str, Field(min_length=1, max_length=4096)]
Port = Annotated[int, Field(ge=1, le=65_535)]

PythonFile = Annotated[str, Field(min_length=4, max_length=1024, pattern=r"^([^/]*/)*[A-Za-z_][A-Za-z0-9_]*\.py$")]

if TYPE_CHECKING:
    Workflow = str
    Engine = str
else:
    Workflow = one_of(*WORKFLOWS, prefixes=(plugins.PREFIX,))
    Engine = one_of(*ENGINES, prefixes=(plugins.PREFIX,), imports=False)


class CodeSpec(Section):
    """One Python file of the user: a workflow, an agent, an environment. Its stem is the module in module:Class."""

    path: PythonFile = Field(
        description="The .py file, relative to the manifest on one machine. In a cluster: the key, its name, in the"
        " ConfigMap."
    )
    config_map: Annotated[str, Field(min_length=1, max_length=253, pattern=NAME_PATTERN)] | None = Field(
        default=None, description="ConfigMap of the job's namespace that holds the file; only read in a cluster."
    )


VariableName = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_SECRET_VARIABLE = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|KEY", re.IGNORECASE)


class ToolServer(reward_options.Options):
    """One of `workflow.config.mcp`: a server of the Model Context Protocol whose tools the model may call.

    url: of streamable HTTP. command: a program that speaks by its standard streams, a process for each episode that
    calls it. env: variables of that process, with their values. variables: those of the rollout that it gets too.
    token_variable: the variable of the rollout with the token that is sent to the URL as a bearer. tools: those that
    are offered; None for all.
    """

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=NAME_PATTERN)]
    url: Annotated[str, Field(max_length=1024)] = ""
    command: Annotated[tuple[Word, ...], Field(max_length=64)] = ()
    env: Annotated[dict[VariableName, str], Field(max_length=64)] = Field(default_factory=dict)
    variables: Annotated[tuple[VariableName, ...], Field(max_length=64)] = ()
    token_variable: Annotated[str, Field(max_length=128, pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")] = ""
    tools: Annotated[tuple[Text, ...], Field(min_length=1, max_length=256)] | None = None

    @pydantic.model_validator(mode="after")
    def _is_one_kind(self) -> "ToolServer":
        if bool(self.url) == bool(self.command):
            raise ValueError("it needs either url or command")
        if self.url and (problem := reward_options.url_problem(self.url, key="tokenVariable")):
            raise ValueError(f"its url {problem}")
        if self.url and (self.env or self.variables):
            raise ValueError("it has a url, and no process that would get env or variables: leave them out")
        if self.command and self.token_variable:
            raise ValueError("it has a command, to which no token is sent: name it in variables")
        for name in self.env:
            if _SECRET_VARIABLE.search(name):
                raise ValueError(
                    f"its env has {name}, and a manifest holds no secrets: set it in rollout.pod.env from a"
                    " Secret and name it in variables"
                )
        for name in (*self.variables, self.token_variable):
            if name.startswith("RLJOB_"):
                raise ValueError(f"it does not get {name}, a variable of rljob's own")
        return self

    @property
    def port(self) -> int:
        """The port of the URL."""
        return reward_options.port_of(self.url)

    @property
    def place(self) -> str:
        """The URL, or the command as a person writes it."""
        return self.url or " ".join(self.command)


class WorkflowSpec(Section):
    """What happens inside one episode."""

    type: Workflow = Field(
        default="rlvr",
        description="rlvr, math_code_single_step, multi_turn_math, tool_use, external (agents outside), module:Class,"
        " or plugin:<name>, the entry point of a package.",
    )
    config: Config = Field(
        default={},
        max_length=64,
        json_schema_extra=FREE,
        description="Options of the workflow, checked by its own model.",
    )
    code: CodeSpec | None = Field(default=None, description="The user's own file, for a type that is module:Class.")

    @property
    def is_legacy_multi_turn(self) -> bool:
        """Whether each turn is a row of its own with rewards shaped by the workflow."""
        return self.type == "multi_turn_math" and self.config.get("layout") == "legacy"

    @property
    def shapes_rewards_itself(self) -> bool:
        """Whether the workflow maps success to rewards, so that the pipeline's affine step must be the identity."""
        signed = self.type == "math_code_single_step" and self.config.get("shaping") == "signed"
        return self.is_legacy_multi_turn or signed

    @property
    def success_rate_bounds(self) -> tuple[float | None, float | None]:
        """successRateLowerBound and successRateUpperBound of a workflow that shapes by sign: raw rewards are successes
        there.
        """
        if self.type != "math_code_single_step" or not self.shapes_rewards_itself:
            return None, None
        lower, upper = (self.config.get(f"successRate{end}Bound") for end in ("Lower", "Upper"))
        return (
            float(lower) if isinstance(lower, int | float) else None,
            float(upper) if isinstance(upper, int | float) else None,
        )

    @property
    def has_shell(self) -> bool:
        """Whether the model has the tool `shell`, whose commands run in an environment."""
        tools = self.config.get("tools")
        return self.type == TOOL_USE and isinstance(tools, list) and SHELL in tools

    @property
    def is_own(self) -> bool:
        """Whether the type names a class of the user's, of a file or of an installed package."""
        return ":" in self.type

    @property
    def tool_servers(self) -> tuple[ToolServer, ...]:
        """The servers of tool_use whose tools the model may call; the rules refuse what is left out here."""
        if self.type != TOOL_USE:
            return ()
        written = self.config.get("mcp")
        return tuple(
            ToolServer.model_validate(each)
            for each in (written if isinstance(written, list) else [])
            if not any(reward_options.problems("mcp", _as_mapping(each), model=ToolServer))
        )

    @rule()
    def tools_are_there(self) -> Iterator[Problem]:
        """The model has a tool, and each server can be called by what is written of it."""
        if self.type != TOOL_USE:
            return
        servers = self.config.get("mcp", [])
        if not isinstance(servers, list) or len(servers) > MOST_TOOL_SERVERS:
            yield "config.mcp", servers, f"it must be a list of at most {MOST_TOOL_SERVERS} servers"
            return
        for index, server in enumerate(servers):
            for path, value, because in reward_options.problems("mcp", _as_mapping(server), model=ToolServer):
                # Of a server as a whole: its variables are not for a message.
                place, shown = (f".{path}", value) if path else ("", _as_mapping(server).get("name"))
                yield f"config.mcp[{index}]{place}", shown, because
        names = [_as_mapping(server).get("name") for server in servers]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield f"config.mcp[{index}].name", name, "another server has this name: give each its own"
        if not servers and not self.has_shell:
            yield "config.tools", self.config.get("tools"), "the model has no tool: use [shell], or name servers in mcp"
        if servers and self.config.get("notation") == TERMINAL:
            because = "tools of mcp are declared by a chat template: use auto, or the name of a parser"
            yield "config.notation", TERMINAL, because

    def later_turns(self, *, max_answer_tokens: int) -> int:
        """Return what the turns after the first may add to a request, tokens; 0 for workflows of one turn."""
        if self.type == "multi_turn_math":
            return self._turns_after_first(DEFAULT_NUM_TURNS) * (max_answer_tokens + FEEDBACK_TOKENS)
        if self.type != TOOL_USE:
            return 0
        written = self.config.get("outputChars")
        # A token has a character at least, as good as always.
        output = FEEDBACK_TOKENS + (written if isinstance(written, int) else TOOL_OUTPUT_CHARS)
        room = self.config.get("declarationTokens", SERVED_DECLARATION_TOKENS if self.config.get("mcp") else 0)
        declared = DECLARATION_TOKENS + (room if isinstance(room, int) else 0)
        return declared + self._turns_after_first(TOOL_TURNS) * (max_answer_tokens + output)

    def _turns_after_first(self, default: int) -> int:
        written = self.config.get("numTurns")
        return max(0, (written if isinstance(written, int) else default) - 1)


def _as_mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


class AsyncSpec(Section):
    """How far generation may run ahead of training."""

    max_off_policy_steps: int = Field(
        default=1, ge=0, le=64, description="Largest age of a trained token in trainer steps; 0 is synchronous."
    )
    on_stale: Literal["Mask", "Drop", "Wait"] = Field(
        default_factory=lambda: "Mask",
        description="What becomes of what is too old. Mask: tokens above the bound leave the loss; Drop: the group is"
        " generated again, which trains short answers more often; Wait: a step waits for its oldest groups."
        " Default: Mask.",
    )
    in_flight_weight_updates: bool = Field(
        default_factory=lambda fields: fields["max_off_policy_steps"] > 0,
        description="Change weights inside a generation instead of draining first. Default: true unless"
        " maxOffPolicySteps is 0.",
    )
    # The job fills in the default.
    max_inflight_groups: int = Field(
        default_factory=lambda: 1,
        ge=1,
        le=INT32,
        description="Groups in generation at once, at most the default. Default: (maxOffPolicySteps + 1) x"
        " promptsPerStep.",
    )

    def unused(self) -> Mapping[str, str]:
        return {"onStale": "maxOffPolicySteps is 0, where nothing grows old"} if self.max_off_policy_steps == 0 else {}

    @rule(
        CelRule(
            field="maxOffPolicySteps",
            rule="self.maxOffPolicySteps > 0 || (!has(self.onStale)"
            " && (!has(self.inFlightWeightUpdates) || !self.inFlightWeightUpdates))",
            message="onStale and inFlightWeightUpdates are ignored when maxOffPolicySteps is 0: leave them out",
        ),
    )
    def synchronous_generation_never_overlaps(self) -> Iterator[Problem]:
        """Synchronous training changes weights between generations."""
        if self.max_off_policy_steps == 0 and self.in_flight_weight_updates:
            because = "maxOffPolicySteps is 0, where generation never overlaps training: use false"
            yield "inFlightWeightUpdates", True, because


class EngineSpec(Section):
    """The inference engine and its arguments, named as vLLM names them; what is unset keeps the engine's default."""

    type: Engine = Field(default="vllm", description="vllm, or plugin:<name>, the entry point of a package.")
    tensor_parallel_size: int = Field(default=1, ge=1, le=64, description="GPUs per replica.")
    gpu_memory_utilization: Decimal | None = Field(
        default=None, description="Share of GPU memory for the engine, 0 to 1."
    )
    # The job fills in the defaults of maxModelLen and dtype.
    max_model_len: int = Field(
        default_factory=lambda: 1,
        ge=1,
        le=10_000_000,
        description="Longest prompt + answer, tokens. Default: longest prompt + longest answer.",
    )
    max_num_seqs: int = Field(default=256, ge=1, le=65536, description="Sequences that are decoded at once.")
    enforce_eager: bool = Field(default=False, description="Do not capture CUDA graphs or compile.")
    dtype: Literal["bfloat16", "float16", "float32"] = Field(
        default_factory=lambda: "bfloat16", description="Number format of the engine. Default: model.dtype."
    )
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] = Field(
        default="auto", description="Number format of the key-value cache."
    )
    extra_args: Config = Field(
        default={},
        max_length=64,
        json_schema_extra=FREE,
        description="Further arguments of the engine; of vLLM by their Python names.",
    )

    @property
    def num_gpus(self) -> int:
        """GPUs of a replica: tensorParallelSize times the stages of extraArgs.pipeline_parallel_size."""
        stages = self.extra_args.get(PIPELINE_KEY, 1)
        return self.tensor_parallel_size * (stages if isinstance(stages, int) else 1)

    @rule()
    def share_is_in_range(self) -> Iterator[Problem]:
        if self.gpu_memory_utilization is not None and not 0 <= self.gpu_memory_utilization <= 1:
            yield "gpuMemoryUtilization", self.gpu_memory_utilization, NO_SHARE

    @rule()
    def extra_arguments_are_extra(self) -> Iterator[Problem]:
        """Free-form options do not repeat what other fields set."""
        for key in (key for key in self.extra_args if key in ENGINE_KEYS):
            yield f"extraArgs.{key}", self.extra_args[key], f"{ENGINE_KEYS[key]} sets it: leave it out"


AnswerTokens = Annotated[int, Field(ge=1, le=10_000_000)]
FewestTokens = Annotated[int, Field(ge=0, le=10_000_000)]
Stops = Annotated[tuple[Text, ...], Field(max_length=16)]
StopIds = Annotated[tuple[TokenId, ...], Field(max_length=64)]

# Templates that bring their own stop rule (docs/design/workflows.md#s-8-2). A bare question has none.
TEMPLATE_STOPS = {"qwen_math": "which stops at the end token only", "r1": "which stops at </answer>"}


class SamplingSpec(Section):
    """How answers are sampled; the defaults are those of training."""

    temperature: Decimal = Field(default=Decimal("1.0"), description="Softmax temperature, above 0.")
    top_p: Decimal = Field(default=Decimal("1"), description="Nucleus share; training needs 1.")
    top_k: int = Field(
        default=0, ge=0, le=INT32, description="Number of candidate tokens; 0 is off, as training needs."
    )
    min_p: Decimal = Field(default=Decimal("0"), description="Smallest relative probability; training needs 0.")
    max_tokens: AnswerTokens = Field(default=1024, description="Longest answer, tokens.")
    min_tokens: FewestTokens = Field(default=0, description="Shortest answer, tokens.")
    stop: Stops = Field(default=(), description="Texts that end an answer.")
    stop_token_ids: StopIds = Field(default=(), description="Token ids that end an answer, besides the end token.")
    ignore_eos: bool = Field(default=False, description="Continue after the end token.")

    @property
    def num_candidates(self) -> int:
        """Number of candidate tokens, 0 for all."""
        return 0 if self.top_k >= ALL_TOKENS else self.top_k

    def request(self, template: str) -> types.Sampling:
        """Return what an engine is asked for. Template r1 stops at its closing tag and keeps it
        (docs/design/workflows.md#s-8-2).
        """
        ends_at_tag = template == "r1"
        values = {name: getattr(self, name) for name in SamplingSpec.model_fields}
        values |= {"top_k": self.num_candidates, "stop": ("</answer>",) if ends_at_tag else self.stop}
        return types.Sampling(**values, greedy=self.temperature == 0.0, include_stop=ends_at_tag)


class TrainingSamplingSpec(SamplingSpec):
    """How training answers are sampled."""

    @rule(
        CelRule(
            rule="double(self.temperature) > 0.0 && double(self.topP) == 1.0"
            f" && (self.topK == 0 || self.topK >= {ALL_TOKENS})"
            " && double(self.minP) == 0.0",
            message="training needs log-probabilities of the sampled distribution:"
            " temperature above 0, topP 1, topK 0 and minP 0",
        ),
        CelRule(
            field="minTokens",
            rule="self.minTokens <= self.maxTokens",
            message="minTokens must be at most maxTokens",
        ),
    )
    def distribution_is_the_trained_one(self) -> Iterator[Problem]:
        """Log-probabilities are those of the whole distribution. Penalties are no fields at all."""
        exact = "training needs log-probabilities of the distribution that was sampled"
        if self.temperature <= 0:
            yield "temperature", self.temperature, f'{exact}: use a temperature above 0, such as "1.0"'
        if self.top_p != 1.0:
            yield "topP", self.top_p, f'{exact}: use "1"'
        if self.num_candidates != 0:
            yield "topK", self.top_k, f"{exact}: use 0"
        if self.min_p != 0.0:
            yield "minP", self.min_p, f'{exact}: use "0"'
        if self.min_tokens > self.max_tokens:
            yield "minTokens", self.min_tokens, f"it is above maxTokens {self.max_tokens}"


class AutoscalingSpec(Section):
    """Scaling of rollout replicas by an HPA or KEDA; the operator itself writes no replica count."""

    min_replicas: int = Field(default=1, ge=1, le=10_000, description="Fewest replicas.")
    max_replicas: int = Field(ge=1, le=10_000, description="Most replicas.")
    trainer_wait_target: Decimal = Field(
        default=Decimal("0.1"), description="Share of time that the trainer may wait, 0 to 1."
    )
    scale_down_stabilization_seconds: int = Field(
        default=600, ge=0, le=3600, description="Seconds of low load before replicas go."
    )
    provider: Literal["HPA", "KEDA"] = Field(default="HPA", description="Who scales.")

    @rule(
        CelRule(
            field="minReplicas",
            rule="self.minReplicas <= self.maxReplicas",
            message="minReplicas must be at most maxReplicas",
        ),
    )
    def bounds_are_in_order(self) -> Iterator[Problem]:
        if self.min_replicas > self.max_replicas:
            yield "minReplicas", self.min_replicas, f"it is above maxReplicas {self.max_replicas}"
        if not 0 <= self.trainer_wait_target <= 1:
            yield "trainerWaitTarget", self.trainer_wait_target, NO_SHARE


class GatewaySpec(Section):
    """A rollout's port for agents outside. Its key is no field, but RLJOB_GATEWAY_KEY of the rollout's environment."""

    port: int = Field(
        default=50_055,
        ge=50_055,
        le=65_000,
        description="Port of a rollout; on one machine of the first, the others have the next ones.",
    )
    max_sessions: int = Field(
        default=1024, ge=1, le=65_536, description="Tasks of one rollout that agents may hold at once."
    )
    idle_seconds: int = Field(
        default=600, ge=1, le=86_400, description="Longest silence of an agent; then its task is offered again."
    )
    session_seconds: int = Field(
        default=3600, ge=1, le=604_800, description="Longest time from task to reward; then it is offered again."
    )

    @rule(
        CelRule(
            field="sessionSeconds",
            rule="self.idleSeconds <= self.sessionSeconds",
            message="sessionSeconds must be at least idleSeconds",
        ),
    )
    def silence_ends_first(self) -> Iterator[Problem]:
        if self.session_seconds < self.idle_seconds:
            yield "sessionSeconds", self.session_seconds, f"it is below idleSeconds {self.idle_seconds}"


class RolloutSpec(Section):
    """Rollout replicas."""

    replicas: int = Field(default=1, ge=1, le=10_000, description="Number of rollout replicas; the scale subresource.")
    autoscaling: AutoscalingSpec | None = Field(default=None, description="Automatic scaling; off if unset.")
    engine: EngineSpec = Field(default=EngineSpec(), description="vLLM engine arguments.")
    sampling: TrainingSamplingSpec = Field(
        default=TrainingSamplingSpec(), description="How training answers are sampled."
    )
    drain_seconds: int = Field(
        default=120, ge=0, le=86_400, description="Seconds to finish or hand back leases before a pod goes."
    )
    gateway: GatewaySpec | None = Field(
        default=None,
        description="Port for agents outside; needed exactly when workflow.type is external.",
    )
    pod: PodSpec = Field(default=PodSpec(), description="Pod settings.")

    @property
    def gateway_key(self) -> KeyRefSpec | None:
        """The key of a Secret that the gateway's is from, None where the pods' variables name none."""
        source = next((each.value_from for each in self.pod.env if each.name == KEY_VARIABLE), None)
        return None if source is None else source.secret_key_ref

    @property
    def most_replicas(self) -> int:
        """How many there may be at once."""
        return max(self.replicas, self.autoscaling.max_replicas if self.autoscaling else 0)

    @property
    def trainer_wait_target(self) -> float:
        """Share of time that the trainer may wait; the signal is served whether anything scales by it or not."""
        scaled = self.autoscaling or AutoscalingSpec.model_validate({"maxReplicas": 1})
        return scaled.trainer_wait_target

    @rule()
    def gpus_hold_the_engine(self) -> Iterator[Problem]:
        because = f"engine.tensorParallelSize {self.engine.tensor_parallel_size}"
        if self.engine.num_gpus != self.engine.tensor_parallel_size:
            because += f" with engine.extraArgs.{PIPELINE_KEY} {self.engine.extra_args[PIPELINE_KEY]}"
        yield from gpu_problems(self.pod, needed=self.engine.num_gpus, because=because)


class AgentEgressSpec(Section):
    """Addresses that agents may reach besides the job's gateway and DNS."""

    cidr: Annotated[str, Field(min_length=3, max_length=64)] = Field(
        description="A block of addresses, such as 0.0.0.0/0; those of its link-local networks stay closed."
    )
    ports: tuple[Port, ...] = Field(
        default=(443,), min_length=1, max_length=16, json_schema_extra=SET, description="TCP ports."
    )

    @rule()
    def block_is_one(self) -> Iterator[Problem]:
        try:
            block = ipaddress.ip_network(self.cidr)
        except ValueError as error:
            yield "cidr", self.cidr, f"it must be a block of addresses: {error}"
            return
        for local in map(ipaddress.ip_network, LINK_LOCAL):
            if lies_in(block, local):
                yield "cidr", self.cidr, f"it is in {local}, where nodes and clouds hand out credentials"


class AgentsSpec(Section):
    """Agents that the job starts, ends and counts. Their image is of any language: it has nothing of ours."""

    command: tuple[Word, ...] = Field(
        default=(), max_length=64, description="The program. Unset: the image's own; on one machine it must be set."
    )
    args: tuple[Word, ...] = Field(default=(), max_length=64, description="Its arguments.")
    replicas: int = Field(default=1, ge=1, le=10_000, description="Number of pods, or of processes on one machine.")
    egress: tuple[AgentEgressSpec, ...] = Field(
        default=(), max_length=16, description="What they may reach besides the gateway and DNS; nothing if empty."
    )
    pod: PodSpec = Field(
        default=PodSpec(),
        description="Pod settings; the image has no default. On one machine env alone is read; valueFrom means that"
        " of rljob run.",
    )

    @rule()
    def prefix_has_a_command(self) -> Iterator[Problem]:
        if self.pod.command_prefix and not self.command:
            because = "it is put before command, which is not set: name the image's program there"
            yield "pod.commandPrefix", list(self.pod.command_prefix), because
