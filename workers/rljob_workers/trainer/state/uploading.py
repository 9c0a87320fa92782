"""Checkpoints sent to an object store behind training: one at a time, and the newest next.

    train thread    | write 10 | steps ... | write 20 | steps ... | write 30 | steps ...
    upload thread              | send 10 ............................| send 30 ....
                                 20 waits, until 30 takes its place

Every rank sends its own files; rank 0 then waits for the records of the others in the store, writes COMPLETE.json and
removes what need not be kept. Which checkpoint is sent next is agreed on by all ranks between steps: one that only some
of them had sent would never be whole.

A store that does not answer is asked again, with growing pauses. After `RETRY_FOR_S` without progress the try has
failed: it is counted, and made again a minute later or with the next checkpoint. Training goes on all the while, and
needs room on the node for three checkpoints: the one on its way, the one that waits, and the one being written.
"""

import concurrent.futures
import dataclasses
import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from rljob_api import errors
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import retry
from rljob_workers.trainer.state import checkpoint, keeping, remote

logger = logging.getLogger(__name__)

RETRY_FOR_S = 600.0
_AGAIN_S = 60.0
_POLL_S = 1.0


class Ranks(Protocol):
    """What uploading needs of the engine."""

    rank: int
    world_size: int

    def largest(self, values: Sequence[float]) -> list[float]:
        """Take the largest of each value over ranks."""


class UploadMeter(Protocol):
    """Counts what rank 0 sees of uploads; called by the upload thread."""

    def uploaded(self, num_bytes: int, seconds: float) -> None:
        """A checkpoint of so many bytes is whole in the store."""

    def upload_failed(self) -> None:
        """A try failed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What stays in the store (`checkpoint.keepLast`, `checkpoint.keepEvery`; 0: none)."""

    keep_last: int
    keep_every: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    """A checkpoint on this node, and what writing it took."""

    local: checkpoint.Checkpoint
    seconds: float

    @property
    def step(self) -> int:
        return self.local.progress.step


