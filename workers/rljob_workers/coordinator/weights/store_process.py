"""Keeps the weight store's process alive. The child dies with this process; if it dies alone it is started again.

The child's standard input is a socket on which it says every second that its event loop turns. One that says nothing
for long, as on a disk that hangs, is ended and started again: else every trainer would be in its upload.
"""

import asyncio
import contextlib
import logging
import pathlib
import socket
import sys

from rljob_workers.runtime import boot, retry
from rljob_workers.runtime import clock as clocks

logger = logging.getLogger(__name__)
_GRACE_S = 3.0
# Far above what a busy machine holds a process up, and below what a trainer waits for its upload.
SILENT_S = 60.0
_LOOK_S = 1.0


class StoreProcess:
    """The store as a child. `ready` is true while its port answers and it is heard of."""

    def __init__(
        self, *, config_path: pathlib.Path, host: str, port: int, clock: clocks.Clock, silent_s: float = SILENT_S
    ) -> None:
        """silent_s: how long a child may say nothing before it is ended."""
        self._config_path, self._host, self._port, self._clock = config_path, host, port, clock
        self._silent_s = silent_s
        self._process: asyncio.subprocess.Process | None = None
        self._beats: socket.socket | None = None
        self.ready = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def run(self) -> None:
        """Start the child and start it again whenever it ends, until cancelled."""
        backoff = retry.Backoff(first_s=0.2, most_s=10.0)
        try:
            while True:
                await self._start()
                code = await self._watch(backoff)
                self.ready = False
                self._close_beats()
                logger.error("the weight store exited with code %s and is restarted", code)
                await self._clock.sleep(backoff.next_delay_s())
        finally:
            self.ready = False
            await boot.end_child(self._process, grace_s=_GRACE_S)
            self._close_beats()

    async def _start(self) -> None:
        self._beats, theirs = socket.socketpair()
        self._beats.setblocking(False)
        # From the main thread: the child asks the kernel to die with the thread that started it.
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "rljob_workers.coordinator.weights.store",
                "--config",
                str(self._config_path),
                stdin=theirs.fileno(),
            )

    async def _watch(self, backoff: retry.Backoff) -> int:
        assert self._process is not None, "started before it is watched"
        ending = asyncio.create_task(self._process.wait())
        while not ending.done() and not self.ready:
            self.ready = await self._answers()
            if self.ready:
                backoff.reset()
            else:
                await asyncio.wait({ending}, timeout=0.05)
        heard_at = self._clock.monotonic()
        while not ending.done():
            await asyncio.wait({ending}, timeout=_LOOK_S)
            if self._heard():
                heard_at = self._clock.monotonic()
            elif self._clock.monotonic() - heard_at >= self._silent_s and not ending.done():
                logger.error("the weight store has not responded for %.0f s and is stopped", self._silent_s)
                self.ready = False
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                break
        return await ending

    def _heard(self) -> bool:
        """Take what the child has said since the last look."""
        assert self._beats is not None, "made with the child"
        try:
            return bool(self._beats.recv(4096))
        except (BlockingIOError, ConnectionError):
            return False

    def _close_beats(self) -> None:
        if self._beats is not None:
            self._beats.close()

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True


def connect_host(bind_host: str) -> str:
    """Return the address under which a server bound to `bind_host` answers on this machine."""
    return "127.0.0.1" if bind_host in ("0.0.0.0", "::", "") else bind_host
