"""The operator's metrics: one registry of what `metric_names.py` declares, and series for each job that is there.

Series of a job are made at scrape time from what its last pass saw and wrote, so they end with the job.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import rljob_api
from rljob_api import enums, suites, types
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.status import JobStatus, UsageStatus
from rljob_operator import clock
from rljob_operator.kube.cache import key_of
from rljob_operator.model import POD, POD_MAKERS, Observed, Pod
from rljob_operator.policies import isolation, scheduling, usage
from rljob_operator.reconcile import conditions
from rljob_operator.resources.inputs import propagated
from rljob_operator.telemetry import metric_names
from rljob_operator.telemetry.durations import Recoveries, Starts
from rljob_operator.telemetry.replacements import Cause, replacements

_DECLARED = {metric.name: metric for metric in metric_names.METRICS}
# Series of owner labels a job may have.
_MOST_OWNERS = 8
_CLASSES = frozenset({"application", "infrastructure", "requested"})
_WORKLOADS = POD_MAKERS | {POD}
_WORKLOAD_RESOURCES = frozenset(f"{kind.lower()}s" for kind in POD_MAKERS)
_LAYERS = frozenset({"runtime_class", "user_namespace", "landlock", "seccomp", "confined", "network"})
SHOWN = (
    Type.ACCEPTED, Type.QUOTA_RESERVED, Type.CHILDREN_APPLIED, Type.SUSPENDED, Type.STATE_DURABLE,
    Type.ISOLATION_VERIFIED, Type.RUNNING, Type.DEGRADED, Type.AUTOSCALING_ACTIVE, Type.STALLED, Type.COMPLETE,
    Type.FAILED,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What series are made of of a status, which is ten times as large. conditions: those of `SHOWN`, and whether they
    are true. roles: desired pods by name. stalled: reason and role.
    """

    summary: str
    conditions: tuple[tuple[Type, bool], ...]
    roles: tuple[tuple[str, int], ...]
    attempt: int | None
    stalled: tuple[str, str] | None


