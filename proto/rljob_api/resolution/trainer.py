"""The trainer's config."""

import posixpath

from rljob_api import effective, names, roles
from rljob_api.manifest.base import number, optional_number
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
        returns=effective.returns(spec),
        critic=effective.critic(spec),
        minibatches=spec.algorithm.minibatches,
        epochs=spec.algorithm.epochs,
        optimizer=_optimizer(spec),
        deepspeed=_deepspeed(spec),
        gradient_checkpointing=trainer.gradient_checkpointing,
        logits_chunk_tokens=trainer.logits_chunk_tokens,
        max_tokens_per_micro_batch=trainer.max_tokens_per_micro_batch,
        max_row_tokens=effective.max_model_len(spec),
        dtype=trainer.dtype,
        master_weights_dtype=trainer.master_weights_dtype,
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
    sources = [source.model_dump(mode="json", exclude={"path"}, exclude_defaults=True) for source in data.train]
    values: dict[str, object] = {
        "groups": [spec.algorithm.prompts_per_step, spec.algorithm.group_size],
        "data": [sources, data.template, data.shuffle],
        "algorithm": [
            block.model_dump(mode="json", exclude_defaults=True) for block in (spec.algorithm, data.filter_groups)
        ],
    }
    return {name: digest(value) for name, value in values.items()}


def _loss(spec: JobSpec) -> roles.LossConfig:
    loss = spec.algorithm.loss
    return roles.LossConfig.model_validate(
        {
            "type": loss.type,
            "clip_low": effective.clip_low(spec),
            "clip_high": effective.clip_high(spec),
            "dual_clip": optional_number(loss.dual_clip),
            "tau_pos": effective.tau_pos(spec),
            "tau_neg": effective.tau_neg(spec),
            "proximal": effective.proximal(spec),
            "aggregation": effective.aggregation(spec),
            "constant_denominator": effective.constant_denominator(spec),
            "kl_coef": number(loss.kl_coef),
            "kl_estimator": effective.kl_estimator(spec),
            "kl_placement": effective.kl_placement(spec),
            "entropy_coef": number(loss.entropy_coef),
            "m2_threshold": optional_number(loss.m2_threshold),
            "correction": effective.correction(spec),
            "temperature": number(spec.rollout.sampling.temperature),
        }
    )


def _optimizer(spec: JobSpec) -> roles.OptimizerConfig:
    optimizer = spec.trainer.optimizer
    first, second = optimizer.betas
    return roles.OptimizerConfig(
        learning_rate=number(optimizer.learning_rate),
        betas=(number(first), number(second)),
        eps=number(optimizer.eps),
        weight_decay=number(optimizer.weight_decay),
        warmup_steps=optimizer.warmup_steps,
        schedule=optimizer.schedule,
        max_grad_norm=number(optimizer.max_grad_norm),
    )


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