class Uploader:
    """The keeper of checkpoints in an object store; one on each rank."""

    def __init__(
        self,
        *,
        store: remote.RemoteCheckpoints,
        node: checkpoint.CheckpointStore,
        ranks: Ranks,
        is_first_of_node: bool,
        retention: Retention,
        clock: clocks.Clock,
        meter: UploadMeter | None = None,
        resumed: keeping.DurableCheckpoint | None = None,
        retry_for_s: float = RETRY_FOR_S,
    ) -> None:
        """`node`: the checkpoints of this node, of which the first rank of it removes those that are not needed.

        resumed: the newest one that is in the store already.
        """
        self._store, self._node, self._ranks, self._first = store, node, ranks, is_first_of_node
        self._retention, self._clock, self._meter, self._retry_for_s = retention, clock, meter, retry_for_s
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._closing = threading.Event()
        self._sending: tuple[_Offered, concurrent.futures.Future[None]] | None = None
        self._waiting: _Offered | None = None
        self._again_at = 0.0
        self._durable = resumed
        # Set by the upload thread: a string is replaced whole.
        self._problem = ""

    def offer(self, *, step: int, seconds: float) -> None:
        local = self._node.at(step)
        assert local is not None, f"the checkpoint of step {step} is not on this node"
        self._waiting, self._again_at = _Offered(local=local, seconds=seconds), 0.0
        self._tidy(step)

    def advance(self) -> keeping.DurableCheckpoint | None:
        durable = None
        if self._sending is not None:
            busy, failed = self._agreed()
            if busy:
                return None
            durable = self._ended(failed=failed)
        if self._waiting is not None and self._is_time():
            self._start()
        return durable

    def settle(self, *, timeout_s: float) -> keeping.DurableCheckpoint | None:
        end = self._clock.monotonic() + timeout_s
        while self._sending is not None or self._waiting is not None:
            if self._sending is None:
                self._start()
            assert self._sending is not None, "one was started"
            offered, future = self._sending
            concurrent.futures.wait([future], timeout=_POLL_S)
            busy, failed = self._agreed()
            late = self._ranks.largest([float(self._clock.monotonic() > end)])[0] > 0
            if not busy:
                self._ended(failed=failed)
            if (busy and late) or (failed and not busy):
                why = self._problem or "another rank could not send its part"
                where = self._store.uri(offered.local.progress)
                raise errors.StorageError(f"the checkpoint of step {offered.step} is not in {where}: {why}")
        return self._durable

    def problem(self) -> str:
        if not self._problem or self._ranks.rank != 0:
            return ""
        newest = f"the newest there is of step {self._durable.step}" if self._durable else "there is none yet"
        return f"checkpoints are not uploaded, {newest}: {self._problem}"

    def prune(self) -> None:
        """The upload thread does so, once a newer one is whole."""

    def close(self) -> None:
        self._closing.set()
        self._pool.shutdown(cancel_futures=True)

    def _agreed(self) -> tuple[bool, bool]:
        """Return, equal on all ranks, whether any is still sending, and whether any has failed."""
        assert self._sending is not None, "something is being sent"
        future = self._sending[1]
        is_done = future.done()
        failed = is_done and future.exception() is not None
        busy, any_failed = self._ranks.largest([float(not is_done), float(failed)])
        return busy > 0, any_failed > 0

    def _ended(self, *, failed: bool) -> keeping.DurableCheckpoint | None:
        """All ranks are through with a checkpoint: take note, and let another one be next if that failed."""
        assert self._sending is not None, "something was sent"
        (offered, future), self._sending = self._sending, None
        error = future.exception()
        if error is not None and not isinstance(error, errors.StorageError):
            # A file of ours that cannot be read, or an attempt that was replaced: time does not fix it.
            raise errors.CheckpointError(f"the checkpoint of step {offered.step} cannot be sent: {error}") from error
        if failed:
            self._waiting = self._waiting or offered
            self._again_at = self._clock.monotonic() + _AGAIN_S
            return None
        uri = self._store.uri(offered.local.progress)
        self._durable = keeping.DurableCheckpoint(step=offered.step, uri=uri, seconds=offered.seconds)
        self._tidy(offered.step)
        return self._durable

    def _is_time(self) -> bool:
        """Return rank 0's opinion: clocks differ, and all must begin alike."""
        mine = self._ranks.rank == 0 and self._clock.monotonic() >= self._again_at
        return self._again_at == 0.0 or self._ranks.largest([float(mine)])[0] > 0

    def _start(self) -> None:
        assert self._waiting is not None, "one waits"
        offered, self._waiting = self._waiting, None
        self._sending = offered, self._pool.submit(self._send, offered)

    def _tidy(self, newest: int) -> None:
        """Remove from this node what is neither the newest, nor on its way, nor next. Only between sends."""
        if self._first:
            steps = {newest} | {each.step for each in (self._waiting, self._sending and self._sending[0]) if each}
            self._node.keep_only(steps)

    def _send(self, offered: _Offered) -> None:
        """The upload thread: send this rank's part, again where that fails. Raises StorageError, OSError."""
        started, num_sent = self._clock.monotonic(), 0
        progress = offered.local.progress

        def sent(num_bytes: int) -> None:
            nonlocal num_sent
            num_sent += num_bytes
            self._check_not_closing()

        def send() -> None:
            try:
                self._store.send_part(offered.local, self._ranks.rank, sent)
                if self._ranks.rank == 0:
                    self._seal(offered, started)
            except errors.StorageError as error:
                self._note(error, progress.step)
                raise

        retry.retry_moving(
            send,
            lambda: num_sent,
            idle_timeout_s=self._retry_for_s,
            backoff=retry.Backoff(first_s=1.0, most_s=30.0),
            now=self._clock.monotonic,
            sleep=self._pause,
        )
        self._problem = ""

    def _seal(self, offered: _Offered, started: float) -> None:
        """Rank 0: make it a checkpoint once every rank's record says that its part is there."""
        progress, since = offered.local.progress, self._clock.monotonic()
        parts = self._store.parts(progress, self._ranks.world_size)
        while len(parts.through) < self._ranks.world_size:
            if self._clock.monotonic() - since > self._retry_for_s:
                missing = sorted(set(range(self._ranks.world_size)) - parts.through.keys())
                raise errors.StorageError(f"ranks {missing} have not sent their parts of step {progress.step}")
            self._pause(_POLL_S)
            before, parts = parts, self._store.parts(progress, self._ranks.world_size)
            if parts.num_files > before.num_files:
                since = self._clock.monotonic()
        whole = self._store.seal(progress, parts)
        seconds = self._clock.monotonic() - started
        logger.info(
            "uploaded the checkpoint of step %d, %.1f MB in %.1f s", progress.step, whole.num_bytes / 1e6, seconds,
            extra={"event": "upload", "step": progress.step},
        )  # fmt: skip
        if self._meter is not None:
            self._meter.uploaded(whole.num_bytes, seconds)
        try:
            self._store.prune(keep_last=self._retention.keep_last, keep_every=self._retention.keep_every)
        except errors.StorageError as error:
            # What is left over is removed with the next one.
            logger.warning("older checkpoints stay for now: %s", error)

    def _note(self, error: errors.StorageError, step: int) -> None:
        logger.warning("the checkpoint of step %d is not uploaded yet: %s", step, error, extra={"step": step})
        self._problem = str(error)
        if self._meter is not None:
            self._meter.upload_failed()

    def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)
        self._check_not_closing()

    def _check_not_closing(self) -> None:
        if self._closing.is_set():
            raise errors.StorageAccessError("the trainer ends")
