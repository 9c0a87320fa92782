"""What the rollout needs of an inference engine, and how one is found by `rollout.engine.type`.

An engine is a folder here whose module `engine` has a `REGISTRATION`, and its name in `ENGINES` of
rljob_api/manifest/rollout.py; or the entry point of an installed package, which is a `Registration`. Adding one:
docs/contributing.md.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import prometheus_client

from rljob_api import errors, plugins, types
from rljob_api.manifest.model import LoraSpec
from rljob_api.manifest.rollout import EngineSpec
from rljob_workers.rollout import generation


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the engine is built from. `image_path` and `image_bytes` name the shared image. kv_cache_bytes 0: its own
    choice. lora: what the image holds is an adapter of these sizes; None: all weights.

    progress_path: where the engine process writes how far a load has come; loaded_bytes: reads it.
    """

    model: Path
    engine: EngineSpec
    lora: LoraSpec | None = None
    kv_cache_bytes: int = 0
    trust_remote_code: bool
    image_path: str
    image_bytes: int
    progress_path: str
    loaded_bytes: Callable[[], int]


class Engine(Protocol):
    """An inference engine whose weights can be replaced between decode steps. All failures are EngineError."""

    async def start(self) -> None:
        """Load the model files and map the image. The label is unset until `commit`."""

    async def generate(
        self, request: generation.GenerationRequest, *, version: types.VersionId
    ) -> generation.GenerationResult:
        """Generate; `version` salts the prefix cache so that no request reuses blocks of other weights. Where not all
        requests are decoded at once, those of a lower `priority` come first.
        """

    def alive(self) -> bool:
        """Return False once the engine process has died."""

    def num_running(self) -> int:
        """Return how many requests are inside the engine."""

    def loaded_bytes(self) -> int:
        """Return how far the last load has come; a number that moves while one is in progress."""

    def num_generated(self) -> int:
        """Return tokens generated since the start, those of running requests included."""

    def num_prompt_tokens(self) -> int:
        """Return prompt tokens of finished requests since the start."""

    async def pause(self, *, clear_cache: bool) -> None:
        """Freeze running requests between two decode steps, none dropped. `clear_cache`: their KV is recomputed."""

    async def resume(self) -> None:
        """Continue."""

    async def load(self, layout: types.Layout) -> None:
        """Load all tensors of the mapped image. After a failure the weights are a mixture."""

    async def verify(self) -> None:
        """Finish the load. Raises unless every tensor was consumed exactly once and no layer is half loaded."""

    async def commit(self, version: types.VersionId) -> None:
        """Set the label that tokens carry from now on."""

    async def repair(self) -> None:
        """Undo the bookkeeping of a broken load so that a complete one can follow."""

    async def abort_all(self) -> None:
        """End all requests inside the engine; their callers get what was sampled, with stop reason INTERRUPT."""

    async def restart(self) -> None:
        """Replace the engine process by a new one with the weights of the model files, paused by no one."""

    async def close(self) -> None:
        """End the engine process."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What the rollout calls to run an engine.

    environment: the variables that must be set before the engine's library is imported, given the number of threads
    (0: as many as it likes). make: an engine that has not started. expose_metrics: adds its own metrics to a registry.
    serves_adapters: whether its `load` takes an image of an adapter (`Settings.lora`). prepare: called once, with those
    variables set, while the process still has one thread: the time to import what takes long, and to fork.
    """

    environment: Callable[[int], Mapping[str, str]]
    make: Callable[[Settings], Engine]
    expose_metrics: Callable[[prometheus_client.CollectorRegistry], None]
    serves_adapters: bool = False
    prepare: Callable[[], None] = lambda: None


def find(type_: str, *, adapted: bool = False) -> Registration:
    """Return the engine of `rollout.engine.type`; only its module is imported. adapted: the job trains an adapter.

    Raises ManifestError for a plugin that is not installed, does not import, is not a Registration, or serves no
    adapters where one is trained.
    """
    registration = _find(type_)
    if adapted and not registration.serves_adapters:
        raise errors.ManifestError(
            f"spec.model.lora is set, but the engine {type_} of spec.rollout.engine.type serves no adapters: leave lora"
            " out, or use vllm"
        )
    return registration


def _find(type_: str) -> Registration:
    if not plugins.plugin_name(type_):
        registration = importlib.import_module(f"{__package__}.{type_}.engine").REGISTRATION
        assert isinstance(registration, Registration), f"REGISTRATION of {type_} is a Registration"
        return registration
    field = "spec.rollout.engine.type"
    plugin = plugins.load(plugins.ENGINES, type_, field=field)
    if not isinstance(plugin, Registration):
        raise errors.ManifestError(f"{field} is {type_!r}, which is {type(plugin).__name__} and not a Registration")
    return plugin
