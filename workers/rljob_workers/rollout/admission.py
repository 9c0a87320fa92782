"""The door between episodes and the engine. Closed during a weight update: requests wait here, not in the engine.

The version that salts a request's prefix cache is read when the request passes, not when it arrives: after an update
a request that waited must not find blocks that the old weights filled. A request that the engine had to give up goes on
here too, so that no episode knows of it.
"""

import asyncio

from rljob_api import types
from rljob_workers.rollout import generation, resumption


class Admission:
    """Passes requests to the engine while open. Starts closed."""

    def __init__(self, engine: generation.Engine) -> None:
        """Guard `engine`."""
        self._engine = engine
        self._open = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._version = types.VersionId(0)
        self._inside = 0

    @property
    def is_open(self) -> bool:
        """Return whether requests pass."""
        return self._open.is_set()

    @property
    def num_inside(self) -> int:
        """Return how many requests have passed and not come back."""
        return self._inside

    def open(self, version: types.VersionId) -> None:
        """Let requests pass, salted with `version`."""
        self._version = version
        self._open.set()

    def close(self) -> None:
        """Let requests wait."""
        self._open.clear()

    async def drained(self) -> None:
        """Return when no request is inside."""
        await self._idle.wait()

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        """Wait for the door, then generate; what the engine could not keep goes on behind the next open door. Raises
        EngineError as the engine does, or for a result to be refused.
        """
        parts: list[generation.GenerationResult] = []
        while (rest := resumption.rest_of(request, parts)) is not None:
            parts.append(await self._once(rest))
            if parts[-1].stop_reason != generation.INTERRUPT:
                break
        return generation.checked(resumption.joined(parts))

    async def _once(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        while not self._open.is_set():
            await self._open.wait()
        self._inside += 1
        self._idle.clear()
        try:
            return await self._engine.generate(request, version=self._version)
        finally:
            self._inside -= 1
            if not self._inside:
                self._idle.set()
