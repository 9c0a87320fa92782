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
        loss=spec.algorithm.loss,
        temperature=spec.rollout.sampling.temperature,
        reference=reference_config(spec, placement),
        returns=_returns(spec),
        critic=spec.algorithm.critic,
        minibatches=spec.algorithm.minibatches,
        epochs=spec.algorithm.epochs,
        optimizer=trainer.optimizer,
        deepspeed=trainer.deepspeed,
        gradient_checkpointing=trainer.gradient_checkpointing,
        logits_chunk_tokens=trainer.logits_chunk_tokens,
        max_tokens_per_micro_batch=trainer.max_tokens_per_micro_batch,
        max_row_tokens=spec.rollout.engine.max_model_len,
        dtype=trainer.dtype,
        publish_every_steps=spec.weight_sync.every_steps,
        weight_transport=spec.weight_sync.transport,
        weights_dir=placement.weights_dir,
        spec_digests=spec_digests(spec),
        checkpoint=_checkpoint(spec, placement),
        fork=_fork(spec, placement),
        device=placement.device,
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


def _returns(spec: JobSpec) -> roles.ReturnsConfig | None:
    algorithm, gae = spec.algorithm, spec.algorithm.gae
    if not algorithm.trainer_returns:
        return None
    return roles.ReturnsConfig(
        gamma=gae.gamma,
        decay=gae.decay,
        unit=gae.unit,
        bootstrap_truncated=gae.bootstrap_truncated,
        normalize=algorithm.advantage_normalization,
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
