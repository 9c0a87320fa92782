"""A manifest and a placement to one config per process. Pure.

Everything that can be wrong with a manifest as a whole is found here, all of it at once, before any process starts.
"""

import dataclasses
import hashlib
import json
import posixpath
from collections.abc import Sequence
from typing import Any

from rljob_api import enums, errors, grading, process_config, suites
from rljob_api.manifest import base
from rljob_api.manifest.data import DataSourceSpec
from rljob_api.manifest.job import JobSpec, RLJob
from rljob_api.manifest.model import BUILTIN
from rljob_api.manifest.reward_options import JUDGE, JudgeOptions, is_function
from rljob_api.manifest.verifier import ExecutionSettings, RewardSpec
from rljob_api.placement import (
    AgentPlacement,
    EnvironmentPlacement,
    Placement,
    ProcessPlacement,
    local_placement,
    num_local_ports,
)
from rljob_api.validation import rules

__all__ = ["Placement", "ResolvedJob", "digest", "local_placement", "num_local_ports", "resolve", "warnings"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedJob:
    """The configs of all processes of a job; the trainer's other nodes differ in node_rank only."""

    coordinator: process_config.CoordinatorConfig
    rollouts: tuple[process_config.RolloutConfig, ...]
    verifiers: tuple[process_config.VerifierConfig, ...]
    trainer: process_config.TrainerConfig
    judge: process_config.JudgeConfig | None = None
    environments: tuple[process_config.EnvironmentConfig, ...] = ()
    agents: tuple[process_config.AgentsConfig, ...] = ()

    @property
    def configs(self) -> tuple[process_config.RoleConfig, ...]:
        """Return the configs of all processes, the coordinator first."""
        return (self.coordinator, *self.graders, *self.environments, *self.rollouts, *self.agents, self.trainer)

    @property
    def graders(self) -> tuple[process_config.VerifierConfig | process_config.JudgeConfig, ...]:
        """Return the configs of the processes that give verdicts."""
        return (*self.verifiers, *([] if self.judge is None else [self.judge]))


def resolve(job: RLJob, placement: Placement) -> ResolvedJob:
    """Return the configs of all processes.

    Raises ManifestError with every problem at once, each naming field, value and remedy.
    """
    problems = rules.problems(job.spec)
    if problems:
        raise errors.ManifestError(*problems)
    return configs(job, placement)


def configs(job: RLJob, placement: Placement) -> ResolvedJob:
    """Return the configs of a manifest without problems."""
    spec = with_absolute_paths(job.spec, placement.base_dir)
    model, code = _model(spec, placement), _user_code(spec, placement)
    graders = tuple(_grader(spec, suite, reward, code) for _, suite, reward in suites.rewards(spec))
    coordinator = process_config.CoordinatorConfig(
        **_process(job, placement, enums.Role.COORDINATOR, placement.coordinator),
        spec=spec,
        bind_host=placement.bind_host,
        control_port=placement.control_port,
        store_port=placement.store_port,
        store_address=placement.store_address,
        state_dir=placement.state_dir,
        weights_dir=placement.weights_dir,
    )
    rollouts = (
        process_config.RolloutConfig(
            **_process(job, placement, enums.Role.ROLLOUT, process),
            spec=spec,
            coordinator_address=placement.control_address,
            verifier_addresses=tuple(verifier.address for verifier in placement.verifiers),
            judge_address="" if placement.judge is None else placement.judge.address,
            environment_addresses=tuple(each.address for each in placement.environments),
            model=model,
            user_code=code,
            kv_cache_bytes=placement.kv_cache_bytes,
            weights_dir=placement.weights_dir,
            device=placement.device,
            dump_dir="" if spec.observability.trajectory_dump == "None" else placement.dump_dir,
            peers=placement.peers[index] if placement.peers else None,
            trainer_name=placement.trainer.certified_name if placement.trainer.broadcasts else "",
            gateway=placement.gateways[index] if placement.gateways else None,
        )
        for index, process in enumerate(placement.rollouts)
    )
    verifiers = (
        process_config.VerifierConfig(
            **_process(job, placement, enums.Role.VERIFIER, verifier.process),
            bind_host=placement.bind_host,
            port=verifier.port,
            num_slots=spec.verifier.max_concurrent or verifier.num_cores,
            rewards=tuple(grader for grader in graders if grader.type != JUDGE),
            execution=base.narrowed(spec.verifier, ExecutionSettings),
            observability=spec.observability,
        )
        for verifier in placement.verifiers
    )
    trainer = process_config.TrainerConfig(
        **_process(job, placement, enums.Role.TRAINER, placement.trainer.process),
        spec=spec,
        coordinator_address=placement.control_address,
        store_address=placement.store_address,
        model=model,
        reference=_reference(spec, placement),
        teacher=None if spec.teacher is None else _files(spec.teacher.model, spec.teacher.revision, spec, placement),
        rendezvous_host=placement.trainer.rendezvous_host,
        rendezvous_port=placement.trainer.rendezvous_port,
        attempt=placement.trainer.attempt,
        checkpoint_dir=placement.checkpoint_dir,
        export_dir=placement.export_dir,
        weights_dir=placement.weights_dir,
        fork_from=_fork_from(spec, placement),
        spec_digests=spec_digests(job.spec),
        broadcasts=placement.trainer.broadcasts,
        device=placement.device,
    )
    return ResolvedJob(
        coordinator=coordinator,
        rollouts=tuple(rollouts),
        verifiers=tuple(verifiers),
        trainer=trainer,
        judge=_judge(job, spec, placement, graders),
        environments=tuple(_environment(job, placement, each) for each in placement.environments),
        agents=tuple(_agents(job, placement, process) for process in placement.agents),
    )


def _judge(
    job: RLJob, spec: JobSpec, placement: Placement, graders: Sequence[process_config.GraderConfig]
) -> process_config.JudgeConfig | None:
    if placement.judge is None:
        return None
    server = _model_server(spec, placement, placement.judge.server_port)
    return process_config.JudgeConfig(
        **_process(job, placement, enums.Role.JUDGE, placement.judge.process),
        bind_host=placement.bind_host,
        port=placement.judge.port,
        rewards=tuple(_with_judge(grader, server) for grader in graders if grader.type == JUDGE),
        server=server,
        observability=job.spec.observability,
    )


def _model_server(spec: JobSpec, placement: Placement, port: int) -> process_config.ModelServerConfig | None:
    judge = spec.judge
    if judge is None:
        return None
    return process_config.ModelServerConfig(
        model=_files(judge.model, judge.revision, spec, placement),
        port=port,
        tensor_parallel_size=judge.tensor_parallel_size,
        max_model_len=judge.max_model_len or 0,
        extra_args=dict(judge.extra_args),
        num_gpus=judge.num_gpus,
        device=placement.device,
    )


def _with_judge(
    grader: process_config.GraderConfig, server: process_config.ModelServerConfig | None
) -> process_config.GraderConfig:
    """Return a reward with the address of who gives it: its own, or that of the job's model."""
    options = JudgeOptions.model_validate(grader.config)
    if options.url or server is None:
        return grader
    # Scores of reward models have routes of their own.
    url = server.url if options.form == "score" else server.api_url
    return grader.model_copy(update={"config": {**grader.config, "url": url, "model": process_config.OWN_JUDGE}})


def _environment(job: RLJob, placement: Placement, each: EnvironmentPlacement) -> process_config.EnvironmentConfig:
    spec = job.spec.environment
    assert spec is not None, "environments are placed where a job has them"
    return process_config.EnvironmentConfig(
        **_process(job, placement, enums.Role.ENVIRONMENT, each.process),
        bind_host=placement.bind_host,
        port=each.port,
        num_places=spec.places,
        lease_s=float(spec.idle_seconds),
        wall_s=float(spec.wall_seconds),
        output_bytes=base.num_bytes(spec.output_limit),
        memory_bytes=base.num_bytes(spec.memory),
        scratch_bytes=base.num_bytes(spec.scratch),
        observability=job.spec.observability,
    )


def _agents(job: RLJob, placement: Placement, agent: AgentPlacement) -> process_config.AgentsConfig:
    spec = job.spec.agents
    assert spec is not None, "agents are placed where a job has them"
    return process_config.AgentsConfig(
        **_process(job, placement, enums.Role.AGENTS, agent.process),
        command=(*spec.pod.command_prefix, *spec.command, *spec.args),
        directory=placement.base_dir,
        gateway_url=agent.gateway_url,
        variables={each.name: each.value or "" for each in spec.pod.env if each.value_from is None},
        own_variables=tuple(each.name for each in spec.pod.env if each.value_from is not None),
        observability=job.spec.observability,
    )


def warnings(job: RLJob) -> list[str]:
    """Return a sentence for every legal but doubtful combination of a job on one machine."""
    return [*rules.warnings(job.spec), *rules.one_machine_warnings(job.spec)]


def _process(job: RLJob, placement: Placement, role: enums.Role, process: ProcessPlacement) -> dict[str, Any]:
    return {
        "job": process_config.JobIdentity(
            name=job.metadata.name,
            namespace=placement.namespace,
            uid=placement.uid,
            config_generation=placement.config_generation,
        ),
        "role": role,
        "health_host": placement.health_host,
        "tls": placement.tls,
        **dataclasses.asdict(process),
    }


def with_absolute_paths(spec: JobSpec, base_dir: str) -> JobSpec:
    """Return the spec with the paths of its data sources below `base_dir`."""

    def placed(source: base.SectionT) -> base.SectionT:
        assert isinstance(source, DataSourceSpec)
        if source.path is None:
            return source
        return base.with_parts(source, path=_below(base_dir, source.path))

    return base.with_parts(
        spec,
        data=base.with_parts(spec.data, train=tuple(map(placed, spec.data.train))),
        evaluation=base.with_parts(spec.evaluation, suites=tuple(map(placed, spec.evaluation.suites))),
    )


def _grader(spec: JobSpec, suite: str, reward: RewardSpec, user_code: str) -> process_config.GraderConfig:
    """Return a reward with its limits: the manifest's, else those of its type."""
    seconds = spec.verifier.timeout_seconds
    listed = [other for _, of_suite, other in suites.rewards(spec) if of_suite == suite]
    return process_config.GraderConfig(
        **{name: getattr(reward, name) for name in RewardSpec.model_fields},
        suite=suite,
        tasks=grading.tasks_of_reward(reward, listed=listed, workflow=spec.workflow.type),
        cpu_limit_s=grading.cpu_s(reward, seconds),
        wall_limit_s=grading.wall_s(reward, seconds),
        memory_bytes=base.num_bytes(spec.verifier.memory),
        output_bytes=base.num_bytes(spec.verifier.output_limit),
        user_code=user_code if is_function(reward.type) else "",
    )


def spec_digests(spec: JobSpec) -> dict[str, str]:
    """Return digests of what decides which rows are trained, and how (docs/design/algorithms.md#s-10).

    data: where records come from and how they are read; a local path may move with its files, so its bytes are the
    coordinator's to compare. Defaults are left out: a field that a later release adds must not end a run.
    """
    data = spec.data
    values: dict[str, object] = {
        "groups": [spec.algorithm.prompts_per_step, spec.algorithm.group_size],
        "data": [[base.written(source, without="path") for source in data.train], data.template, data.shuffle],
        "algorithm": [base.written(spec.algorithm), base.written(data.filter_groups)],
    }
    return {name: digest(value) for name, value in values.items()}


def digest(value: object) -> str:
    """Return a digest of a JSON value, the same in every process."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def _below(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))


def _model(spec: JobSpec, placement: Placement) -> process_config.ModelFiles:
    """Return where the trained model is: the folder of spec.model.source, else what its name says."""
    name, source = spec.model.name, spec.model.source
    path = _named_folder(name, placement.base_dir)
    if source is not None and (source.claim_name is not None or source.path is not None):
        in_claim = source.claim_name is not None and placement.model_dir
        path = _below(placement.model_dir if in_claim else placement.base_dir, source.path or ".")
    return process_config.ModelFiles(
        name=name,
        revision=spec.model.revision or "",
        path=path,
        cache_dir=placement.cache_dir,
        s3=spec.storage.s3,
    )


def _reference(spec: JobSpec, placement: Placement) -> process_config.ModelFiles | None:
    """Return where the model of the KL term is; None without one, and where it is the model without its adapter."""
    reference, model = spec.model.reference, spec.model
    if reference is None or (model.lora and (reference.name, reference.revision) == (model.name, model.revision)):
        return None
    return _files(reference.name, reference.revision, spec, placement)


def _files(name: str, revision: str | None, spec: JobSpec, placement: Placement) -> process_config.ModelFiles:
    """Return where the files of a model that is not trained are."""
    return process_config.ModelFiles(
        name=name,
        revision=revision or "",
        path=_named_folder(name, placement.base_dir),
        cache_dir=placement.cache_dir,
        s3=spec.storage.s3,
    )


def _named_folder(name: str, base_dir: str) -> str:
    """Return a folder as an absolute path, "" for a built-in; anything that does not look like one is a hub id."""
    if name.startswith(BUILTIN):
        return ""
    return _below(base_dir, name) if name.startswith(("/", "./", "../")) else name


def _user_code(spec: JobSpec, placement: Placement) -> str:
    """Return the user's file, "" without one. A ConfigMap's key is the file's name."""
    code = spec.workflow.code
    if code is None:
        return ""
    if code.config_map is not None and placement.code_dir:
        return posixpath.join(placement.code_dir, posixpath.basename(code.path))
    return _below(placement.base_dir, code.path)


def _fork_from(spec: JobSpec, placement: Placement) -> str:
    fork = spec.resume_from
    if fork is None:
        return ""
    if fork.uri is not None:
        return _below(placement.base_dir, fork.uri.removeprefix("file://"))
    return _below(placement.runs_dir, fork.job or "")
