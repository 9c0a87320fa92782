"""vLLM's own metrics alongside ours: its families are passed through from prometheus-client's default registry."""

from collections.abc import Iterable

import prometheus_client
from prometheus_client.metrics_core import Metric

PREFIX = "vllm:"


class _EngineCollector:
    """Yields what the engine registered; names nothing up front, because nothing is registered twice."""

    def collect(self) -> Iterable[Metric]:
        return [family for family in prometheus_client.REGISTRY.collect() if family.name.startswith(PREFIX)]

    def describe(self) -> Iterable[Metric]:
        """Return nothing: collecting at registration would be in vain."""
        return []


def expose(registry: prometheus_client.CollectorRegistry) -> None:
    registry.register(_EngineCollector())
