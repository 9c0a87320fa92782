"""Wires a verifier together: graders, pool, grading, gRPC server, probes. Started and ended as one."""

import asyncio
import contextlib
import functools
import logging
import pathlib
import shutil
from collections.abc import Sequence

import grpc.aio

from rljob_api import enums, errors, process_config
from rljob_api.manifest.base import num_bytes
from rljob_api.manifest.verifier import PROGRAM_REWARDS, REPOSITORY_TESTS
from rljob_workers.rpc import channel, verify_service
from rljob_workers.runtime import clock
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.verifier import calibration, grading, pool, worker
from rljob_workers.verifier.graders import base, registry
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import confine, cpu_timing, launcher, spawn, warm

logger = logging.getLogger(__name__)

WORKER_MODULE = "rljob_workers.verifier.worker"
# Kills come one CPU limit apart in each slot and a replacement takes about a second: few spares cover many slots.
_SLOTS_PER_SPARE = 4
_DRAIN_S = 5.0


def make_graders(config: process_config.VerifierConfig, extra: Sequence[str] = ()) -> tuple[base.Grader, ...]:
    """Raises ManifestError or SandboxError for what a config may not ask for."""
    if config.execution.isolation.type == "None" and not config.execution.allow_unsafe:
        raise errors.SandboxError("spec.verifier.isolation.type is None, which needs spec.verifier.allowUnsafe: true")
    return registry.build(config.rewards, {**registry.BUILT_IN, **registry.imported(extra)})


def programs_of(config: process_config.VerifierConfig) -> list[str]:
    """Return the names of the rewards that run what the policy wrote."""
    return [reward.name for reward in config.rewards if reward.type in PROGRAM_REWARDS]


def import_packages(config: process_config.VerifierConfig) -> None:
    """Import once what programs may import, as their interpreters will. Raises ManifestError for what cannot be."""
    for reward in config.rewards:
        with contextlib.closing(warm.Interpreter(reward.packages)) as interpreter:
            try:
                if reward.packages:
                    interpreter.ready()
            except spawn.CannotRunError as error:
                names = ", ".join(reward.packages)
                raise errors.ManifestError(
                    f"reward {reward.name!r}: packages {names} cannot be used: {error}"
                ) from error


def _scratch_of(config: process_config.VerifierConfig) -> pathlib.Path | None:
    """Return where workers get folders to write to: only where they lay out repositories."""
    if any(reward.type == REPOSITORY_TESTS for reward in config.rewards):
        return pathlib.Path(config.scratch_dir, "repositories")
    return None


def make_pool(
    config: process_config.VerifierConfig, *, num_slots: int, metrics: metrics_module.Metrics, extra: Sequence[str] = ()
) -> pool.Pool:
    """Return the pool of a config. `extra`: further grader types for its workers, as `name=module:attribute`."""
    hello = worker.Hello(
        rewards=config.rewards,
        memory_bytes=num_bytes(config.execution.memory),
        isolation=config.execution.isolation,
    )
    launch = functools.partial(
        launcher.start,
        module=WORKER_MODULE,
        arguments=[word for entry in extra for word in ("--grader", entry)],
        hello=hello.payload(),
        scratch=_scratch_of(config),
    )
    size = pool.Size(
        num_slots=num_slots,
        num_spares=-(-num_slots // _SLOTS_PER_SPARE),
        max_waiting=config.max_waiting,
    )
    return pool.Pool(size=size, launch=launch, metrics=metrics, clock=clock.SystemClock())


async def measured() -> Sequence[float]:
    """Return how long the fixed program took here, in CPU seconds [5]. Raises CannotRunError."""
    return await asyncio.to_thread(cpu_timing.repetitions_s)


class Service:
    """A whole verifier. `start`, then `run` until `stop`, then `close`."""

    def __init__(
        self,
        config: process_config.VerifierConfig,
        *,
        extra: Sequence[str] = (),
        measure: calibration.Measure = measured,
        time: clock.Clock | None = None,
    ) -> None:
        """Build everything, start nothing. Raises ManifestError or SandboxError for what cannot be served.

        measure, time: how fast this machine is, as `calibration.py` asks for it, and by which clock; the machine's own
        without one.
        """
        self._config, self._programs = config, programs_of(config)
        graders = make_graders(config, extra)
        # Where every grader decides in place there is nothing to isolate, and no worker is kept.
        self._num_slots = config.num_slots if any(grader.needs_worker for grader in graders) else 0
        self.metrics = metrics_module.Metrics(role=enums.Role.VERIFIER, job=config.job)
        self._pool = make_pool(config, num_slots=self._num_slots, metrics=self.metrics, extra=extra)
        self._calibration = calibration.Calibration(
            measure=measure, metrics=self.metrics, clock=time or clock.SystemClock()
        )
        self.grading = grading.Grading(
            rewards=config.rewards,
            graders=graders,
            workers=self._pool,
            metrics=self.metrics,
            cpu_factor=lambda: self._calibration.factor,
        )
        self._server: grpc.aio.Server | None = None
        self._stopping = asyncio.Event()
        self.port = 0

    async def start(self) -> None:
        """Start workers, then serve. Raises SandboxError or UnavailableError; `close` is safe after that."""
        if self._config.execution.isolation.runtime_class:
            # Where there is no Landlock a program can open /proc, and this process holds answers and a key.
            confine.hide()
        scratch = _scratch_of(self._config)
        if scratch is not None:
            # What a verifier left here that was killed itself: the folder is this process's alone.
            shutil.rmtree(scratch, ignore_errors=True)
        if self._num_slots:
            # Before the workers start, which would be neighbours.
            await self._calibration.measure()
        await asyncio.to_thread(import_packages, self._config)
        await self._pool.start()
        self._server = channel.aio_server(self._config)
        verify_service.serve(self.grading, self._server)
        address = f"{self._config.bind_host}:{self._config.port}"
        self.port = channel.bind(self._server, address, self._config.tls)
        await self._server.start()
        if self._programs and self._config.execution.isolation.type == "None":
            logger.warning(
                "rewards %s run what the policy wrote; only its time, memory, processes and output are limited",
                ", ".join(self._programs),
            )
        elif self._programs:
            logger.info("rewards %s run programs at level %s", ", ".join(self._programs), profile.LEVEL)
        logger.info("verifier served on %s:%d; workers had no_new_privs and rlimits", self._config.bind_host, self.port)

    def ready(self) -> tuple[bool, str]:
        """Return whether items will be graded, and if not why. Safe from another thread."""
        if not self.port:
            return False, "starting"
        return (False, self._pool.failure) if self._pool.failure else (True, "ok")

    def stop(self) -> None:
        """Ask `run` to return."""
        self._stopping.set()

    async def run(self) -> None:
        """Return after `stop`. Raises what ended a part that nothing is graded without."""
        waits = [asyncio.create_task(self._stopping.wait()), asyncio.create_task(self._pool.watch())]
        if self._num_slots:
            waits.append(asyncio.create_task(self._calibration.keep()))
        done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()

    async def close(self) -> None:
        """Refuse new calls, give those under way 5 s, end every worker."""
        if self._server is not None:
            await self._server.stop(_DRAIN_S)
        await self._pool.close()
