"""Metrics pages with every series that a process can have, from the product's own registries; each look counts on."""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping

from generators import metric_catalog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rljob_api import enums, metric_names, process_config, types
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.status import JobStatus
from rljob_operator.kube import kinds
from rljob_operator.model import Observed, Pod, Report
from rljob_operator.telemetry import metrics as operator_metrics
from rljob_testing.operator_runs import operator_job
from rljob_workers.runtime import metrics as worker_metrics

JOB = process_config.JobIdentity(name="job", namespace="default", uid="u")
FAILED = "lost"
_LAYERS = ("runtime_class", "user_namespace", "landlock", "seccomp", "confined", "network")
_BEGAN, _STEPPED, _ENDED = "2030-01-01T00:00:00Z", "2030-01-01T00:10:00Z", "2030-01-01T01:00:00Z"


def fill(made: worker_metrics.Metrics, role: enums.Role) -> None:
    """Count every closed label value once, and one name for each label that is a user's; set every gauge to 1."""
    for metric in (metric for metric in metric_names.METRICS if metric.role is role):
        values = [metric_catalog.VALUES[metric.name][label] or ("one",) for label in metric.labels]
        for combination in itertools.product(*values):
            labels = dict(zip(metric.labels, combination, strict=True))
            if metric.kind == "c":
                made.counter(metric.name).inc(1, **labels)
            elif metric.kind == "g":
                made.gauge(metric.name).set(1, **labels)
            else:
                made.histogram(metric.name).observe(1, **labels)


class _Engine(Collector):
    """What vLLM counts and dashboards read."""

    def collect(self) -> Iterator[Metric]:
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            yield GaugeMetricFamily(f"vllm:{name}", "Of the engine.", value=1)


class RolePage(worker_metrics.Metrics):
    """The registry of one of a job's programs."""

    def __init__(self, role: enums.Role) -> None:
        """Nothing is counted before the first look."""
        super().__init__(role=role, job=JOB)
        self._role, self._looks = role, 0
        if role is enums.Role.ROLLOUT:
            self.registry.register(_Engine())

    def exposition(self) -> bytes:
        """Count once more, and return the page."""
        self._looks += 1
        fill(self, self._role)
        if self._role is enums.Role.COORDINATOR:
            self.gauge("rljob_step").set(self._looks)
        return super().exposition()


class OperatorPage:
    """The operator's registry, with a job that runs, stalls, scales and loses pods, and one that failed."""

    def __init__(self) -> None:
        """Nothing is counted before the first look."""
        self._metrics, self._looks = operator_metrics.Metrics(), 0
        for what in ("queue_depth", "queue_oldest_seconds", "refused_lists", "status_streams", "report_age_seconds"):
            self._metrics.gauge(f"rljob_operator_{what}", lambda: 1.0)
        for what, kind in itertools.product(("cache_objects", "watch_lag_seconds"), kinds.CACHED_KINDS):
            self._metrics.gauge(f"rljob_operator_{what}", lambda: 1.0, kind=kind)

    def exposition(self) -> bytes:
        """Let everything happen once more, and return the page."""
        self._looks += 1
        running = _with_status(operator_job(), _status(Type.FAILED, holds=False))
        # Before the look: what is written is shown until then, and says nothing of a stall.
        self._happened(running)
        ends = dict.fromkeys(enums.STANDARD_ROLES, 2_000_000_000.0)
        self._metrics.saw("default/job", self._seen(running), certificate_ends=ends)
        failed = operator_job()
        named = failed.model_copy(update={"metadata": failed.metadata.model_copy(update={"name": FAILED})})
        over = _with_status(named, {**_status(Type.FAILED, holds=True), "completionTime": _ENDED})
        self._metrics.saw(f"default/{FAILED}", Observed(job=over), certificate_ends={})
        return self._metrics.exposition()

    def _seen(self, job: RLJob) -> Observed:
        """Return the job with a rollout that was replaced since the last look, and a step more."""
        pods = [
            Pod(name=f"job-{role}-0", uid=f"{role}", role=role, phase="Running", ready=True)
            for role in enums.STANDARD_ROLES
        ]
        layers = {layer: {"holds": True, "required": True, "detail": "tried"} for layer in _LAYERS}
        report = json.dumps({"layers": layers, "missing": []})
        pods = [dataclasses.replace(pod, preflight=report if pod.role is enums.Role.VERIFIER else "") for pod in pods]
        fresh = f"rollout-{self._looks}"
        more = [
            Pod(name="job-rollout-1", uid=fresh, role=enums.Role.ROLLOUT, phase="Running", ready=True),
            Pod(name="job-rollout-2", uid="pending", role=enums.Role.ROLLOUT, phase="Pending"),
            Pod(name="job-trainer-1", uid="trainer-1", role=enums.Role.TRAINER, phase="Running", ready=True),
        ]
        run = types.RunStatus(job="job", phase=enums.Phase.RUNNING, step=self._looks)
        return Observed(job=job, pods=(*pods, *more), report=Report(run=run, read_at=0.0))

    def _happened(self, job: RLJob) -> None:
        made = self._metrics
        for result in ("ok", "error", "requeue"):
            made.reconciled(result, 0.1)
        made.failed(ValueError("anything"))
        made.applied("Deployment", 0.1)
        for verb in ("get", "list", "patch", "post", "delete"):
            made.answered(verb, "pods", 200)
        made.reported(True)
        made.reported(False)
        before = _read({"startTime": _BEGAN})
        for replicas, complete in ((3, "True"), (1, "False")):
            changes = [{"time": _BEGAN, "from": 2, "to": replicas}]
            attempts = [
                {"number": number, "end": _ENDED, "class": each}
                for number, each in enumerate(("application", "infrastructure", "requested"), start=1)
            ]
            after = {
                "startTime": _BEGAN, "firstStepTime": _STEPPED, "completionTime": _ENDED,
                "scaling": {"history": changes}, "trainer": {"attempts": attempts},
                "conditions": [_condition("Complete", complete)],
            }  # fmt: skip
            made.wrote(job, before, _read(after))


def _condition(kind: str, status: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "Any", "lastTransitionTime": _BEGAN}


def _status(ended: Type, *, holds: bool) -> dict[str, object]:
    """Return a status that names a stall, and every condition that a metric shows."""
    conditions = [
        _condition(str(kind), str(holds if kind is ended else not holds and kind is not Type.SUSPENDED))
        for kind in operator_metrics.SHOWN
        if kind is not Type.COMPLETE
    ]
    stalled = {"role": "verifier", "reason": "VerifierSaturated"}
    return {"summary": "Failed" if holds else "Running", "attempt": 1, "conditions": conditions, "stalled": stalled}


def _with_status(job: RLJob, status: dict[str, object]) -> RLJob:
    return job.model_copy(update={"status": _read(status)})


def _read(status: Mapping[str, object]) -> JobStatus:
    """Return a status as the API server would send it: lists in JSON are tuples here."""
    return JobStatus.model_validate_json(json.dumps(status))
