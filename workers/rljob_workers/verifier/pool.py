"""Keeps warm grading workers, gives each answer to one, and ends the ones that do not come back.

    submit -> [waiting, bounded, FIFO] -> lane 1..N -> worker --reply--> grade
                                            |  CPU limit: SIGKILL, reason timeout
                                            |  wall cap (3x) alone: SIGKILL, infra_failure, graded again elsewhere
                                            |  death: once more on a fresh worker; the second is the answer's own doing
                                            +-- takes the next worker from [spares], which a nursery keeps full

A lane is one slot. The clock of an answer starts when its lane sends it to a worker. Nothing here looks at text, so
one answer cannot delay the others but by using a slot until its limit.
"""

import asyncio
import dataclasses
import logging
import signal
from collections.abc import Mapping

from rljob_api import errors, names
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.runtime import retry
from rljob_workers.verifier.graders import protocol
from rljob_workers.verifier.sandbox import launcher

logger = logging.getLogger(__name__)

WALL_FACTOR = 3
MOST_DEATHS = 2
WORKER_KILLER = "worker_killer"
_POLL_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one answer: CPU seconds (wall time is 3 times that), and how many may wait for a slot."""

    cpu_s: float
    num_slots: int
    num_spares: int
    max_waiting: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    request: bytes
    done: "asyncio.Future[protocol.Grade]"


class _StoppedError(Exception):
    """The supervisor killed the worker; `grade` says why."""

    def __init__(self, grade: protocol.Grade) -> None:
        super().__init__(grade.detail)
        self.grade = grade


class Pool:
    """Grades requests on killable workers. `start` before the first `submit`, `close` at the end."""

    def __init__(
        self, *, limits: Limits, launch: launcher.Launch, metrics: metrics_module.Metrics, clock: clocks.Clock
    ) -> None:
        """Nothing runs before `start`."""
        self._limits, self._launch, self._metrics, self._clock = limits, launch, metrics, clock
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._spares: asyncio.Queue[launcher.Worker | errors.SandboxError] = asyncio.Queue()
        self._wanted = asyncio.Semaphore(limits.num_spares)
        self._tasks: list[asyncio.Task[None]] = []
        self._num_busy = 0
        self._start_failure = ""

    async def start(self) -> None:
        """Start the workers and wait for one per slot. Raises SandboxError if they cannot start."""
        self._metrics.gauge("rljob_verifier_slots").set(self._limits.num_slots)
        self._show()
        first = await asyncio.gather(*(self._launch() for _ in range(self._limits.num_slots)), return_exceptions=True)
        workers = [worker for worker in first if not isinstance(worker, BaseException)]
        for failure in first:
            if isinstance(failure, BaseException):
                await asyncio.gather(*(worker.teardown() for worker in workers))
                raise failure
        self._tasks = [asyncio.create_task(self._nurse(), name="nursery")]
        self._tasks += [asyncio.create_task(self._lane(worker), name=f"lane-{n}") for n, worker in enumerate(workers)]

    async def watch(self) -> None:
        """Return never; raises what ended a lane or the nursery, because without them nothing is graded."""
        await asyncio.gather(*self._tasks)
        await asyncio.Event().wait()

    @property
    def failure(self) -> str:
        """Return why workers cannot be started at the moment, empty if they can."""
        return self._start_failure

    @property
    def num_waiting(self) -> int:
        """Return how many requests wait for a slot."""
        return self._jobs.qsize()

    def admits(self, count: int) -> bool:
        """Return whether `count` more requests may wait. Decide and submit without giving way in between."""
        return self._jobs.qsize() + count <= self._limits.max_waiting

    def submit(self, request: bytes) -> "asyncio.Future[protocol.Grade]":
        """Queue an encoded request and return its grade to come. It never raises for what the request does."""
        job = _Job(request, asyncio.get_running_loop().create_future())
        self._jobs.put_nowait(job)
        self._show()
        return job.done

    async def close(self) -> None:
        """End everything; requests still waiting are answered with infra_failure."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._spares.empty():
            spare = self._spares.get_nowait()
            if not isinstance(spare, errors.SandboxError):
                await spare.teardown()
        while not self._jobs.empty():
            _resolve(self._jobs.get_nowait(), infra("the verifier stopped"))

    async def _nurse(self) -> None:
        backoff = retry.Backoff(first_s=0.2, most_s=10.0)
        while True:
            await self._wanted.acquire()
            try:
                spare: launcher.Worker | errors.SandboxError = await self._launch()
                backoff.reset()
                self._start_failure = ""
            except errors.SandboxError as error:
                logger.exception("could not start a grading worker")
                spare, self._start_failure = error, str(error)
            self._spares.put_nowait(spare)
            if self._start_failure:
                await self._clock.sleep(backoff.next_delay_s())

    async def _lane(self, worker: launcher.Worker | None) -> None:
        try:
            while True:
                worker = worker or await self._next_worker()
                job = await self._jobs.get()
                self._count_busy(+1)
                grade = infra("the verifier stopped")
                try:
                    grade, worker = await self._grade(job, worker)
                finally:
                    self._count_busy(-1)
                    _resolve(job, grade)
        finally:
            if worker is not None:
                await worker.teardown()

    async def _next_worker(self) -> launcher.Worker | None:
        """Take a ready worker and have another one started; None if the start failed."""
        spare = await self._spares.get()
        self._wanted.release()
        return None if isinstance(spare, errors.SandboxError) else spare

    async def _grade(self, job: _Job, worker: launcher.Worker | None) -> tuple[protocol.Grade, launcher.Worker | None]:
        """Return the grade and the worker that may serve the next answer."""
        for _ in range(MOST_DEATHS):
            worker = worker or await self._next_worker()
            if worker is None:
                return infra(f"no grading worker: {self._start_failure}"), None
            try:
                grade, retire = await self._attempt(job, worker)
            except _StoppedError as stopped:
                await self._end(worker)
                return stopped.grade, None
            except launcher.WorkerLostError as lost:
                logger.warning("lost a grading worker: %s", lost)
                await self._end(worker)
                worker = None
                if lost.signal == signal.SIGXCPU:
                    return timed_out(self._limits.cpu_s), None
                continue
            if retire:
                await self._end(worker)
                return grade, None
            return grade, worker
        logger.error("an answer ended %d grading workers", MOST_DEATHS)
        return protocol.failed(names.VerdictReason.CRASH, detail=WORKER_KILLER), None

    async def _attempt(self, job: _Job, worker: launcher.Worker) -> tuple[protocol.Grade, bool]:
        started_s = self._clock.monotonic()
        exchange = asyncio.ensure_future(worker.exchange(job.request))
        try:
            await self._within_limits(exchange, worker, started_s)
            reply = exchange.result()
        finally:
            if not exchange.done():
                exchange.cancel()
                await asyncio.wait({exchange})
        wall_s = self._clock.monotonic() - started_s
        return dataclasses.replace(grade_from(reply), wall_s=wall_s), reply.get("retire") is True

    async def _within_limits(
        self, exchange: "asyncio.Future[dict[str, object]]", worker: launcher.Worker, started_s: float
    ) -> None:
        cpu_started_s = worker.cpu_s()
        poll_s = min(_POLL_S, self._limits.cpu_s / 4)
        while not (await asyncio.wait({exchange}, timeout=poll_s))[0]:
            cpu_s = worker.cpu_s() - cpu_started_s
            wall_s = self._clock.monotonic() - started_s
            if cpu_s >= self._limits.cpu_s:
                grade = timed_out(self._limits.cpu_s)
            elif wall_s >= WALL_FACTOR * self._limits.cpu_s:
                grade = infra(f"{wall_s:.1f} s passed, but the answer got only {cpu_s:.1f} s of CPU")
            else:
                continue
            raise _StoppedError(dataclasses.replace(grade, cpu_s=cpu_s, wall_s=wall_s))

    async def _end(self, worker: launcher.Worker) -> None:
        if not await worker.teardown():
            logger.error("processes of a grading worker survived its end")
            self._metrics.counter("rljob_sandbox_survivors_total").inc()

    def _count_busy(self, change: int) -> None:
        self._num_busy += change
        self._show()

    def _show(self) -> None:
        self._metrics.gauge("rljob_verifier_busy_slots").set(self._num_busy)
        self._metrics.gauge("rljob_verifier_waiting").set(self._jobs.qsize())


