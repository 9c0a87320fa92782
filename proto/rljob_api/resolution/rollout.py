"""One rollout's config."""

from rljob_api import grading_limits, names, roles, suites
from rljob_api.manifest.data import DataSourceSpec
from rljob_api.manifest.job import JobSpec, RLJob
from rljob_api.placement import Placement, ProcessPlacement
from rljob_api.resolution.common import identity, model_config, user_code

# The slowest reward's wall cap, once more after a lost grading worker, and time to wait for a free slot.
VERIFY_TRIES = 2
VERIFY_QUEUE_S = 30.0
# Groups of each version that one rollout dumps where a sample is asked for.
SAMPLED_GROUPS = 4
# Groups leased per sequence slot: finished members of a slow group leave no slot of the engine empty.
OVERSUBSCRIPTION = 2


def rollout_config(job: RLJob, placement: Placement, process: ProcessPlacement) -> roles.RolloutConfig:
    """Return everything that one rollout reads."""
    spec = job.spec
    return roles.RolloutConfig(
        job=identity(job, placement),
        role=names.Role.ROLLOUT,
        pod=process.pod,
        health_host=placement.health_host,
        health_port=process.health_port,
        log_level=spec.observability.log_level,
        tls=placement.tls,
        scratch_dir=process.scratch_dir,
        num_threads=process.num_threads,
        cpu_affinity=process.cpu_affinity,
        coordinator_address=placement.control_address,
        verifier_addresses=tuple(verifier.address for verifier in placement.verifiers),
        model=model_config(spec, placement),
        engine=_engine(spec, placement),
        device=placement.device,
        template=spec.data.template,
        template_by_suite={suite.name: suite.template for suite in spec.evaluation.suites if suite.template},
        record_rules={source.name: _record_rules(source) for source in spec.data.train},
        record_rules_by_suite={suite.name: _record_rules(suite) for suite in spec.evaluation.suites},
        group_predicate=spec.data.filter_groups.predicate or "",
        workflow=spec.workflow.type,
        workflow_config=dict(spec.workflow.config),
        user_code=user_code(spec, placement),
        group_size=spec.algorithm.group_size,
        max_groups_in_flight=_groups_per_replica(spec, num_replicas=len(placement.rollouts)),
        in_flight_weight_updates=spec.async_.in_flight_weight_updates,
        kv_cache_policy=spec.weight_sync.kv_cache,
        weight_transport=spec.weight_sync.transport,
        weights_dir=placement.weights_dir,
        max_off_policy_steps=spec.async_.max_off_policy_steps,
        drain_s=float(spec.rollout.drain_seconds),
        verify_timeout_s=VERIFY_TRIES * _longest_grading_s(spec) + VERIFY_QUEUE_S,
        max_infra_attempts=spec.failure_policy.max_infra_attempts_per_prompt,
        seed=spec.seed,
        dump_dir="" if spec.observability.trajectory_dump == "none" else placement.dump_dir,
        dump_groups_per_version=SAMPLED_GROUPS if spec.observability.trajectory_dump == "sampled" else 0,
        dump_text="text" in spec.observability.trajectory_dump_also,
        dump_monitor="legacyMonitor" in spec.observability.trajectory_dump_also,
    )


def _record_rules(source: DataSourceSpec) -> roles.RecordRules:
    return roles.RecordRules(max_prompt_tokens=source.max_prompt_tokens, drops=source.on_invalid_record == "drop")


def _longest_grading_s(spec: JobSpec) -> float:
    return max(
        grading_limits.most_wall_s(reward, spec.verifier.timeout_seconds) for _, _, reward in suites.rewards(spec)
    )


def _groups_per_replica(spec: JobSpec, *, num_replicas: int) -> int:
    """Return min(what the engine's slots take, this replica's part of all groups in flight), at least 1."""
    slots = -(-OVERSUBSCRIPTION * spec.rollout.engine.max_num_seqs // spec.algorithm.group_size)
    part = -(-spec.async_.max_inflight_groups // num_replicas)
    return max(1, min(slots, part))


def _engine(spec: JobSpec, placement: Placement) -> roles.EngineConfig:
    engine = spec.rollout.engine
    return roles.EngineConfig(
        type=engine.type,
        tensor_parallel_size=engine.tensor_parallel_size,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        enforce_eager=engine.enforce_eager,
        dtype=engine.dtype,
        kv_cache_dtype=engine.kv_cache_dtype,
        kv_cache_bytes=placement.kv_cache_bytes,
        extra_args=dict(engine.extra_args),
        num_gpus=engine.num_gpus,
    )
