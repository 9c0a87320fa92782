"""The RLJob resource: metadata, spec and status in one frozen model; defaults and rules across sections."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rljob_api import suites
from rljob_api.manifest.algorithm import AlgorithmSpec
from rljob_api.manifest.base import (
    FORBIDDEN,
    INT32,
    JOB_NAME_PATTERN,
    CelRule,
    Decimal,
    Problem,
    Section,
    filled,
    no_effect,
    rule,
    with_parts,
)
from rljob_api.manifest.data import DataSpec, EvaluationSpec, SftSpec
from rljob_api.manifest.lifecycle import (
    CleanupPolicySpec,
    FailurePolicySpec,
    ObservabilitySpec,
    ResumeFromSpec,
    SecuritySpec,
)
from rljob_api.manifest.model import JudgeSpec, ModelSpec, TeacherSpec
from rljob_api.manifest.pod import PodSpec
from rljob_api.manifest.reward_options import JUDGE, SecretKey
from rljob_api.manifest.rollout import (
    EXTERNAL,
    SHELL,
    SINGLE_TURN_WORKFLOWS,
    TEMPLATE_STOPS,
    TOOL_USE,
    AgentsSpec,
    AsyncSpec,
    RolloutSpec,
    SamplingSpec,
    WorkflowSpec,
)
from rljob_api.manifest.runtime import RuntimeRefSpec
from rljob_api.manifest.status import JobStatus
from rljob_api.manifest.storage import StorageSpec
from rljob_api.manifest.trainer import CheckpointSpec, TrainerSpec, WeightSyncSpec
from rljob_api.manifest.verifier import EnvironmentSpec, VerifierSpec

MAX_JOB_NAME = 40
OUR_OPERATOR = "rljob.dev/operator"
STARVATION_STEPS = 10
CACHE_BLOCK_TOKENS = 16


# What a running job takes over by itself, and all that is below; its pods stay. Anything else changes before it begins,
# while it is suspended or has failed, or never.
LIVE = (
    "suspend",
    "retry",
    "maxSteps",
    "activeDeadlineSeconds",
    "schedulingDeadlineSeconds",
    "startupDeadlineSeconds",
    "ttlSecondsAfterFinished",
    "cleanupPolicy",
    "failurePolicy",
    "rollout.replicas",
    "rollout.autoscaling",
    "verifier.replicas",
    "async.maxOffPolicySteps",
    "evaluation.everySteps",
    "observability.logLevel",
)


class CoordinatorSpec(Section):
    """The coordinator; it has nothing but pod settings."""

    pod: PodSpec = Field(default=PodSpec(), description="Pod settings.")

    @rule()
    def nothing_is_computed_here(self) -> Iterator[Problem]:
        """A coordinator would keep GPUs idle."""
        if self.pod.gpus:
            name = next(iter(self.pod.gpus))
            yield f"pod.resources.limits.{name}", self.pod.gpus[name], no_effect("a coordinator computes on no GPU")


class JobSpec(Section):
    """Desired state."""

    suspend: bool = Field(default=False, description="Checkpoint, then free every pod; resuming continues from there.")
    retry: int = Field(
        default=0,
        ge=0,
        le=INT32,
        description="Raise it to continue a run that failed in a cluster from its last checkpoint: one retry for each"
        " new value. No effect on other runs.",
    )
    managed_by: Annotated[str, Field(min_length=1, max_length=63)] = Field(
        default=OUR_OPERATOR,
        description="Controller that acts on the job; immutable. Any other value: ours leaves it alone.",
    )
    runtime_ref: RuntimeRefSpec | None = Field(
        default=None,
        description="The platform's runtime: values that the job leaves out, values that it may not change, and pod"
        " templates. Unset: the installation's default one, if any.",
    )
    max_steps: int = Field(ge=1, le=INT32, description="Trainer steps, that is optimizer publishes.")
    seed: int = Field(default=0, ge=0, le=INT32, description="Seed of prompt order, sampling and dropout.")
    resume_from: ResumeFromSpec | None = Field(default=None, description="Fork from another run's checkpoint.")
    active_deadline_seconds: int | None = Field(
        default=None, ge=1, le=INT32, description="Seconds from the first pod of a segment until it must end."
    )
    scheduling_deadline_seconds: int | None = Field(
        default=None, ge=1, le=INT32, description="Seconds that pods may wait for nodes, before the first step. No end."
    )
    startup_deadline_seconds: int = Field(
        default=1800, ge=1, le=604_800, description="Seconds until the first step, once all pods have a node."
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None, ge=0, le=INT32, description="Seconds after the end until the job and its children go."
    )
    cleanup_policy: CleanupPolicySpec = Field(
        default=CleanupPolicySpec(), description="What happens to pods at the end."
    )
    device: Literal["cpu", "cuda"] | None = Field(
        default=None,
        description="What rollouts and trainer compute on. Unset: cuda where one of their pods asks for GPUs, else"
        " what the worker's image, or the machine, is for.",
    )
    model: ModelSpec = Field(description="Which model is trained.")
    data: DataSpec = Field(description="Training prompts.")
    sft: SftSpec | None = Field(default=None, description="Supervised steps before RL; none if unset.")
    teacher: TeacherSpec | None = Field(
        default=None,
        description="On-policy distillation: a better model scores what the policy samples; none if unset.",
    )
    workflow: WorkflowSpec = Field(default=WorkflowSpec(), description="What happens inside one episode.")
    algorithm: AlgorithmSpec = Field(default=AlgorithmSpec(), description="From rewards to a batch.")
    async_: AsyncSpec = Field(default=AsyncSpec(), alias="async", description="How far generation may run ahead.")
    coordinator: CoordinatorSpec = Field(default=CoordinatorSpec(), description="The coordinator.")
    rollout: RolloutSpec = Field(default=RolloutSpec(), description="Rollout replicas.")
    verifier: VerifierSpec = Field(description="Graders and their isolation.")
    agents: AgentsSpec | None = Field(
        default=None, description="Agents that the job starts, for workflow.type external; unset: they are yours."
    )
    environment: EnvironmentSpec | None = Field(
        default=None, description="Places for the shell of workflow.type tool_use; none if unset."
    )
    judge: JudgeSpec | None = Field(
        default=None, description="A language model of the job's own for rewards of type judge."
    )
    trainer: TrainerSpec = Field(default=TrainerSpec(), description="The trainer.")
    weight_sync: WeightSyncSpec = Field(default=WeightSyncSpec(), description="How new weights reach the rollouts.")
    checkpoint: CheckpointSpec = Field(default=CheckpointSpec(), description="What survives a restart.")
    storage: StorageSpec = Field(default=StorageSpec(), description="Where state lives in a cluster.")
    evaluation: EvaluationSpec = Field(default=EvaluationSpec(), description="When and on what the policy is scored.")
    failure_policy: FailurePolicySpec = Field(
        default=FailurePolicySpec(), description="How much failure a run survives."
    )
    security: SecuritySpec = Field(default=SecuritySpec(), description="Connections between roles.")
    observability: ObservabilitySpec = Field(default=ObservabilitySpec(), description="What a run shows of itself.")

    @model_validator(mode="after")
    def _fill_in(self) -> "JobSpec":
        """Give unwritten fields the defaults that depend on other sections; the engine's depend on all the others."""
        algorithm, workflow, sampling = self.algorithm, self.workflow, self.rollout.sampling
        lower, upper = workflow.success_rate_bounds
        rewards = filled(algorithm.rewards, clip=None) if workflow.shapes_rewards_itself else algorithm.rewards
        loss = filled(algorithm.loss, constant_denominator=Decimal(str(sampling.max_tokens))).centred(
            samples_may_be_old=self.async_.max_off_policy_steps > 0, updates_per_step=algorithm.updates_per_step
        )
        groups = filled(
            self.data.filter_groups,
            enabled=algorithm.group_size > 1 and self.teacher is None,
            lower=None if lower is None else Decimal(lower),
            upper=None if upper is None else Decimal(upper),
            max_extra_groups=STARVATION_STEPS * algorithm.prompts_per_step,
        )
        own = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos")
        evaluated = filled(self.evaluation.sampling, **{name: getattr(sampling, name) for name in own})
        if self.sft is not None:
            rate = self.trainer.optimizer.learning_rate
            self.__dict__["sft"] = filled(self.sft, examples_per_step=algorithm.rows_per_step, learning_rate=rate)
        self.__dict__.update(
            algorithm=with_parts(algorithm, rewards=rewards, loss=loss),
            data=with_parts(self.data, filter_groups=groups),
            evaluation=with_parts(self.evaluation, sampling=evaluated),
            async_=filled(self.async_, max_inflight_groups=self.most_inflight_groups),
        )
        if (claim := self.storage.checkpoints) is not None and claim.uri is None:
            many = self.trainer.nodes > 1 or self.weight_sync.transport == "file"
            claim = filled(claim, access_mode="ReadWriteMany" if many else "ReadWriteOnce")
            self.__dict__["storage"] = with_parts(self.storage, checkpoints=claim)
        blocks = -(-self.longest_request // CACHE_BLOCK_TOKENS)
        engine = filled(self.rollout.engine, max_model_len=blocks * CACHE_BLOCK_TOKENS, dtype=self.model.dtype)
        self.__dict__["rollout"] = with_parts(self.rollout, engine=engine)
        return self

    @property
    def most_inflight_groups(self) -> int:
        """(maxOffPolicySteps + 1) x promptsPerStep, beyond which no group could be trained in time."""
        return (self.async_.max_off_policy_steps + 1) * self.algorithm.prompts_per_step

    @property
    def rollouts_serve_weights(self) -> bool:
        """Whether rollouts serve weights to one another: several, over connections."""
        return self.rollout.most_replicas > 1 and self.weight_sync.transport != "file"

    @property
    def trainer_broadcasts_weights(self) -> bool:
        """Whether the trainer sends weights to rollouts itself, by collectives, which choose their ports."""
        return self.weight_sync.transport == "gloo"

    @property
    def longest_prompt(self) -> int:
        """Longest training prompt, tokens."""
        return max(source.max_prompt_tokens for source in self.data.train)

    @property
    def longest_row(self) -> int:
        """Longest prompt + answer of training, tokens."""
        return self.longest_prompt + self.rollout.sampling.max_tokens

    @property
    def longest_request(self) -> int:
        """Longest prompt + answers of training and evaluation, tokens."""
        evaluated = self.evaluation.sampling.max_tokens
        suites_ = (suite.max_prompt_tokens + evaluated for suite in self.evaluation.suites)
        answer = max(self.rollout.sampling.max_tokens, evaluated)
        return max(self.longest_row, *suites_, 0) + self.workflow.later_turns(max_answer_tokens=answer)

    def is_taught(self, step: int) -> bool:
        """Return whether the teacher scores a step, counted from the first one of RL as 1."""
        return self.teacher is not None and (self.teacher.steps is None or step <= self.teacher.steps)

    @property
    def wanted_device(self) -> Literal["cpu", "cuda"] | None:
        """What the manifest says that rollouts and trainer compute on; None where any will do."""
        return self.device or ("cuda" if any(pod.asks_for_gpus for pod in self._computing.values()) else None)

    @property
    def _computing(self) -> Mapping[str, PodSpec]:
        """The pods that compute on a device, by the path of their settings."""
        judge = {} if self.judge is None else {"judge": self.judge.pod}
        return {"rollout.pod": self.rollout.pod, "trainer.pod": self.trainer.pod, **judge}

    @rule()
    def processors_need_no_gpus(self) -> Iterator[Problem]:
        """GPUs on a job for processors would idle, and be paid for."""
        if self.device != "cpu":
            return
        for path, pod in self._computing.items():
            if pod.asks_for_gpus:
                resource = f"resources.limits.{next(iter(pod.gpus))}" if pod.gpus else "resourceClaims"
                yield "device", "cpu", f"{path}.{resource} asks for GPUs: leave those out, or use cuda"

    @rule(
        CelRule(
            field="algorithm.promptsPerStep",
            rule="self.algorithm.promptsPerStep * self.algorithm.groupSize"
            " % (self.trainer.nodes * self.trainer.processesPerNode) == 0",
            message="promptsPerStep x groupSize must be divisible by trainer.nodes x processesPerNode",
            values="'promptsPerStep x groupSize = %d cannot be divided among %d trainer processes; change one of them'"
            ".format([self.algorithm.promptsPerStep * self.algorithm.groupSize,"
            " self.trainer.nodes * self.trainer.processesPerNode])",
        ),
    )
    def rows_divide_among_ranks(self) -> Iterator[Problem]:
        algorithm, trainer = self.algorithm, self.trainer
        if algorithm.rows_per_step % trainer.world_size:
            because = (
                f"promptsPerStep x groupSize = {algorithm.rows_per_step} cannot be divided among {trainer.world_size}"
                f" trainer processes; change one of promptsPerStep, groupSize {algorithm.group_size},"
                f" spec.trainer.nodes {trainer.nodes} and processesPerNode {trainer.processes_per_node}"
            )
            yield "algorithm.promptsPerStep", algorithm.prompts_per_step, because

    @rule(
        CelRule(
            field="sft",
            rule="!has(self.sft) || self.data.train.exists(s, has(s.phase) && s.phase == 'SFT')",
            message="no source of data.train has phase SFT: give the source of the examples that phase",
        ),
    )
    def examples_are_learned(self) -> Iterator[Problem]:
        """Examples and the steps that learn them come together, and prompts come after them."""
        examples = self.data.example_sources
        if self.sft is None and examples:
            because = "no step would learn its examples: write sft with steps or epochs, or use RL"
            yield f"data.train[{self.data.train.index(examples[0])}].phase", "SFT", because
        if self.sft is not None and not examples:
            yield "sft", None, "no source of data.train has phase SFT: give the source of the examples that phase"
        if not self.data.prompt_sources:
            yield "data.train[0].phase", "SFT", "no source has prompts for the steps of RL: add one of phase RL"
        if self.sft is not None and (self.sft.steps or 0) > self.max_steps:
            because = f"maxSteps {self.max_steps} counts them too: raise it to these and the steps of RL"
            yield "sft.steps", self.sft.steps, because

    @rule(
        CelRule(
            field="rollout.engine.maxModelLen",
            rule="!has(self.rollout.engine.maxModelLen) || self.data.train.all(s,"
            " s.maxPromptTokens + self.rollout.sampling.maxTokens <= self.rollout.engine.maxModelLen)",
            message="maxPromptTokens + rollout.sampling.maxTokens must fit maxModelLen: raise it, or lower one of them",
        ),
    )
    def requests_fit_the_engine(self) -> Iterator[Problem]:
        length = self.rollout.engine.max_model_len
        if self.longest_row > length:
            because = (
                f"data.train maxPromptTokens {self.longest_prompt} + rollout.sampling.maxTokens"
                f" {self.rollout.sampling.max_tokens} = {self.longest_row} tokens must fit: raise maxModelLen, or lower"
                " one of them"
            )
            yield "rollout.engine.maxModelLen", length, because
        answer = self.evaluation.sampling.max_tokens
        for index, suite in enumerate(self.evaluation.suites):
            if suite.max_prompt_tokens + answer > length:
                because = f"with {answer} answer tokens it does not fit rollout.engine.maxModelLen {length}"
                yield f"evaluation.suites[{index}].maxPromptTokens", suite.max_prompt_tokens, because

    @rule(
        CelRule(
            field="trainer.maxTokensPerMicroBatch",
            rule="self.data.train.all(s, s.maxPromptTokens + self.rollout.sampling.maxTokens"
            " <= self.trainer.maxTokensPerMicroBatch)",
            message="maxTokensPerMicroBatch must hold the longest row, maxPromptTokens + rollout.sampling.maxTokens",
        ),
    )
    def rows_fit_a_micro_batch(self) -> Iterator[Problem]:
        budget = self.trainer.max_tokens_per_micro_batch
        if budget < self.longest_row:
            because = (
                f"the longest row has maxPromptTokens {self.longest_prompt} + maxTokens"
                f" {self.rollout.sampling.max_tokens} = {self.longest_row} tokens and would fit nowhere"
            )
            yield "trainer.maxTokensPerMicroBatch", budget, because

    @rule(
        CelRule(
            field="weightSync.everySteps",
            rule="self.weightSync.everySteps <= self.async.maxOffPolicySteps + 1",
            message="everySteps must be at most async.maxOffPolicySteps + 1, or the bound cannot be met",
        ),
        CelRule(
            field="weightSync.everySteps",
            rule="!has(self.async.onStale) || self.async.onStale != 'Wait' || self.weightSync.everySteps == 1",
            message="async.onStale Wait needs a version every step: use 1",
        ),
    )
    def versions_come_often_enough(self) -> Iterator[Problem]:
        """The bound on age can be met."""
        every, bound = self.weight_sync.every_steps, self.async_.max_off_policy_steps
        if every > bound + 1:
            because = f"maxOffPolicySteps is {bound}, which needs a version every {bound + 1} steps or more often"
            yield "weightSync.everySteps", every, because
        if every > 1 and self.async_.on_stale == "Wait":
            yield "weightSync.everySteps", every, "onStale is 'Wait', which needs a version every step: use 1"

    @rule(
        CelRule(
            field="async.maxInflightGroups",
            rule="!has(self.async.maxInflightGroups) || self.async.maxInflightGroups"
            " <= (self.async.maxOffPolicySteps + 1) * self.algorithm.promptsPerStep",
            message="maxInflightGroups must be at most (maxOffPolicySteps + 1) x promptsPerStep",
        ),
    )
    def groups_in_flight_are_trained_in_time(self) -> Iterator[Problem]:
        """More groups in flight than could be trained in time would only be dropped."""
        written, cap = self.async_.max_inflight_groups, self.most_inflight_groups
        if written > cap:
            because = f"(maxOffPolicySteps + 1) x promptsPerStep = {cap} is the cap"
            yield "async.maxInflightGroups", written, because

    @rule(
        CelRule(
            field="data.filterGroups.enabled",
            reason=FORBIDDEN,
            rule="self.algorithm.groupSize > 1 || !has(self.data.filterGroups.enabled)"
            " || !self.data.filterGroups.enabled",
            message="a group of one has no spread and would always be rejected: use false, or a larger groupSize",
        ),
    )
    def filtered_groups_have_a_spread(self) -> Iterator[Problem]:
        """A group of one has no spread."""
        if self.algorithm.group_size == 1 and self.data.filter_groups.enabled:
            because = "groupSize is 1: a group of one has no spread and all are rejected"
            yield "data.filterGroups.enabled", True, because

    @rule(
        CelRule(
            field="model.reference",
            rule="double(self.algorithm.loss.klCoef) > 0.0 || !has(self.model.reference)",
            message="a reference model is read only where algorithm.loss.klCoef is above 0",
        ),
    )
    def reference_model_is_compared_with(self) -> Iterator[Problem]:
        coefficient, reference = self.algorithm.loss.kl_coef, self.model.reference
        if coefficient > 0 and reference is None and self.model.lora is None:
            because = "spec.model.reference is not set: name the model to compare with, or use 0"
            yield "algorithm.loss.klCoef", coefficient, because
        if coefficient <= 0 and reference is not None:
            because = no_effect("spec.algorithm.loss.klCoef is 0, so no KL term would read it")
            yield "model.reference", reference.name, because

    @rule(
        CelRule(
            field="teacher.steps",
            rule="!has(self.teacher) || !has(self.teacher.steps) || self.teacher.steps <= self.maxSteps",
            message="teacher.steps must be at most maxSteps",
        ),
    )
    def teacher_agrees_with_the_rest(self) -> Iterator[Problem]:
        """Nothing is made of rewards that no step learns from."""
        teacher, loss = self.teacher, self.algorithm.loss
        if teacher is None:
            return
        if teacher.ignores_rewards and self.algorithm.critic is not None:
            because = "algorithm.critic would learn rewards that nothing reads: use true, or an estimator without one"
            yield "teacher.taskReward", False, because
        if teacher.ignores_rewards and loss.kl_in_reward:
            because = "algorithm.loss.klPlacement is 'Reward', and nothing reads rewards: use true, or klPlacement Loss"
            yield "teacher.taskReward", False, because
        if teacher.steps is not None and teacher.steps > self.max_steps:
            yield "teacher.steps", teacher.steps, f"maxSteps {self.max_steps} counts them too: raise it, or lower these"
        reject = loss.rollout_correction.reject if loss.rollout_correction else None
        if loss.normalizes_weights and reject is not None and reject.advantages == "Negative":
            because = (
                "rolloutCorrection.batchNormalize takes the mean weight before advantages have the teacher's part,"
                " for which reject.advantages Negative asks: leave one of them out"
            )
            yield "teacher.model", teacher.model, because

    @rule(
        CelRule(
            field="algorithm.critic",
            reason=FORBIDDEN,
            rule="!has(self.model.lora) || !has(self.algorithm.critic)",
            message="a critic trains all of its weights, which model.lora is to avoid: use an estimator without one",
        ),
    )
    def adapters_have_no_critic(self) -> Iterator[Problem]:
        critic = self.algorithm.critic
        if self.model.lora is not None and critic is not None:
            because = (
                "spec.model.lora is set, and a critic would still train a whole model: leave one of them out, or use an"
                " advantageEstimator without a critic"
            )
            yield "algorithm.critic", critic.model_dump(mode="json", by_alias=True, exclude_unset=True), because

    @rule(
        CelRule(
            field="trainer.optimizer.type",
            reason=FORBIDDEN,
            rule="self.trainer.optimizer.type != 'Muon' || (!has(self.model.lora) && !has(self.algorithm.critic))",
            message="Muon trains all weights of a policy without critic: use AdamW",
        ),
    )
    def muon_trains_whole_matrices(self) -> Iterator[Problem]:
        """An adapter's matrices are factors of an update, and a critic has one learning rate."""
        if self.trainer.optimizer.type != "Muon":
            return
        if self.model.lora is not None:
            yield "trainer.optimizer.type", "Muon", "spec.model.lora is set: use AdamW for an adapter"
        if self.algorithm.critic is not None:
            yield "trainer.optimizer.type", "Muon", "spec.algorithm.critic is set: use AdamW"

    @rule(
        CelRule(
            field="rollout.sampling.maxTokens",
            rule="!has(self.algorithm.rewards.overlong) || self.rollout.sampling.maxTokens"
            " > self.algorithm.rewards.overlong.maxTokens - self.algorithm.rewards.overlong.tailTokens",
            message="the overlong penalty would never act: lower algorithm.rewards.overlong.maxTokens",
        ),
    )
    def overlong_penalty_acts(self) -> Iterator[Problem]:
        overlong, longest = self.algorithm.rewards.overlong, self.rollout.sampling.max_tokens
        if overlong is None:
            return
        start = overlong.max_tokens - overlong.tail_tokens
        if start >= 0 and longest <= start:
            because = (
                f"the overlong penalty begins only above {start} tokens and would never act:"
                " lower algorithm.rewards.overlong.maxTokens"
            )
            yield "rollout.sampling.maxTokens", longest, because

    @rule(
        CelRule(
            field="algorithm.gae.unit",
            reason=FORBIDDEN,
            rule="!has(self.algorithm.gae.unit) || self.algorithm.gae.unit != 'Turn'"
            " || !(self.workflow.type in ['rlvr', 'math_code_single_step'])",
            message="this workflow has no turns: use Token",
        ),
    )
    def time_is_counted_in_what_there_is(self) -> Iterator[Problem]:
        if self.algorithm.gae.unit == "Turn" and self.workflow.type in SINGLE_TURN_WORKFLOWS:
            yield "algorithm.gae.unit", "Turn", f"workflow.type {self.workflow.type} has no turns: use Token"

    @rule(
        CelRule(
            field="rollout.gateway",
            rule="(self.workflow.type == 'external') == has(self.rollout.gateway)",
            message="rollout.gateway is needed exactly when workflow.type is external",
        ),
    )
    def agents_outside_have_a_gateway(self) -> Iterator[Problem]:
        if self.workflow.type == EXTERNAL and self.rollout.gateway is None:
            yield "rollout.gateway", None, "agents take the tasks of workflow.type external there: write gateway: {}"
        if self.workflow.type != EXTERNAL and self.rollout.gateway is not None:
            because = no_effect(f"no agent takes tasks with workflow.type {self.workflow.type}: use external")
            yield "rollout.gateway", self.rollout.gateway, because

    @rule(
        CelRule(
            field="agents",
            reason=FORBIDDEN,
            rule="!has(self.agents) || self.workflow.type == 'external'",
            message="agents take tasks with workflow.type external alone",
        ),
    )
    def agents_have_tasks(self) -> Iterator[Problem]:
        if self.agents is not None and self.workflow.type != EXTERNAL:
            because = f"workflow.type {self.workflow.type} gives them no task: use external"
            yield "agents.replicas", self.agents.replicas, because

    @rule(
        CelRule(
            field="environment",
            reason=FORBIDDEN,
            # It sees into neither workflow.config nor a class: that the shell is among the tools is checked below
            # alone, and that a class takes places where it is loaded.
            rule="!has(self.environment) || self.workflow.type == 'tool_use' || self.workflow.type.contains(':')",
            message="environment is for workflow.type tool_use or a class of your own",
        ),
    )
    def shells_have_an_environment(self) -> Iterator[Problem]:
        workflow = self.workflow
        if workflow.has_shell and self.environment is None:
            because = f"commands of the tool {SHELL} in workflow.config.tools run there: write environment: {{}}"
            yield "environment", None, because
        if not (workflow.has_shell or workflow.is_own) and self.environment is not None:
            is_other = workflow.type != TOOL_USE
            why = f"workflow.type is {workflow.type}" if is_other else f"workflow.config.tools has no {SHELL}"
            yield "environment.replicas", self.environment.replicas, no_effect(f"no command runs, since {why}")

    @rule()
    def pictures_are_read(self) -> Iterator[Problem]:
        """What is tested with pictures; what they would change elsewhere is refused instead of tried."""
        if not self.data.has_pictures:
            for index, suite in enumerate(self.evaluation.suites):
                if suite.columns.images is not None:
                    because = "no source of data.train has pictures: the model is trained without any"
                    yield f"evaluation.suites[{index}].columns.images", suite.columns.images, because
            return
        because = "records have pictures (columns.images)"
        engine, trainer = self.rollout.engine, self.trainer
        if self.workflow.type != "rlvr":
            yield "workflow.type", self.workflow.type, f"{because}, which only rlvr shows: use rlvr"
        if self.data.template != "chat":
            yield (
                "data.template",
                self.data.template,
                f"{because}, for which only the model's own has a place: use chat",
            )
        for index, suite in enumerate(self.evaluation.suites):
            if suite.template not in (None, "chat"):
                yield f"evaluation.suites[{index}].template", suite.template, f"{because}: use chat"
        for index, source in enumerate(self.data.train):
            if source.phase == "SFT":
                yield f"data.train[{index}].phase", "SFT", f"{because}, and no supervised step is made with them"
        if engine.type != "vllm":
            yield "rollout.engine.type", engine.type, f"{because}, which only vllm is given: use vllm"
        if engine.tensor_parallel_size > 1:
            yield "rollout.engine.tensorParallelSize", engine.tensor_parallel_size, f"{because}: use 1"
        if trainer.deepspeed.zero_stage == 3:
            yield "trainer.deepspeed.zeroStage", 3, f"{because}, whose tower is not divided among ranks: use 0, 1 or 2"
        if trainer.optimizer.type == "Muon":
            yield "trainer.optimizer.type", "Muon", f"{because}: use AdamW"
        if self.model.lora is not None:
            yield "model.lora.rank", self.model.lora.rank, f"{because}: leave lora out, and all of the text is trained"
        if self.algorithm.critic is not None:
            because_critic = f"{because}, which a critic does not see: use an advantageEstimator without one"
            yield "algorithm.advantageEstimator", self.algorithm.advantage_estimator, because_critic
        if self.teacher is not None:
            yield "teacher.model", self.teacher.model, f"{because}, and no teacher was tried with them: leave it out"

    @rule()
    def rewards_are_shaped_once(self) -> Iterator[Problem]:
        """A workflow that shapes rewards itself leaves the pipeline's shaping at the identity."""
        if not self.workflow.shapes_rewards_itself:
            return
        rewards = self.algorithm.rewards
        option = "layout is 'legacy'" if self.workflow.is_legacy_multi_turn else "shaping is 'signed'"
        because = no_effect(f"workflow.config.{option}, which shapes rewards itself (rewardScale, rewardBias)")
        if rewards.scale != 1.0:
            yield "algorithm.rewards.scale", rewards.scale, because
        if rewards.bias != 0.0:
            yield "algorithm.rewards.bias", rewards.bias, because
        for key, value in (("clip", rewards.clip), ("overlong", rewards.overlong)):
            if value is not None:
                yield f"algorithm.rewards.{key}", value, because

    @rule()
    def bounds_are_written_once(self) -> Iterator[Problem]:
        """A bound on a group's mean success stands in one place."""
        groups = self.data.filter_groups
        for end, bound in zip(("Lower", "Upper"), self.workflow.success_rate_bounds, strict=True):
            if bound is not None and groups.is_written(end.lower()):
                other = getattr(groups, end.lower())
                because = f"data.filterGroups.{end.lower()} is '{other}', which bounds the same mean: write one of them"
                yield f"workflow.config.successRate{end}Bound", bound, because

    @rule(
        CelRule(
            field="storage.checkpoints.accessMode",
            rule="self.trainer.nodes == 1 || !has(self.storage.checkpoints)"
            " || !has(self.storage.checkpoints.accessMode) || self.storage.checkpoints.accessMode == 'ReadWriteMany'",
            message="every trainer node writes its part of a checkpoint: use ReadWriteMany, or trainer.nodes 1",
        ),
    )
    def every_trainer_node_reaches_the_checkpoints(self) -> Iterator[Problem]:
        """A checkpoint of which one node wrote its part elsewhere is none."""
        claim, nodes = self.storage.checkpoint_claim, self.trainer.nodes
        if claim is not None and nodes > 1 and claim.access_mode != "ReadWriteMany":
            because = (
                f"trainer.nodes is {nodes}, and the pods of all of them write their parts of a checkpoint: use"
                " ReadWriteMany on a StorageClass that can do that, such as NFS, or trainer.nodes 1"
            )
            yield "storage.checkpoints.accessMode", claim.access_mode, because

    @rule()
    def judges_compare_answers_of_one_group(self) -> Iterator[Problem]:
        """A share of wins is over the answers of a group that are graded together."""
        for path, suite, reward in suites.rewards(self):
            if reward.type != JUDGE or reward.config.get("form") != "pairwise":
                continue
            for because in self._incomparable(suite):
                yield f"{path}.config.form", "pairwise", because

    def _incomparable(self, suite: str) -> Iterator[str]:
        if suite:
            yield "shares of wins average one half whatever the policy, and score nothing: use another form"
            return
        if self.algorithm.group_size < 2:
            yield "algorithm.groupSize is 1: there is no other answer to compare with"
        if self.workflow.type not in SINGLE_TURN_WORKFLOWS:
            yield f"answers of workflow.type {self.workflow.type} are not graded side by side: use another form"
        if bare := [each.name for each in self.evaluation.suites if not each.rewards]:
            yield f"it would grade evaluation suite {bare[0]} too: give that suite rewards of its own"

    @rule()
    def a_judge_is_somewhere(self) -> Iterator[Problem]:
        """A reward asks the model at its URL, or the job's own."""
        nowhere = [path for path, options in suites.judges(self).items() if not options.url]
        if self.judge is None:
            for path in nowhere:
                because = "no model is named: write url and model, or spec.judge for one that the job itself serves"
                yield f"{path}.config.url", "", because
        elif not nowhere:
            because = "no reward asks it: leave url and model out of a reward of type judge, or leave spec.judge out"
            yield "judge.model", self.judge.model, because

    @rule()
    def keys_of_judges_are_apart(self) -> Iterator[Problem]:
        """Each key of a Secret has a variable of its own."""
        keys: dict[str, SecretKey] = {}
        for path, options in suites.judges(self).items():
            key = options.api_key
            if key is not None and keys.setdefault(key.variable, key) != key:
                yield f"{path}.config.apiKey", key.name, f"{key.variable} is the variable of another key: rename one"

    @rule()
    def filter_metric_exists(self) -> Iterator[Problem]:
        """The group filter judges the sum or a reward that exists."""
        metric, names = self.data.filter_groups.metric, [reward.name for reward in self.verifier.rewards]
        if metric != "sum" and metric not in names:
            because = f"it must be sum or the name of a reward: {', '.join(names)}"
            yield "data.filterGroups.metric", metric, because

    @rule()
    def stops_are_read(self) -> Iterator[Problem]:
        """A template with its own stop rule would ignore stops that were written."""
        training = [("data.template", self.data.template)]
        evaluated = [
            (f"evaluation.suites[{index}].template", suite.template) if suite.template else training[0]
            for index, suite in enumerate(self.evaluation.suites)
        ]
        yield from _replaced_stops("rollout.sampling", training, self.rollout.sampling)
        yield from _replaced_stops("evaluation.sampling", evaluated or training, self.evaluation.sampling)

    @rule()
    def code_is_named(self) -> Iterator[Problem]:
        """A file is named by the module of the workflow, a template, a reward or the predicate, and by nothing else."""
        code = self.workflow.code
        if code is None:
            return
        stem = posixpath.basename(code.path).removesuffix(".py")
        named = [(field, type_) for field, type_ in suites.custom_types(self) if ":" in type_]
        if stem in [type_.partition(":")[0] for _, type_ in named]:
            return
        if named:
            field, type_ = named[0]
            yield "workflow.code.path", code.path, f"{field} {type_} wants a file {type_.partition(':')[0]}.py"
        else:
            because = f"workflow.type {self.workflow.type} is in no file of yours: name {stem}:<class>"
            yield "workflow.code.path", code.path, because


def _replaced_stops(path: str, templates: Sequence[tuple[str, str]], sampling: SamplingSpec) -> Iterator[Problem]:
    """Refuse stops that every one of these templates ignores."""
    if any(template not in TEMPLATE_STOPS for _, template in templates):
        return
    place, template = templates[0]
    for key, name in (("stop", "stop"), ("stopTokenIds", "stop_token_ids")):
        value = getattr(sampling, name)
        if value and sampling.is_written(name):
            because = no_effect(f"{place} is '{template}', {TEMPLATE_STOPS[template]}")
            yield f"{path}.{key}", list(value), because


class Metadata(BaseModel):
    """The part of ObjectMeta that we read; the API server's other keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=MAX_JOB_NAME, pattern=JOB_NAME_PATTERN)] = Field(
        description="Name of the job: at most 40 characters, so that pod names with a revision hash fit a label."
    )
    namespace: Annotated[str, Field(max_length=63)] = Field(default="default", description="Namespace.")
    uid: Annotated[str, Field(max_length=64)] = Field(default="", description="Set by the API server.")
    generation: int = Field(default=1, description="Set by the API server: number of the spec's last change.")
    labels: dict[str, str] = Field(default={}, description="Labels.")
    annotations: dict[str, str] = Field(default={}, description="Annotations.")


class RLJob(Section):
    """One RL run."""

    api_version: Literal["rljob.dev/v1alpha1"] = Field(description="Version of this schema.")
    kind: Literal["RLJob"] = Field(description="Kind of the object.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: JobSpec = Field(description="Desired state.")
    status: JobStatus | None = Field(default=None, description="What the operator observed last.")