def _resolve(job: _Job, grade: protocol.Grade) -> None:
    if not job.done.done():
        job.done.set_result(grade)


def infra(detail: str) -> protocol.Grade:
    """Return the grade that is none: the answer was not judged."""
    return protocol.Grade(
        score=None,
        reason=names.VerdictReason.INFRA_FAILURE,
        outcome=names.VerifyOutcome.INFRA_ERROR,
        detail=detail,
    )


def timed_out(limit_s: float) -> protocol.Grade:
    """Return the grade of an answer that used up its CPU limit."""
    grade = protocol.failed(names.VerdictReason.TIMEOUT, detail=f"over {limit_s:g} s of CPU")
    return dataclasses.replace(grade, outcome=names.VerifyOutcome.TIMEOUT_CPU)


def grade_from(reply: Mapping[str, object]) -> protocol.Grade:
    """Return the grade of a reply. Raises WorkerLostError if it is malformed: that worker is not trusted again."""
    try:
        score, cpu_s = reply["score"], reply["cpu_s"]
        if isinstance(score, bool) or not isinstance(score, int | float) or not isinstance(cpu_s, int | float):
            raise ValueError(f"score {score!r} or cpu_s {cpu_s!r} is no number")
        return protocol.Grade(
            score=float(score),
            reason=names.VerdictReason(str(reply["reason"])),
            outcome=names.VerifyOutcome(str(reply["outcome"])),
            formatted=reply["formatted"] is True,
            extracted=str(reply["extracted"]),
            detail=str(reply["detail"]),
            cpu_s=float(cpu_s),
        )
    except (KeyError, ValueError) as error:
        raise launcher.WorkerLostError(f"malformed reply: {error}") from error
