"""The coordinator's config."""

import math

from rljob_api import names, roles
from rljob_api.manifest.job import JobSpec, RLJob
from rljob_api.manifest.rollout import AutoscalingSpec
from rljob_api.placement import Placement
from rljob_api.resolution.common import identity
from rljob_api.resolution.data import data_config, evaluation_config


def coordinator_config(job: RLJob, placement: Placement) -> roles.CoordinatorConfig:
    """Return everything that the coordinator reads."""
    spec, process = job.spec, placement.coordinator
    return roles.CoordinatorConfig(
        job=identity(job, placement),
        role=names.Role.COORDINATOR,
        pod=process.pod,
        health_host=placement.health_host,
        health_port=process.health_port,
        log_level=spec.observability.log_level,
        tls=placement.tls,
        scratch_dir=process.scratch_dir,
        num_threads=process.num_threads,
        cpu_affinity=process.cpu_affinity,
        bind_host=placement.bind_host,
        control_port=placement.control_port,
        store_port=placement.store_port,
        store_address=placement.store_address,
        state_dir=placement.state_dir,
        max_steps=spec.max_steps,
        seed=spec.seed,
        data=data_config(spec, placement.base_dir),
        sampling=spec.rollout.sampling.request(spec.data.template),
        algorithm=_algorithm(spec),
        staleness=spec.async_,
        evaluation=evaluation_config(spec, placement.base_dir),
        failure=_failure(spec),
        world_size=spec.trainer.world_size,
        max_tokens_per_micro_batch=spec.trainer.max_tokens_per_micro_batch,
        publish_every_steps=spec.weight_sync.every_steps,
        checkpoint_every_steps=spec.checkpoint.every_steps,
        expected_rollouts=len(placement.rollouts),
        trainer_wait_target=_trainer_wait_target(spec),
        first_version=0 if spec.resume_from is None else 1,
    )


def _trainer_wait_target(spec: JobSpec) -> float:
    """Return the share that the trainer may wait; the signal is served whether anything scales by it or not."""
    return (spec.rollout.autoscaling or AutoscalingSpec.model_validate({"maxReplicas": 1})).trainer_wait_target


def _algorithm(spec: JobSpec) -> roles.AlgorithmConfig:
    algorithm, rewards = spec.algorithm, spec.algorithm.rewards
    return roles.AlgorithmConfig(
        advantage_estimator=algorithm.advantage_estimator,
        group_size=algorithm.group_size,
        prompts_per_step=algorithm.prompts_per_step,
        minibatches=algorithm.minibatches,
        epochs=algorithm.epochs,
        rewards=roles.RewardShapingConfig(
            scale=rewards.scale,
            bias=rewards.bias,
            clip=math.inf if rewards.clip is None else rewards.clip,
            overlong=rewards.overlong,
            zero_truncated=algorithm.zero_truncated,
            mask_truncated=algorithm.mask_truncated,
        ),
        normalize_reward=algorithm.normalize_reward,
        filter=spec.data.filter_groups,
        trainer_returns=algorithm.trainer_returns,
        train_zero_advantage=algorithm.trains_zero_advantage,
        train_masked=algorithm.trains_masked,
    )


def _failure(spec: JobSpec) -> roles.FailureConfig:
    policy = spec.failure_policy
    return roles.FailureConfig(
        max_infra_attempts_per_prompt=policy.max_infra_attempts_per_prompt,
        max_data_attempts_per_prompt=policy.max_data_attempts_per_prompt,
        min_group_fraction=policy.min_group_fraction,
        min_step_batch_fraction=policy.min_step_batch_fraction,
        max_infra_failure_fraction=policy.max_infra_failure_fraction,
        stall_timeout_s=float(policy.stall.timeout_seconds),
        stall_action=policy.stall.action,
    )
