"""Keeps the weight store's process alive. The child dies with this process; if it dies alone it is started again."""

import asyncio
import contextlib
import logging
import pathlib
import sys

from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import retry

logger = logging.getLogger(__name__)
_GRACE_S = 3.0


class StoreProcess:
    """The store as a child. `ready` is true while its port answers."""

    def __init__(self, *, config_path: pathlib.Path, host: str, port: int, clock: clocks.Clock) -> None:
        """Start nothing yet."""
        self._config_path, self._host, self._port, self._clock = config_path, host, port, clock
        self._process: asyncio.subprocess.Process | None = None
        self.ready = False

    @property
    def pid(self) -> int | None:
        """Return the child's process id."""
        return None if self._process is None else self._process.pid

    async def run(self) -> None:
        """Start the child and start it again whenever it ends, until cancelled."""
        backoff = retry.Backoff(first_s=0.2, most_s=10.0)
        try:
            while True:
                await self._start()
                code = await self._watch(backoff)
                self.ready = False
                logger.error("the weight store ended with code %s and is started again", code)
                await self._clock.sleep(backoff.next_delay_s())
        finally:
            self.ready = False
            await self._end()

    async def _start(self) -> None:
        # From the main thread: the child asks the kernel to die with the thread that started it.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rljob_workers.coordinator.weight_store",
            "--config",
            str(self._config_path),
            stdin=asyncio.subprocess.PIPE,
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
        return await ending

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True

    async def _end(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _GRACE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def connect_host(bind_host: str) -> str:
    """Return the address under which a server bound to `bind_host` answers on this machine."""
    return "127.0.0.1" if bind_host in ("0.0.0.0", "::", "") else bind_host
