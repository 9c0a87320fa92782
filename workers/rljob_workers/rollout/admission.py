"""The door between episodes and the engine. Closed during a weight update: requests wait here, not in the engine.

The version that salts a request's prefix cache is read when the request passes, not when it arrives: after an update
a request that waited must not find blocks that the old weights filled.
"""

import asyncio

from rljob_api import types
from rljob_workers.rollout import generation


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
        """Wait for the door, then generate. Raises EngineError as the engine does, or for a result to be refused."""
        while not self._open.is_set():
            await self._open.wait()
        self._inside += 1
        self._idle.clear()
        try:
            return generation.checked(await self._engine.generate(request, version=self._version))
        finally:
            self._inside -= 1
            if not self._inside:
                self._idle.set()