def shown(status: JobStatus) -> Shown:
    statuses = conditions.statuses(status.conditions)
    return Shown(
        summary=status.summary or "Pending",
        conditions=tuple((kind, statuses[kind] == "True") for kind in SHOWN if kind in statuses),
        roles=tuple((role.name, role.desired) for role in status.roles),
        attempt=status.attempt,
        stalled=None if status.stalled is None else (status.stalled.reason, status.stalled.role),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What the series of one job are made of. pods: by role and state (ready, pending, failed).

    isolation: by layer whether it is required and whether it holds on every verifier pod. certificate_ends: unix
    seconds by role. owners: labels by key. base: what was used until the last pass.
    """

    labels: tuple[str, str]
    model: str
    pods: Mapping[tuple[str, str], int]
    status: Shown
    isolation: Mapping[str, tuple[bool, bool]]
    certificate_ends: Mapping[enums.Role, float]
    pods_seen: tuple[Pod, ...] = ()
    owners: Mapping[str, str] = dataclasses.field(default_factory=dict)
    run: types.RunStatus | None = None
    base: UsageStatus | None = None

    def used(self, now: float) -> UsageStatus | None:
        """Return what the job used until `now`: the pods that were there last are taken to be there still."""
        return usage.usage(self.base, self.pods_seen, self.run, now=now)


def row_of(
    observed: Observed,
    certificate_ends: Mapping[enums.Role, float],
    *,
    owner_labels: Sequence[str] = (),
    base: UsageStatus | None = None,
) -> Row:
    job = observed.job
    return Row(
        labels=(job.metadata.namespace, job.metadata.name),
        model=job.spec.model.name,
        pods=_pods(observed),
        status=shown(observed.status),
        isolation=_isolation(observed),
        certificate_ends=certificate_ends,
        pods_seen=observed.pods,
        owners=dict(itertools.islice(propagated(job.metadata.labels, owner_labels).items(), _MOST_OWNERS)),
        run=None if observed.report is None else observed.report.run,
        # What was counted already stays, also of a pod that is gone: a sum never falls while the operator lives.
        base=base or observed.status.usage,
    )


def _is_meant_to_run(observed: Observed) -> bool:
    return not (observed.deleting or observed.job.spec.suspend or observed.status.completion_time)


def _scaling_source(job: RLJob) -> str:
    bounds = job.spec.rollout.autoscaling
    return "user" if bounds is None else bounds.provider


def _isolation(observed: Observed) -> dict[str, tuple[bool, bool]]:
    verdict = conditions.isolation_verdict(observed)
    if verdict is None:
        return {}
    layers = {layer: state != isolation.MISSING for layer, state in verdict.layers.items() if layer in _LAYERS}
    return {layer: (layer in verdict.required, holds) for layer, holds in layers.items()}


def _pods(observed: Observed) -> dict[tuple[str, str], int]:
    """Return the pods by role and state; those that are wanted and not made, or denied, are pending too."""
    counts: dict[tuple[str, str], int] = {}
    unmade = dict.fromkeys(enums.Role, 0)
    for child in (observed.children[ref] for ref in observed.short if ref in observed.children):
        if child.role is not None:
            unmade[child.role] += child.wanted_pods - scheduling.num_pods(child, observed.pods)
    for role in suites.roles(observed.job.spec):
        pods = observed.pods_of(role)
        counts[(str(role), "ready")] = sum(pod.ready for pod in pods)
        counts[(str(role), "pending")] = sum(pod.phase == "Pending" for pod in pods) + unmade[role]
        counts[(str(role), "failed")] = sum(pod.phase == "Failed" for pod in pods)
    return counts


def _resource_group(resource: str) -> str:
    if resource in metric_names.REQUESTED:
        return resource
    return metric_names.WORKLOADS if resource in _WORKLOAD_RESOURCES else metric_names.OTHERS


def _asked_at(status: JobStatus, otherwise: float) -> float:
    """Return when a run was asked for, in unix seconds: accepted, or its last suspension ended."""
    since = {(Type.ACCEPTED, "True"), (Type.SUSPENDED, "False")}
    times = [
        clock.to_seconds(condition.last_transition_time)
        for condition in status.conditions
        if (condition.type, condition.status) in since
    ]
    return max((at for at in times if at is not None and at <= otherwise), default=otherwise)


class _Jobs(Collector):
    """Series of all jobs."""

    def __init__(self, rows: Mapping[str, Row], now: Callable[[], float]) -> None:
        self._rows = rows
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have a series."""
        info, state, condition, stalled = map(
            _family, ("rljob_info", "rljob_state", "rljob_condition", "rljob_stalled")
        )
        pods, attempt, layers = map(_family, ("rljob_role_pods", "rljob_trainer_attempt", "rljob_isolation_layer"))
        expiry, owners = map(_family, ("rljob_certificate_expiry_timestamp_seconds", "rljob_owner_info"))
        gpus, cores, tokens = map(
            _family,
            ("rljob_usage_gpu_seconds", "rljob_usage_cpu_core_seconds", "rljob_usage_tokens"),
        )
        for row in list(self._rows.values()):
            info.add_metric((*row.labels, "", row.model, rljob_api.__version__), 1)
            status = row.status
            state.add_metric((*row.labels, status.summary), 1)
            for kind, is_true in status.conditions:
                condition.add_metric((*row.labels, str(kind)), float(is_true))
            for role, desired in status.roles:
                pods.add_metric((*row.labels, role, "desired"), desired)
            for (name, what), count in row.pods.items():
                pods.add_metric((*row.labels, name, what), count)
            if status.attempt is not None:
                attempt.add_metric(row.labels, status.attempt)
            if status.stalled is not None:
                stalled.add_metric((*row.labels, *status.stalled), 1)
            for layer, (required, holds) in row.isolation.items():
                layers.add_metric((*row.labels, layer, str(required).lower()), float(holds))
            for owner, end in row.certificate_ends.items():
                expiry.add_metric((*row.labels, str(owner)), end)
            for key, value in row.owners.items():
                owners.add_metric((*row.labels, key, value), 1)
            if (used := row.used(self._now())) is not None:
                _add_usage(row, used, gpus=gpus, cores=cores, tokens=tokens)
        yield from (info, state, condition, stalled, pods, attempt, layers, expiry, owners, gpus, cores, tokens)


class _JobCounter(Collector):
    """A counter with series of each job. The library's own takes half a kilobyte a series, and a job has thirty."""

    def __init__(self, name: str, registry: prometheus_client.CollectorRegistry) -> None:
        self._declared = _DECLARED[name]
        # By namespace and name of the job, then by the other labels.
        self._counts: dict[tuple[str, str], dict[tuple[str, ...], int]] = {}
        self._labels: dict[tuple[str, ...], tuple[str, ...]] = {}
        registry.register(self)

    def add(self, job: tuple[str, str], *labels: str, count: int = 1) -> None:
        """Count; a count of 0 begins a series: Prometheus sees no increase in one that begins with its first event."""
        counts = self._counts.setdefault(job, {})
        shared = self._labels.setdefault(labels, labels)
        counts[shared] = counts.get(shared, 0) + count

    def forget(self, job: tuple[str, str]) -> None:
        self._counts.pop(job, None)

    def collect(self) -> Iterator[Metric]:
        """Yield the one family."""
        family = CounterMetricFamily(self._declared.name, self._declared.help, labels=self._declared.labels)
        # Copies in one step: the page of metrics is made on another thread.
        for job, counts in list(self._counts.items()):
            for labels, count in list(counts.items()):
                family.add_metric((*job, *labels), count)
        yield family


def _add_usage(
    row: Row,
    used: UsageStatus,
    *,
    gpus: GaugeMetricFamily,
    cores: GaugeMetricFamily,
    tokens: GaugeMetricFamily,
) -> None:
    """Add what a job used until now: the status is older, and what pods used since is added. A role has no series of
    what it never asked for.
    """
    for role in used.roles:
        if role.gpu_seconds:
            gpus.add_metric((*row.labels, role.name), role.gpu_seconds)
        if role.cpu_core_seconds:
            cores.add_metric((*row.labels, role.name), float(role.cpu_core_seconds))
    tokens.add_metric((*row.labels, "generated"), used.generated_tokens)
    tokens.add_metric((*row.labels, "trained"), used.trained_tokens)


def _family(name: str) -> GaugeMetricFamily:
    declared = _DECLARED[name]
    return GaugeMetricFamily(name, declared.help, labels=declared.labels)


def _gauge(name: str, registry: prometheus_client.CollectorRegistry) -> prometheus_client.Gauge:
    declared = _DECLARED[name]
    return prometheus_client.Gauge(name, declared.help, declared.labels, registry=registry)


def _counter(name: str, registry: prometheus_client.CollectorRegistry) -> prometheus_client.Counter:
    declared = _DECLARED[name]
    return prometheus_client.Counter(name, declared.help, declared.labels, registry=registry)


def _histogram(name: str, registry: prometheus_client.CollectorRegistry) -> prometheus_client.Histogram:
    declared = _DECLARED[name]
    return prometheus_client.Histogram(
        name, declared.help, declared.labels, buckets=declared.buckets, registry=registry
    )


class Metrics:
    """The registry and everything that is counted in it."""

    def __init__(
        self, *, now: Callable[[], float] = time.time, job_series: bool = True, owner_labels: Sequence[str] = ()
    ) -> None:
        """Gauges that others hold come by `gauge`. now: unix seconds. job_series: whether each job has its own series;
        without them only those of all jobs are shown. owner_labels: keys of jobs' labels that become
        `rljob_owner_info`.
        """
        self._owner_labels = owner_labels
        # A series of its own for the birth of each series is asked for by nothing that reads the text format.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types there
        self.registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        self._rows: dict[str, Row] = {}
        # What is in a registry of its own is counted and not shown.
        of_jobs = self.registry if job_series else prometheus_client.CollectorRegistry()
        of_jobs.register(_Jobs(self._rows, now))
        self._info = _gauge("rljob_operator_info", self.registry)
        self.definition_matches(False)
        self._reconcile = _histogram("rljob_operator_reconcile_seconds", self.registry)
        self._errors = _counter("rljob_operator_reconcile_errors_total", self.registry)
        self._to_child = _histogram("rljob_operator_spec_to_child_seconds", self.registry)
        self._requests = _counter("rljob_operator_api_requests_total", self.registry)
        self._reports = _counter("rljob_operator_status_reports_total", self.registry)
        self._restarts = _JobCounter("rljob_restarts_total", of_jobs)
        self._startup = _histogram("rljob_startup_seconds", self.registry)
        self._run = _histogram("rljob_run_seconds", self.registry)
        self._replacements = _JobCounter("rljob_pod_replacements_total", of_jobs)
        self._scales = _JobCounter("rljob_rollout_scale_total", of_jobs)
        self._recovery = _histogram("rljob_recovery_seconds", self.registry)
        self._recoveries: dict[str, Recoveries] = {}
        self._starts: dict[str, Starts] = {}
        self._gauges: dict[str, prometheus_client.Gauge] = {}
        for phase in metric_names.STARTUP_PHASES:
            # From 0: Prometheus sees no increase in a series that begins with its first event.
            self._startup.labels(phase)
        self._now = now

    def definition_matches(self, matches: bool) -> None:
        """Tell whether the RLJob that is served has every field that is known here."""
        self._info.clear()
        self._info.labels(rljob_api.__version__, str(matches).lower()).set(1)

    def gauge(self, name: str, value: Callable[[], float], **labels: str) -> None:
        """Read a declared gauge when it is scraped. Raises KeyError for a name that is not declared."""
        if name not in self._gauges:
            self._gauges[name] = _gauge(name, self.registry)
        (self._gauges[name].labels(**labels) if labels else self._gauges[name]).set_function(value)

    def reconciled(self, result: str, seconds: float) -> None:
        """Count a pass: ok, error or requeue."""
        self._reconcile.labels(result).observe(seconds)

    def failed(self, error: Exception) -> None:
        """Count a failure by its class, which is a closed set of ours."""
        self._errors.labels(type(error).__name__).inc()

    def applied(self, kind: str, seconds: float) -> None:
        """Record how long a change took to reach a child of a kind of Kubernetes."""
        group = metric_names.WORKLOAD if kind in _WORKLOADS else metric_names.OTHER_CHILD
        self._to_child.labels(group).observe(seconds)

    def answered(self, verb: str, resource: str, status: int) -> None:
        """Count a request to the API server; a status of 0 is not an answer."""
        of = metric_names.EVERY_KIND if verb in ("list", "watch") else _resource_group(resource)
        self._requests.labels(verb, of, "2xx" if 200 <= status < 300 else str(status)).inc()

    def reported(self, answered: bool) -> None:
        self._reports.labels("ok" if answered else "no_answer").inc()

    def saw(self, key: str, observed: Observed, *, certificate_ends: Mapping[enums.Role, float]) -> None:
        """Keep the row of a job. `certificate_ends`: unix seconds by role, none for a job in plain text."""
        before = self._rows.get(key)
        row = self._rows[key] = row_of(
            observed,
            certificate_ends,
            owner_labels=self._owner_labels,
            base=None if before is None else before.used(self._now()),
        )
        for class_ in _CLASSES:
            self._restarts.add(row.labels, str(enums.Role.TRAINER), class_, count=0)
        if observed.pods and _is_meant_to_run(observed):
            for role in suites.roles(observed.job.spec):
                for cause in Cause:
                    self._replacements.add(row.labels, str(role), str(cause), count=0)
            for direction in ("up", "down"):
                self._scales.add(row.labels, direction, _scaling_source(observed.job), count=0)
        self._follow_pods(key, observed, () if before is None else before.pods_seen)

    def _follow_pods(self, key: str, observed: Observed, before: tuple[Pod, ...]) -> None:
        """Count lost pods by cause, and time until their roles have recovered."""
        for phase, seconds in self._starts.setdefault(key, Starts()).observe(observed.pods):
            self._startup.labels(phase).observe(max(0.0, seconds))
        recoveries = self._recoveries.setdefault(key, Recoveries())
        if not _is_meant_to_run(observed):
            recoveries.clear()
            return
        lost, whole = [], {}
        for role in suites.roles(observed.job.spec):
            desired, now = scheduling.wanted_pods(observed.job.spec, role), observed.pods_of(role)
            causes = replacements([pod for pod in before if pod.role is role], now, num_wanted=desired)
            for cause in causes:
                self._replacements.add(self._rows[key].labels, str(role), str(cause))
            lost += [role] if causes else []
            whole[role] = sum(pod.ready and not pod.deleting for pod in now) >= desired
        step = observed.status.step or 0 if observed.report is None else observed.report.run.step
        for role, seconds in recoveries.observe(lost=lost, whole=whole, step=step, now=self._now()):
            self._recovery.labels(str(role)).observe(seconds)

    def wrote(self, job: RLJob, before: JobStatus, after: JobStatus) -> None:
        """Keep what a written status says, and count what it says has happened: ends of trainer attempts, the first
        step, the end of the run, another number of rollouts.
        """
        key = key_of(job.metadata.namespace, job.metadata.name)
        if key in self._rows:
            # A pass that wrote a status is often the last for a while.
            self._rows[key] = dataclasses.replace(self._rows[key], status=shown(after))
        self._timed(before, after)
        self._scaled(job, before, after)
        ended = {
            attempt.number for attempt in (before.trainer.attempts if before.trainer else ()) if attempt.end is not None
        }
        labels = (job.metadata.namespace, job.metadata.name)
        for attempt in after.trainer.attempts if after.trainer else ():
            if attempt.end is not None and attempt.number not in ended and attempt.class_ in _CLASSES:
                self._restarts.add(labels, str(enums.Role.TRAINER), attempt.class_)

    def _scaled(self, job: RLJob, before: JobStatus, after: JobStatus) -> None:
        recorded = before.scaling.history[-1:] if before.scaling else ()
        last = after.scaling.history[-1:] if after.scaling else ()
        labels = (job.metadata.namespace, job.metadata.name)
        for change in last if last != recorded else ():
            direction = "up" if change.to > change.from_ else "down"
            self._scales.add(labels, direction, _scaling_source(job))

    def _timed(self, before: JobStatus, after: JobStatus) -> None:
        began = clock.to_seconds(after.start_time)
        first, ended = clock.to_seconds(after.first_step_time), clock.to_seconds(after.completion_time)
        if began is None:
            return
        if before.start_time is None:
            self._startup.labels(metric_names.QUEUE).observe(max(0.0, began - _asked_at(after, began)))
        if first is not None and before.first_step_time is None:
            self._startup.labels(metric_names.FIRST_STEP).observe(max(0.0, first - began))
        if ended is not None and before.completion_time is None:
            complete = conditions.statuses(after.conditions).get(Type.COMPLETE) == "True"
            self._run.labels("complete" if complete else "failed").observe(max(0.0, ended - began))

    def forget(self, key: str) -> None:
        """End the series of a job that is gone."""
        row = self._rows.pop(key, None)
        if row is None:
            return
        self._recoveries.pop(key, None)
        self._starts.pop(key, None)
        for counter in (self._restarts, self._replacements, self._scales):
            counter.forget(row.labels)

    def exposition(self) -> bytes:
        return prometheus_client.generate_latest(self.registry)
