"""The inference engines that a rollout may run, by name. Adding one: docs/contributing.md."""

import dataclasses
from collections.abc import Callable, Mapping

import prometheus_client

from rljob_workers.rollout.engines import base
from rljob_workers.rollout.engines.vllm import engine as vllm_engine
from rljob_workers.rollout.engines.vllm import metrics as vllm_metrics

DEFAULT = "vllm"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What the rollout calls to run an engine.

    environment: the variables that must be set before the engine's library is imported, given the number of threads
    (0: as many as it likes). make: an engine that has not started. expose_metrics: adds its own metrics to a registry.
    """

    environment: Callable[[int], Mapping[str, str]]
    make: Callable[[base.Settings], base.Engine]
    expose_metrics: Callable[[prometheus_client.CollectorRegistry], None]


ENGINES: Mapping[str, Registration] = {
    "vllm": Registration(
        environment=lambda num_threads: vllm_engine.environment(num_threads=num_threads),
        make=lambda settings: vllm_engine.VllmEngine(settings),
        expose_metrics=vllm_metrics.expose,
    ),
}
