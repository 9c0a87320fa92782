"""A plain synchronous gymnasium environment as an async one: it runs in a thread, off the event loop."""

import asyncio
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from rljob_workers.rollout.episodes import protocols

ObsT = TypeVar("ObsT")
ActionT = TypeVar("ActionT")
SeenT = TypeVar("SeenT", covariant=True)
TakenT = TypeVar("TakenT", contravariant=True)


class GymEnv(Protocol[SeenT, TakenT]):
    """What gymnasium.Env offers."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[SeenT, Mapping[str, object]]:
        """Start."""

    def step(self, action: TakenT) -> tuple[SeenT, float, bool, bool, Mapping[str, object]]:
        """Return obs, reward, terminated, truncated, info."""


class GymAdapter(Generic[ObsT, ActionT]):
    """Wraps one environment for one episode; satisfies protocols.Environment."""

    def __init__(self, inner: GymEnv[ObsT, ActionT]) -> None:
        """`inner` is used by one thread at a time."""
        self._inner = inner

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[ObsT, Mapping[str, object]]:
        """Start."""
        return await asyncio.to_thread(lambda: self._inner.reset(seed=seed, options=dict(options or {})))

    async def step(self, action: ActionT) -> tuple[ObsT | None, float, bool, bool, Mapping[str, object]]:
        """Step."""
        return await asyncio.to_thread(self._inner.step, action)

    async def aclose(self) -> None:
        """Close, if there is something to close."""
        close = getattr(self._inner, "close", None)
        if callable(close):
            await asyncio.to_thread(close)


def adapted(made: object) -> protocols.Environment[ObsT, ActionT]:
    """Return a synchronous environment as an async one."""
    environment: protocols.Environment[ObsT, ActionT] = GymAdapter(made)  # type: ignore[arg-type]  # checked by forms
    return environment
