"""This rank's conversation with the coordinator: waits for a batch, and asks again while no one answers."""

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from rljob_api import enums, types
from rljob_workers.rpc import train
from rljob_workers.runtime import retry

T = TypeVar("T")

# One long poll; short, so that a request to stop reaches the coordinator soon.
_POLL_S = 5.0


class BatchSource:
    """Fetches batches and commits steps. `stop` is set by anyone who asks this process to stop."""

    def __init__(
        self,
        *,
        transport: train.Batches,
        rank: int,
        world_size: int,
        stop: threading.Event,
        reconnect_timeout_s: float,
        supply: Callable[[int], None],
    ) -> None:
        """`reconnect_timeout_s`: how long an unreachable coordinator is asked again before UnavailableError rises;
        `supply`: sends a version again whose bytes the coordinator has lost.
        """
        self._transport, self._stop, self._supply = transport, stop, supply
        self._rank, self._world_size = rank, world_size
        self._reconnect_timeout_s = reconnect_timeout_s

    def fetch(self, step: int) -> train.Batch:
        """Return the answer for `step` once it is not NOT_READY. All ranks learn of a stop at the same step."""
        while True:
            batch = self._patiently(
                lambda: self._transport.fetch(
                    step=step,
                    rank=self._rank,
                    world_size=self._world_size,
                    wait_s=_POLL_S,
                    stop=self._stop.is_set(),
                )
            )
            if batch[0].kind is not enums.BatchKind.NOT_READY:
                return batch
            if batch[0].lost_version != types.NO_VERSION:
                self._supply(batch[0].lost_version)

    def commit_step(
        self,
        *,
        step: int,
        stats: Mapping[str, float],
        started_at: float,
        finished_at: float,
        storage_problem: str = "",
    ) -> None:
        """Report a finished step; rank 0 only."""
        self._patiently(
            lambda: self._transport.commit_step(
                step=step,
                stats=stats,
                started_at=started_at,
                finished_at=finished_at,
                storage_problem=storage_problem,
            )
        )

    def commit_checkpoint(self, *, step: int, uri: str, seconds: float, final: bool) -> None:
        """Report a durable checkpoint; rank 0 only."""
        self._patiently(lambda: self._transport.commit_checkpoint(step=step, uri=uri, seconds=seconds, final=final))

    def _patiently(self, call: Callable[[], T]) -> T:
        backoff = retry.Backoff(first_s=0.2, most_s=5.0)
        return retry.retry_sync(call, deadline_s=self._reconnect_timeout_s, backoff=backoff)
