"""Keeps a process per tracker alive alongside the coordinator. Whatever becomes of them, the run takes no notice."""

import asyncio
import contextlib
import logging
import os
import pathlib
import sys
from collections.abc import Sequence

from rljob_api import enums, process_config
from rljob_api.manifest import trackers
from rljob_workers.coordinator.trackers import base, follower
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import retry

logger = logging.getLogger(__name__)
# What is delivered at the end of a run, a coordinator's own time to end being 10 s.
GRACE_S = 4.0
_HEALTHY_AFTER_S = 60.0
_MODULE = "rljob_workers.coordinator.trackers.follower"


class TrackerProcess:
    """One tracker's process, started again whenever it ends, with delays of up to a minute.

    grace_s: what it gets at the end. command: of the process, `python -m` and what follows.
    """

    def __init__(
        self,
        spec: trackers.TrackerSpec,
        *,
        config_path: pathlib.Path,
        clock: clocks.Clock,
        grace_s: float = GRACE_S,
        command: Sequence[str] = (sys.executable, "-m", _MODULE),
    ) -> None:
        """Start nothing yet."""
        self.spec, self._clock, self._grace_s = spec, clock, grace_s
        self._command = (*command, "--config", str(config_path))
        self._process: asyncio.subprocess.Process | None = None
        self._is_unusable = False

    @property
    def pid(self) -> int | None:
        """Return the process id, None while none runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Start the process, and again when it ends, until cancelled. Returns where it cannot work before a restart of
        the coordinator: its package is not installed, or it refuses its options.
        """
        backoff = retry.Backoff(first_s=1.0, most_s=60.0)
        while not self._is_unusable:
            began = self._clock.monotonic()
            code = await self._run_once()
            if self._clock.monotonic() - began >= _HEALTHY_AFTER_S:
                backoff.reset()
            self._is_unusable = code == enums.ExitCode.CONFIGURATION
            delay_s = backoff.next_delay_s()
            then = "is not started again" if self._is_unusable else f"is started again in {delay_s:.1f} s"
            logger.error(
                "tracker %r (%s) exited with code %s and %s; training is not affected", self.spec.name, self.spec.type,
                code, then, extra={"event": "tracker_exited"},
            )  # fmt: skip
            await self._clock.sleep(delay_s)

    async def close(self) -> None:
        """Let it deliver what is left, for `grace_s`; one that waits to be started again is started for that."""
        if self._is_unusable:
            return
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(self._grace_s):
                if self.pid is None:
                    await self._start()
                assert self._process is not None, "just started, or running"
                assert self._process.stdin is not None, "started with a pipe"
                self._process.stdin.close()
                await self._process.wait()
        if self.pid is not None:
            assert self._process is not None, "it has a process id"
            self._process.kill()
            await self._process.wait()

    async def _run_once(self) -> int | str:
        try:
            await self._start()
        except OSError as error:
            return f"none, for it could not be started: {error.strerror}"
        assert self._process is not None, "just started"
        return await self._process.wait()

    async def _start(self) -> None:
        # From the main thread: the child asks the kernel to die with the thread that started it.
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, follower.TRACKER_VARIABLE: self.spec.name},
        )


class Trackers:
    """All trackers of a coordinator."""

    def __init__(
        self, config: process_config.CoordinatorConfig, *, config_path: pathlib.Path, clock: clocks.Clock
    ) -> None:
        """Start nothing yet."""
        self._config = config
        self._processes = [
            TrackerProcess(spec, config_path=config_path, clock=clock) for spec in config.spec.observability.trackers
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start a process each."""
        self._tasks = [asyncio.create_task(process.run(), name="tracker") for process in self._processes]

    async def close(self, *, last_seq: int) -> None:
        """Let them deliver what is left of the history, whose last line is `last_seq`, and report what is not."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(process.close() for process in self._processes))
        for process in self._processes:
            stored = follower.delivered(base.folder(self._config, process.spec.name))
            if stored < last_seq:
                logger.warning(
                    "tracker %r (%s) has not stored lines %d to %d of history.jsonl; it gets them when the run"
                    " continues", process.spec.name, process.spec.type, stored + 1, last_seq,
                    extra={"event": "tracker_behind"},
                )  # fmt: skip
