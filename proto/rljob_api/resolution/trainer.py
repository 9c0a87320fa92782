"""The trainer's config."""

import posixpath

from rljob_api import names, roles
from rljob_api.manifest import base
from rljob_api.manifest.job import JobSpec, RLJob
from rljob_api.placement import Placement
from rljob_api.resolution.common import digest, identity, model_config, reference_config


def trainer_config(job: RLJob, placement: Placement) -> roles.TrainerConfig:
    """Return everything that the trainer's first node reads."""
    spec, place, trainer = job.spec, placement.trainer, job.spec.trainer
    return roles.TrainerConfig(
        job=identity(job, placement),
        role=names.Role.TRAINER,
        pod=place.process.pod,
        health_host=placement.health_host,
        health_port=place.process.health_port,
        log_level=spec.observability.log_level,
        tls=placement.tls,
        scratch_dir=place.process.scratch_dir,
        num_threads=place.process.num_threads,
        cpu_affinity=place.process.cpu_affinity,
        coordinator_address=placement.control_address,
        store_address=placement.store_address,
        model=model_config(spec, placement),
        nodes=trainer.nodes,
        processes_per_node=trainer.processes_per_node,
        rendezvous_host=place.rendezvous_host,
        rendezvous_port=place.rendezvous_port,
        attempt=place.attempt,
        max_steps=spec.max_steps,
        seed=spec.seed,
        loss=_loss(spec),
        reference=reference_config(spec, placement),
        returns=_returns(spec),
        critic=_critic(spec),
        minibatches=spec.algorithm.minibatches,
        epochs=spec.algorithm.epochs,
        optimizer=_optimizer(spec),
        deepspeed=_deepspeed(spec),
        gradient_checkpointing=trainer.gradient_checkpointing,
        logits_chunk_tokens=trainer.logits_chunk_tokens,
        max_tokens_per_micro_batch=trainer.max_tokens_per_micro_batch,
        max_row_tokens=spec.rollout.engine.max_model_len,
        dtype=trainer.dtype,
        publish_every_steps=spec.weight_sync.every_steps,
        spec_digests=spec_digests(spec),
        checkpoint=_checkpoint(spec, placement),
        fork=_fork(spec, placement),
        device=place.device,
    )


def spec_digests(spec: JobSpec) -> dict[str, str]:
    """Return digests of what decides which rows are trained, and how: algorithms reference 10.

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


def _loss(spec: JobSpec) -> roles.LossConfig:
    loss = spec.algorithm.loss.model_dump(by_alias=False)
    loss["correction"] = loss.pop("rollout_correction")
    loss["options"], loss["name"] = loss.pop("config"), loss["name"] or ""
    return roles.LossConfig.model_validate(loss | {"temperature": spec.rollout.sampling.temperature})


def _returns(spec: JobSpec) -> roles.ReturnsConfig | None:
    algorithm, gae = spec.algorithm, spec.algorithm.gae
    if not algorithm.trainer_returns:
        return None
    normalize = algorithm.advantage_normalization
    return roles.ReturnsConfig(
        gamma=gae.gamma,
        decay=roles.DecayConfig(kind=gae.decay.kind, value=gae.decay.value),
        unit=gae.unit,
        bootstrap_truncated=gae.bootstrap_truncated,
        normalize=None
        if normalize is None
        else roles.NormalizeConfig.model_validate(normalize.model_dump(by_alias=False)),
    )


def _critic(spec: JobSpec) -> roles.CriticConfig | None:
    critic = spec.algorithm.critic
    return None if critic is None else roles.CriticConfig.model_validate(critic.model_dump(by_alias=False))


def _optimizer(spec: JobSpec) -> roles.OptimizerConfig:
    return roles.OptimizerConfig.model_validate(spec.trainer.optimizer.model_dump(by_alias=False))


def _deepspeed(spec: JobSpec) -> roles.DeepSpeedConfig:
    deepspeed = spec.trainer.deepspeed
    return roles.DeepSpeedConfig.model_validate(
        {
            "zero_stage": deepspeed.zero_stage,
            "offload_optimizer": deepspeed.offload_optimizer,
            "offload_parameters": deepspeed.offload_parameters,
            "extra": dict(deepspeed.extra),
        }
    )


def _checkpoint(spec: JobSpec, placement: Placement) -> roles.CheckpointConfig:
    checkpoint = spec.checkpoint
    return roles.CheckpointConfig(
        dir=placement.checkpoint_dir,
        every_steps=checkpoint.every_steps,
        keep_last=checkpoint.keep_last,
        keep_every=checkpoint.keep_every or 0,
        export_hugging_face=checkpoint.export_hugging_face,
        export_dir=placement.export_dir,
        save_optimizer=checkpoint.save_optimizer,
    )


def _fork(spec: JobSpec, placement: Placement) -> roles.ForkConfig | None:
    fork = spec.resume_from
    if fork is None:
        return None
    if fork.uri is not None:
        path = posixpath.join(placement.base_dir, fork.uri.removeprefix("file://"))
    else:
        path = posixpath.join(placement.runs_dir, fork.job or "")
    return roles.ForkConfig(path=posixpath.normpath(path), step=fork.step)
