"""What the rollout needs of an inference engine. An engine is one folder here and one row of `registry.py`."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rljob_api import roles, types
from rljob_workers.rollout import generation


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the engine is built from. `image_path` and `image_bytes` name the shared image.

    progress_path: where the engine process writes how far a load has come; loaded_bytes: reads it.
    """

    model: Path
    engine: roles.EngineConfig
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
        """Generate; `version` salts the prefix cache so that no request reuses blocks of other weights."""

    def alive(self) -> bool:
        """Return False once the engine process has died."""

    def num_running(self) -> int:
        """Return how many requests are inside the engine."""

    def loaded_bytes(self) -> int:
        """Return how far the last load has come; a number that moves while one goes on."""

    def num_generated(self) -> int:
        """Return tokens generated since the start, those of running requests included."""

    def num_prompt_tokens(self) -> int:
        """Return prompt tokens of finished requests since the start."""

    async def pause(self, *, clear_cache: bool) -> None:
        """Freeze running requests between two decode steps, none dropped. `clear_cache`: their KV is recomputed."""

    async def resume(self) -> None:
        """Go on."""

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
        """Replace the engine process by a new one with the weights of the model files, paused by nobody."""

    async def close(self) -> None:
        """End the engine process."""
