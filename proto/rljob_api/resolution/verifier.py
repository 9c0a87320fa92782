"""One verifier's config."""

from rljob_api import grading_limits, grading_tasks, names, roles, suites
from rljob_api.manifest.base import num_bytes
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.reward_options import is_function
from rljob_api.manifest.verifier import RewardSpec
from rljob_api.placement import Placement, VerifierPlacement
from rljob_api.resolution.common import identity, user_code


def verifier_config(job: RLJob, placement: Placement, verifier: VerifierPlacement) -> roles.VerifierConfig:
    """Return everything that one verifier reads."""
    spec, process = job.spec.verifier, verifier.process
    return roles.VerifierConfig(
        job=identity(job, placement),
        role=names.Role.VERIFIER,
        pod=process.pod,
        health_host=placement.health_host,
        health_port=process.health_port,
        log_level=job.spec.observability.log_level,
        tls=placement.tls,
        scratch_dir=process.scratch_dir,
        num_threads=process.num_threads,
        cpu_affinity=process.cpu_affinity,
        bind_host=placement.bind_host,
        port=verifier.port,
        rewards=tuple(_grader(reward, suite, job, placement) for _, suite, reward in suites.rewards(job.spec)),
        isolation=spec.isolation,
        allow_unsafe=spec.allow_unsafe,
        memory_bytes=num_bytes(spec.memory_bytes),
        max_output_bytes=num_bytes(spec.max_output_bytes),
        max_concurrent=spec.max_concurrent or verifier.num_cores,
    )


def _grader(reward: RewardSpec, suite: str, job: RLJob, placement: Placement) -> roles.GraderConfig:
    """Return a reward with its limits: the manifest's, else those of its type."""
    timeout_seconds = job.spec.verifier.timeout_seconds
    listed = [other for _, of_suite, other in suites.rewards(job.spec) if of_suite == suite]
    return roles.GraderConfig(
        name=reward.name,
        type=reward.type,
        suite=suite,
        tasks=grading_tasks.of_reward(reward, listed=listed, workflow=job.spec.workflow.type),
        weight=reward.weight,
        mode=reward.mode,
        config=dict(reward.config),
        cpu_limit_s=grading_limits.cpu_s(reward, timeout_seconds),
        wall_limit_s=grading_limits.wall_s(reward, timeout_seconds),
        memory_bytes=num_bytes(job.spec.verifier.memory_bytes),
        output_bytes=num_bytes(job.spec.verifier.max_output_bytes),
        packages=reward.packages,
        user_code=user_code(job.spec, placement) if is_function(reward.type) else "",
    )
