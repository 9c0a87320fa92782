"""Wires an environment together: places, gRPC server, probes. Started and ended as one."""

import asyncio
import dataclasses
import functools
import logging
import pathlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc.aio

from rljob_api import enums, process_config
from rljob_workers.environment import pool, worker
from rljob_workers.rpc import channel, environment_service
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.verifier.sandbox import shell
from rljob_workers.verifier.sandbox.processes import launcher, removal

logger = logging.getLogger(__name__)

_DRAIN_S = 5.0
# Most that one call may ask for: seconds of a command, bytes of a stream or a file, characters of a command.
MAX_TIMEOUT_S, MAX_BYTES, MAX_COMMAND = 600.0, 1 << 20, 64 << 10
_WORKER = "rljob_workers.environment.worker"


def places_folder(config: process_config.EnvironmentConfig) -> pathlib.Path:
    """Return where the folders of places lie."""
    return pathlib.Path(config.scratch_dir) / "places"


def launch_of(config: process_config.EnvironmentConfig) -> launcher.Launch:
    """Return what starts one place below the config's scratch folder."""
    budget = shell.Budget(**{field.name: getattr(config, field.name) for field in dataclasses.fields(shell.Budget)})
    return functools.partial(
        launcher.start,
        module=_WORKER,
        arguments=(),
        hello={"budget": dataclasses.asdict(budget)},
        scratch=places_folder(config),
        max_reply_bytes=worker.MAX_REPLY_BYTES,
    )


class Places:
    """What a pool lends, within the bounds of one call. An `environment_service.Lends`."""

    def __init__(self, lent: pool.Pool, *, lease_s: float, metrics: metrics_module.Metrics) -> None:
        self._pool, self.lease_s, self._metrics = lent, lease_s, metrics

    async def claim(self, episode: str, wait_s: float) -> str:
        return await self._pool.claim(episode[:200], min(max(0.0, wait_s), MAX_TIMEOUT_S))

    async def command(self, lease: str, command: str, *, timeout_s: float, max_output: int) -> Mapping[str, Any]:
        if len(command) > MAX_COMMAND:
            return {"refused": f"a command has at most {MAX_COMMAND} characters, not {len(command)}"}
        if not timeout_s > 0.0:
            return {"refused": f"timeout_s is {timeout_s:g}: it must be above 0"}
        timeout_s = min(timeout_s, MAX_TIMEOUT_S)
        limits = {"timeout_s": timeout_s, "max_output": min(max_output, MAX_BYTES)}
        started_s = time.monotonic()
        reply = await self._pool.call(lease, {"call": "exec", "command": command, **limits}, timeout_s=timeout_s)
        self._metrics.histogram("rljob_environment_command_seconds").observe(time.monotonic() - started_s)
        return reply if "refused" in reply else {**reply, **_decoded(reply, "stdout", "stderr")}

    async def read(self, lease: str, path: str, max_bytes: int) -> Mapping[str, Any]:
        request = {"call": "read", "path": path[:4096], "max_bytes": min(max_bytes, MAX_BYTES)}
        reply = await self._pool.call(lease, request)
        return reply if "refused" in reply else _decoded(reply, "data")

    async def write(self, lease: str, path: str, data: bytes) -> Mapping[str, Any]:
        if len(data) > MAX_BYTES:
            return {"refused": f"a file is written with at most {MAX_BYTES} bytes, not {len(data)}"}
        return await self._pool.call(lease, {"call": "write", "path": path[:4096], "data": worker.text_of(data)})

    async def reset(self, lease: str) -> None:
        await self._pool.call(lease, {"call": "reset"})

    async def release(self, lease: str) -> None:
        await self._pool.release(lease)


def _decoded(reply: Mapping[str, object], *names: str) -> dict[str, bytes]:
    return {name: worker.data_of(reply[name]) for name in names}


class Service:
    """A whole environment. `start`, then `run` until `stop`, then `close`."""

    def __init__(
        self,
        config: process_config.EnvironmentConfig,
        *,
        launch: Callable[[], Awaitable[launcher.Worker]] | None = None,
        clock: clocks.Clock | None = None,
    ) -> None:
        """Build everything, start nothing."""
        self._config = config
        self.metrics = metrics_module.Metrics(role=enums.Role.ENVIRONMENT, job=config.job)
        size = pool.Size(num_places=config.num_places, max_waiting=config.max_waiting, lease_s=config.lease_s)
        self._pool = pool.Pool(
            size=size, launch=launch or launch_of(config), metrics=self.metrics, clock=clock or clocks.SystemClock()
        )
        self._server: grpc.aio.Server | None = None
        self._stopping = asyncio.Event()
        self._is_started = False
        self.port = 0

    async def start(self) -> None:
        """Start the places, then serve. Raises SandboxError where confinement does not hold, UnavailableError.

        What places of a process that was killed left is removed before.
        """
        if places_folder(self._config).is_dir():
            await asyncio.to_thread(removal.remove_tree, str(places_folder(self._config)))
        await self._pool.start()
        self._server = channel.aio_server(self._config)
        places = Places(self._pool, lease_s=self._config.lease_s, metrics=self.metrics)
        environment_service.serve(places, self._server)
        self.port = channel.bind(self._server, f"{self._config.bind_host}:{self._config.port}", self._config.tls)
        await self._server.start()
        self._is_started = True
        logger.info("environment served %d places on %s:%d", self._config.num_places, self._config.bind_host, self.port)

    def ready(self) -> tuple[bool, str]:
        """Return whether places can be claimed, and if not why. Safe from another thread."""
        if not self._is_started:
            return False, "starting"
        return (False, self._pool.failure) if self._pool.failure else (True, "ok")

    def stop(self) -> None:
        """Ask `run` to return."""
        self._stopping.set()

    async def run(self) -> None:
        """Return after `stop`."""
        await self._stopping.wait()

    async def close(self) -> None:
        """Refuse new calls, give those under way 5 s, and end all places."""
        if self._server is not None:
            await self._server.stop(_DRAIN_S)
        await self._pool.close()
