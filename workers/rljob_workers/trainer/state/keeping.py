"""Where checkpoints last: on the volume that they are written to, or in an object store (uploading.py)."""

import dataclasses
from collections.abc import Callable
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DurableCheckpoint:
    """A checkpoint that outlives this node, where it is, and the seconds that writing it took training."""

    step: int
    uri: str
    seconds: float


class Keeper(Protocol):
    """Takes checkpoints as they are written and says when they last. All ranks call it alike."""

    def offer(self, *, step: int, seconds: float) -> None:
        """Take the checkpoint that was just written, in so many seconds."""

    def advance(self) -> DurableCheckpoint | None:
        """Return a checkpoint that lasts since the last call, if there is one. Never waits."""

    def settle(self, *, timeout_s: float) -> DurableCheckpoint | None:
        """Return the newest one once it lasts; None if there was none since the start. Raises StorageError."""

    def problem(self) -> str:
        """Return why checkpoints do not last at present, in a sentence; empty if they do, and on all ranks but 0."""

    def prune(self) -> None:
        """Remove what the manifest does not ask to keep."""

    def close(self) -> None:
        """End what goes on in the background."""


class OnVolume:
    """Checkpoints on a volume last when they are written."""

    def __init__(self, *, uri: Callable[[int], str], prune: Callable[[], object]) -> None:
        """`prune` removes what the manifest does not ask to keep."""
        self._uri, self._prune = uri, prune
        self._newest: DurableCheckpoint | None = None
        self._is_new = False

    def offer(self, *, step: int, seconds: float) -> None:
        self._newest, self._is_new = DurableCheckpoint(step=step, uri=self._uri(step), seconds=seconds), True

    def advance(self) -> DurableCheckpoint | None:
        newest, self._is_new = self._newest if self._is_new else None, False
        return newest

    def settle(self, *, timeout_s: float) -> DurableCheckpoint | None:
        del timeout_s  # nothing is waited for
        self._is_new = False
        return self._newest

    def problem(self) -> str:
        return ""

    def prune(self) -> None:
        self._prune()

    def close(self) -> None:
        """Nothing goes on."""
