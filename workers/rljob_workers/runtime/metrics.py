"""Prometheus metrics of one process, made from the declarations in `rljob_api.metric_names` and nothing else.

Every job-level series carries `rljob_namespace` and `rljob`. A gauge is absent until its first value.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import prometheus_client
from prometheus_client.metrics import MetricWrapperBase

from rljob_api import enums, metric_names, process_config

FamilyT = TypeVar("FamilyT", bound=MetricWrapperBase)


class _Series(Generic[FamilyT]):
    """The series of a family by labels; looked up once each, because the library checks every label every time."""

    def __init__(self, family: FamilyT, identity: dict[str, str]) -> None:
        """Wrap a family whose first labels are the job's."""
        self._family, self._identity = family, identity
        self._children: dict[tuple[tuple[str, str], ...], FamilyT] = {}

    def _of(self, labels: dict[str, str]) -> FamilyT:
        key = tuple(labels.items())
        if key not in self._children:
            self._children[key] = self._family.labels(**self._identity, **labels)
        return self._children[key]


class Counter(_Series[prometheus_client.Counter]):
    """A counter; labels by keyword."""

    def inc(self, by: float = 1.0, /, **labels: str) -> None:
        """Add `by`, which must not be negative."""
        self._of(labels).inc(by)


class Gauge(_Series[prometheus_client.Gauge]):
    """A gauge; labels by keyword."""

    def set(self, value: float, /, **labels: str) -> None:
        self._of(labels).set(value)


class Histogram(_Series[prometheus_client.Histogram]):
    """A histogram; labels by keyword."""

    def observe(self, value: float, /, **labels: str) -> None:
        self._of(labels).observe(value)

    def show(self, **labels: str) -> None:
        """Show the series from 0: Prometheus sees no increase in one that begins with its first event."""
        self._of(labels)


class Metrics:
    """The registry of a process, with every metric that its role declares."""

    def __init__(self, *, role: enums.Role, job: process_config.JobIdentity) -> None:
        """Declare the metrics of `role`, and the trained tokens of the trainer, in a registry of their own."""
        # A series of its own for the birth of each series is asked for by nothing that reads the text format.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types there
        self.registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        identity = {"rljob_namespace": job.namespace, "rljob": job.name}
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        self._before: list[Callable[[], None]] = []
        for metric in metric_names.METRICS:
            if metric.role is role or (role is enums.Role.TRAINER and metric.name == "rljob_tokens_total"):
                self._declare(metric, identity)

    def _declare(self, metric: metric_names.Metric, identity: dict[str, str]) -> None:
        labels = (*identity, *metric.labels)
        if metric.kind == "c":
            counter = prometheus_client.Counter(metric.name, metric.help, labels, registry=self.registry)
            if not metric.labels:
                # Shown from 0: Prometheus sees no increase in a series that begins with its first event.
                counter.labels(**identity)
            self._counters[metric.name] = Counter(counter, identity)
        elif metric.kind == "g":
            gauge = prometheus_client.Gauge(metric.name, metric.help, labels, registry=self.registry)
            self._gauges[metric.name] = Gauge(gauge, identity)
        else:
            family = prometheus_client.Histogram(
                metric.name, metric.help, labels, registry=self.registry, buckets=metric.buckets
            )
            self._histograms[metric.name] = Histogram(family, identity)

    def counter(self, name: str) -> Counter:
        """Raises KeyError if this role declares none."""
        return self._counters[name]

    def gauge(self, name: str) -> Gauge:
        """Raises KeyError if this role declares none."""
        return self._gauges[name]

    def histogram(self, name: str) -> Histogram:
        """Raises KeyError if this role declares none."""
        return self._histograms[name]

    def before_exposition(self, settle: Callable[[], None]) -> None:
        """Call `settle` before every look, on the thread that looks: what is in progress is counted while it lasts."""
        self._before.append(settle)

    def exposition(self) -> bytes:
        for settle in self._before:
            settle()
        return prometheus_client.generate_latest(self.registry)
