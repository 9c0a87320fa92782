"""Every metric as the page, the rules and the dashboards may use it: declarations, values of labels, what is open.

Values are those that the code can write; where it has an enum, that enum. `ANY` marks the names of a user and of
Kubernetes, which are bounded elsewhere.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from generators import ROOT
from rljob_api import enums
from rljob_api import metric_names as worker_metric_names
from rljob_api.conditions import STALL_REASONS
from rljob_operator.kube import kinds
from rljob_operator.telemetry import metric_names
from rljob_operator.telemetry import metrics as operator_metrics
from rljob_workers.environment import pool as places
from rljob_workers.verifier import canaries, pool

JOB_LABELS = metric_names.JOB
ANY: tuple[str, ...] = ()
OPERATOR = enums.OPERATOR

_SECONDS_OF_PULL = ("fetch", "verify", "pause", "apply", "total")
_ROLES = tuple(map(str, enums.Role))
_INFRA = ("timeout", "oom", "sandbox_lost", "image_pull", "transport", "engine", "other")

VALUES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "rljob_info": {"queue": ANY, "model": ANY, "operator_version": ANY},
    "rljob_state": {
        "state": (
            "Pending", "Invalid", "Queued", "Starting", "Running", "Degraded", "Restarting", "Stalled", "Suspending",
            "Suspended", "Succeeded", "Failed", "Terminating",
        )
    },
    "rljob_condition": {"type": tuple(map(str, operator_metrics.SHOWN))},
    "rljob_stalled": {"reason": STALL_REASONS, "role": _ROLES},
    "rljob_role_pods": {"role": _ROLES, "state": ("desired", "ready", "pending", "failed")},
    "rljob_isolation_layer": {
        "layer": ("runtime_class", "user_namespace", "landlock", "seccomp", "confined", "network"),
        "required": ("true", "false"),
    },
    "rljob_certificate_expiry_timestamp_seconds": {"role": _ROLES},
    "rljob_owner_info": {"key": ANY, "value": ANY},
    "rljob_usage_gpu_seconds": {"role": _ROLES},
    "rljob_usage_cpu_core_seconds": {"role": _ROLES},
    "rljob_usage_tokens": {"kind": ("generated", "trained")},
    "rljob_restarts_total": {"role": ("trainer",), "class": ("application", "infrastructure", "requested")},
    "rljob_pod_replacements_total": {"role": _ROLES, "cause": ("evicted", "node", "crash", "oom", "drain", "other")},
    "rljob_rollout_scale_total": {"direction": ("up", "down"), "source": ("HPA", "KEDA", "user")},
    "rljob_recovery_seconds": {"role": _ROLES},
    "rljob_startup_seconds": {"phase": metric_names.STARTUP_PHASES},
    "rljob_run_seconds": {"outcome": ("complete", "failed")},
    "rljob_operator_info": {"version": ANY, "crd_matches": ("true", "false")},
    "rljob_operator_reconcile_seconds": {"result": ("ok", "error", "requeue")},
    "rljob_operator_reconcile_errors_total": {"class": ANY},
    "rljob_operator_spec_to_child_seconds": {"kind": ("workload", "other")},
    "rljob_operator_api_requests_total": {
        "verb": ("get", "list", "watch", "patch", "post", "put", "delete"),
        "resource": metric_names.REQUESTED,
        "code": ANY,
    },
    "rljob_operator_leader": {"shard": ANY},
    "rljob_operator_cache_objects": {"kind": kinds.CACHED_KINDS},
    "rljob_operator_watch_lag_seconds": {"kind": kinds.CACHED_KINDS},
    "rljob_operator_status_reports_total": {"result": ("ok", "no_answer")},
    "rljob_setting": {"name": ("stall_timeout_seconds", "max_off_policy_steps", "checkpoint_every_steps")},
    "rljob_policy_version": {"state": ("published", "live", "oldest_serving")},
    "rljob_queue_depth": {"queue": ("queued", "leased", "submitted", "packed")},
    "rljob_trajectories_total": {
        "outcome": tuple(map(str, enums.TrajectoryOutcome))[:-1],
    },
    "rljob_answers_total": {"fate": tuple(map(str, enums.AnswerFate))},
    "rljob_answer_tokens_total": {"fate": tuple(map(str, enums.AnswerFate))},
    "rljob_packed_tokens_total": {"kind": ("computed", "unique", "rows")},
    "rljob_groups_dropped_total": {"reason": tuple(map(str, enums.DropReason))},
    "rljob_prompt_retries_total": {"class": ("infra", "data")},
    "rljob_infra_failures_total": {"role": (*_ROLES, "other"), "reason": _INFRA},
    "rljob_group_seconds": {"phase": ("queued", "generate", "verify", "packed")},
    "rljob_wait_share_ratio": {"waiter": ("rollout", "trainer")},
    "rljob_reward_component_mean": {"reward": ANY},
    "rljob_eval_score": {"suite": ANY, "metric": ("accuracy", "score", "avg_at_k", "pass_at_k")},
    "rljob_prefix_tokens_total": {"kind": ("repeated", "cached")},
    "rljob_tokens_total": {"kind": ("prompt", "generated", "trained")},
    "rljob_rollout_wait_seconds_total": {"reason": tuple(map(str, enums.WaitReason))},
    "rljob_weight_sync_seconds": {"phase": _SECONDS_OF_PULL},
    "rljob_weight_sync_bytes_total": {"kind": ("full", "delta")},
    "rljob_weight_source_bytes_total": {"source": tuple(map(str, enums.SourceKind))},
    "rljob_weight_source_failures_total": {"reason": tuple(map(str, enums.SourceFailure))},
    "rljob_weight_sync_failures_total": {"reason": tuple(map(str, enums.SyncFailure))},
    "rljob_drain_seconds": {"result": tuple(map(str, enums.DrainResult))},
    "rljob_verify_seconds": {"reward": ANY},
    "rljob_verify_cpu_seconds": {"reward": ANY},
    "rljob_verify_total": {
        "reward": ANY,
        "type": ANY,
        "mode": ANY,
        "outcome": tuple(map(str, enums.VerifyOutcome)),
        "reason": tuple(map(str, enums.VerdictReason)),
    },
    "rljob_verifier_workers_ended_total": {"reason": pool.ENDS},
    "rljob_verifier_canary_failures_total": {"canary": tuple(canary.name for canary in canaries.CANARIES)},
    "rljob_judge_calls_total": {"reward": ANY, "outcome": tuple(map(str, enums.JudgeCall))},
    "rljob_judge_tokens_total": {"reward": ANY, "kind": ("prompt", "completion")},
    "rljob_judge_seconds": {"reward": ANY},
    "rljob_judge_verdicts_total": {"reward": ANY, "result": ("verdict", "unavailable")},
    "rljob_environment_claims_total": {"result": ("leased", "full")},
    "rljob_environment_places_ended_total": {"reason": places.ENDS},
    "rljob_step_seconds": {
        "phase": ("total", "wait", "proximal", "forward_backward", "optimizer", "publish", "checkpoint"),
    },
    "rljob_trainer_wait_seconds_total": {"reason": ("batch", "publish", "checkpoint", "peers")},
    "rljob_loss": {"component": ("policy", "kl", "value", "entropy")},
    "rljob_clip_fraction": {"bound": ("low", "high", "dual")},
    "rljob_masked_token_ratio": {"reason": ("correction", "reject", "stale", "truncated", "m2po", "entropy")},
    "rljob_nonfinite_total": {"what": ("loss", "gradient", "logprob")},
    "rljob_gpu_memory_bytes": {"kind": ("allocated", "reserved")},
}  # fmt: skip

# Metrics that docs/design/chart.md asks for and that no process has: what would have to measure them.
OPEN: Mapping[str, str] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A metric of a process, and whether any line of that process writes it."""

    metric: worker_metric_names.Metric
    process: str
    written: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """Return all labels, the job's first."""
        own = self.metric.labels
        return own if self.process == OPERATOR else (*JOB_LABELS, *own)


def entries() -> list[Entry]:
    """Return all declared metrics, the operator's first, in the order of their declaration."""
    declared = [(metric, OPERATOR) for metric in metric_names.METRICS]
    declared += [(metric, str(metric.role)) for metric in worker_metric_names.METRICS]
    sources = _sources()
    return [
        Entry(metric=metric, process=process, written=f'"{metric.name}"' in sources) for metric, process in declared
    ]


@functools.cache
def exported() -> dict[str, Entry]:
    """Return what Prometheus can find, by name."""
    return {entry.metric.name: entry for entry in entries() if entry.written}


def series(entry: Entry) -> Iterator[str]:
    """Yield the names under which samples of a metric are stored."""
    if entry.metric.kind == "h":
        yield from (f"{entry.metric.name}_{part}" for part in ("bucket", "sum", "count"))
    else:
        yield entry.metric.name


@functools.cache
def _sources() -> str:
    declarations = {pathlib.Path(str(module.__file__)) for module in (enums, metric_names)}
    folders = (ROOT / "operator", ROOT / "workers")
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return "\n".join(path.read_text(encoding="utf-8") for path in paths if path not in declarations)
