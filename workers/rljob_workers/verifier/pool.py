"""Keeps warm grading workers, gives each answer to one, and ends the ones that do not come back.

    submit -> [waiting, bounded, FIFO] -> slot 1..N -> worker --reply--> grade
                                            |  CPU limit: SIGKILL, reason timeout
                                            |  wall cap alone: SIGKILL, infra_failure, graded again elsewhere
                                            |  wrong canary: graded by a fresh worker; earlier verdicts are invalid
                                            |  death: once more on a fresh worker; the second is the answer's own fault
                                            +-- takes the next worker from [spares], which are replenished

One slot at a time takes no answer while its worker runs its canaries; the others serve. The clock of an answer starts
when its slot sends it to a worker. Nothing here looks at text, so one answer cannot delay the others except by using a
slot until its limit.
"""

import asyncio
import dataclasses
import logging
import signal

from rljob_api import enums, errors
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.runtime import retry
from rljob_workers.verifier import frames, replies
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.sandbox.processes import launcher

logger = logging.getLogger(__name__)

# Why a worker ended: over a limit, by itself, or because it had done enough or was not to be believed.
ENDS = ("killed", "lost", "retired")

# Why a worker does not start: it cannot be confined, or not now.
StartError = errors.SandboxError | errors.UnavailableError
_START_ERRORS = (errors.SandboxError, errors.UnavailableError)
MOST_DEATHS = 2
WORKER_KILLER = "worker_killer"
_POLL_S = 0.05
_GONE = replies.Then.RETIRE


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many workers grade at once, how many are ready alongside them, and how many answers may wait for a slot."""

    num_slots: int
    num_spares: int
    max_waiting: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One answer as a worker reads it, and its limits in seconds of this machine.

    cpu_factor: so many of them are a second of the reference machine.
    """

    frame: bytes
    cpu_s: float
    wall_s: float
    cpu_factor: float = 1.0

    @property
    def timed_out(self) -> base.Grade:
        """Return its grade if it used up its limit, in reference seconds: the same on any machine."""
        return timed_out(self.cpu_s / self.cpu_factor)


# Six short programs; a machine that needs as long as this for them needs another worker.
_CANARIES = Request(frame=frames.encode(replies.CANARIES, max_bytes=frames.MAX_REQUEST_BYTES), cpu_s=30.0, wall_s=200.0)


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    request: Request
    done: "asyncio.Future[base.Grade]"


class _StoppedError(Exception):
    """The supervisor killed the worker; `grade` says why."""

    def __init__(self, grade: base.Grade) -> None:
        super().__init__(grade.detail)
        self.grade = grade


class Pool:
    """Grades requests on killable workers. `start` before the first `submit`, `close` at the end."""

    def __init__(
        self, *, size: Size, launch: launcher.Launch, metrics: metrics_module.Metrics, clock: clocks.Clock
    ) -> None:
        """Nothing runs before `start`."""
        self._size, self._launch, self._metrics, self._clock = size, launch, metrics, clock
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._spares: asyncio.Queue[launcher.Worker | StartError] = asyncio.Queue()
        self._spare_requests = asyncio.Semaphore(size.num_spares)
        self._canaries = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._num_busy = 0
        self._num_invalidations = 0
        self._start_failure = self._canary_failure = ""
        # From 0: Prometheus sees no increase in a series that begins with its first event.
        for reason in ENDS:
            metrics.counter("rljob_verifier_workers_ended_total").inc(0.0, reason=reason)

    async def start(self) -> None:
        """Start the workers and wait for one per slot.

        Raises SandboxError if one cannot be confined, and UnavailableError if one cannot start now.
        """
        self._metrics.gauge("rljob_verifier_slots").set(self._size.num_slots)
        self._show()
        first = await asyncio.gather(
            *(self._first_worker() for _ in range(self._size.num_slots)), return_exceptions=True
        )
        workers = [worker for worker in first if not isinstance(worker, BaseException)]
        for failure in first:
            if isinstance(failure, BaseException):
                await asyncio.gather(*(worker.teardown() for worker in workers))
                raise failure
        self._tasks = [asyncio.create_task(self._replenish_spares(), name="spares")]
        self._tasks += [
            asyncio.create_task(self._run_slot(worker), name=f"slot-{n}") for n, worker in enumerate(workers)
        ]

    async def watch(self) -> None:
        """Return never; raises what ended a slot or the start of spares, because without them nothing is graded."""
        # Shielded: `close` cancels them, once. A second time would interrupt the end of a worker, and leave it behind.
        await asyncio.gather(*map(asyncio.shield, self._tasks))
        await asyncio.Event().wait()

    @property
    def failure(self) -> str:
        """Return why workers cannot be started or trusted at the moment, empty if they can."""
        return self._start_failure or self._canary_failure

    @property
    def num_invalidations(self) -> int:
        """Return how often a wrong canary invalidated the results of a worker since its canaries were last right."""
        return self._num_invalidations

    @property
    def num_waiting(self) -> int:
        """Return how many requests wait for a slot."""
        return self._jobs.qsize()

    def admits(self, count: int) -> bool:
        """Return whether `count` more requests may wait. Decide and submit without giving way in between."""
        return self._jobs.qsize() + count <= self._size.max_waiting

    def submit(self, request: Request) -> "asyncio.Future[base.Grade]":
        """Queue a request and return its grade to come. It never raises for what the request does."""
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
            if not isinstance(spare, _START_ERRORS):
                await spare.teardown()
        while not self._jobs.empty():
            _resolve(self._jobs.get_nowait(), infra("the verifier stopped"))

    async def _first_worker(self) -> launcher.Worker:
        try:
            return await self._start_worker()
        except errors.SandboxError as error:
            # Isolation is tested by programs, and one that someone else kills fails the test. This ends the run for
            # good, so it has to come out so twice.
            logger.warning("a grading worker did not start, another is tried: %s", error)
            return await self._start_worker()

    async def _start_worker(self) -> launcher.Worker:
        worker = await self._launch()
        self._metrics.counter("rljob_verifier_workers_started_total").inc()
        return worker

    async def _replenish_spares(self) -> None:
        backoff = retry.Backoff(first_s=0.2, most_s=10.0)
        while True:
            await self._spare_requests.acquire()
            num_invalidations = self._num_invalidations
            try:
                spare: launcher.Worker | StartError = await self._start_worker()
                backoff.reset()
                self._start_failure = ""
                if num_invalidations == self._num_invalidations:
                    # All canaries were right on a worker that was started after the last wrong one.
                    self._canary_failure = ""
            except _START_ERRORS as error:
                logger.exception("could not start a grading worker")
                spare, self._start_failure = error, str(error)
            self._spares.put_nowait(spare)
            if self._start_failure:
                await self._clock.sleep(backoff.next_delay_s())
                self._forget_failures()

    def _forget_failures(self) -> None:
        """Have what did not start tried again, though no lane asked for it: until then the verifier is not ready."""
        for _ in range(self._spares.qsize()):
            spare = self._spares.get_nowait()
            if isinstance(spare, _START_ERRORS):
                self._spare_requests.release()
            else:
                self._spares.put_nowait(spare)

    async def _run_slot(self, worker: launcher.Worker | None) -> None:
        try:
            while True:
                worker = worker or await self._next_worker()
                job = await self._jobs.get()
                self._count_busy(+1)
                answer: base.Grade | errors.GraderError = infra("the verifier stopped")
                then = replies.Then.SERVE
                try:
                    answer, worker, then = await self._grade(job, worker)
                finally:
                    self._count_busy(-1)
                    _resolve(job, answer)
                if worker is not None and then is replies.Then.CANARIES and not self._canaries.locked():
                    async with self._canaries:
                        worker = await self._with_right_canaries(worker)
        finally:
            if worker is not None:
                await worker.teardown()

    async def _next_worker(self) -> launcher.Worker | None:
        """Take a ready worker and have another one started; None if the start failed."""
        spare = await self._spares.get()
        self._spare_requests.release()
        return None if isinstance(spare, _START_ERRORS) else spare

    async def _grade(
        self, job: _Job, worker: launcher.Worker | None
    ) -> tuple[base.Grade | errors.GraderError, launcher.Worker | None, replies.Then]:
        """Return the grade, or the grader's own error, the worker that is left, and what it can do next."""
        num_deaths = 0
        while num_deaths < MOST_DEATHS:
            worker = worker or await self._next_worker()
            if worker is None:
                return infra(f"no grading worker: {self._start_failure}"), None, _GONE
            try:
                grade, then = await self._attempt(job, worker)
            except errors.GraderError as error:
                return error, worker, replies.Then.SERVE
            except _StoppedError as stopped:
                await self._end(worker, "killed")
                return stopped.grade, None, _GONE
            except replies.WrongCanaryError as wrong:
                # The worker is at fault: another one grades the answer again, and no death is counted against it.
                await self._invalidate_results(worker, wrong)
                worker = None
            except launcher.WorkerLostError as lost:
                num_deaths += 1
                logger.warning("lost a grading worker: %s", lost)
                await self._end(worker, "lost")
                worker = None
                # The kernel ended it at the limit of CPU time before a poll of ours noticed.
                if lost.signal == signal.SIGXCPU:
                    return job.request.timed_out, None, _GONE
            else:
                if then is replies.Then.RETIRE:
                    await self._end(worker, "retired")
                    worker = None
                return grade, worker, then
        logger.error("an answer ended %d grading workers", MOST_DEATHS)
        return base.failed(enums.VerdictReason.CRASH, detail=WORKER_KILLER), None, _GONE

    async def _with_right_canaries(self, worker: launcher.Worker) -> launcher.Worker | None:
        """Have a worker run its canaries; return it if they are right, None if it was ended."""
        try:
            replies.check_canaries(await self._reply(_CANARIES, worker))
        except _StoppedError as stopped:
            logger.warning("a grading worker did not come back from its canaries: %s", stopped)
            await self._end(worker, "killed")
        except replies.WrongCanaryError as wrong:
            await self._invalidate_results(worker, wrong)
        except launcher.WorkerLostError as lost:
            logger.warning("lost a grading worker: %s", lost)
            await self._end(worker, "lost")
        else:
            return worker
        return None

    async def _invalidate_results(self, worker: launcher.Worker, wrong: replies.WrongCanaryError) -> None:
        logger.error("%s; its grading worker was replaced and its results since the last check are discarded", wrong)
        self._metrics.counter("rljob_verifier_canary_failures_total").inc(canary=wrong.name)
        self._num_invalidations += 1
        self._canary_failure = str(wrong)
        await self._end(worker, "retired")

    async def _attempt(self, job: _Job, worker: launcher.Worker) -> tuple[base.Grade, replies.Then]:
        started_s = self._clock.monotonic()
        reply = await self._reply(job.request, worker)
        wall_s = self._clock.monotonic() - started_s
        return dataclasses.replace(replies.grade_from(reply), wall_s=wall_s), replies.then_from(reply)

    async def _reply(self, request: Request, worker: launcher.Worker) -> dict[str, object]:
        """Return what a worker replies within the limits of a request. Raises _StoppedError and WorkerLostError."""
        exchange = asyncio.ensure_future(worker.exchange(request.frame))
        try:
            await self._within_limits(request, exchange, worker)
            return exchange.result()
        finally:
            if not exchange.done():
                exchange.cancel()
                await asyncio.wait({exchange})

    async def _within_limits(
        self, request: Request, exchange: "asyncio.Future[dict[str, object]]", worker: launcher.Worker
    ) -> None:
        started_s, cpu_started_s = self._clock.monotonic(), worker.cpu_s()
        poll_s = min(_POLL_S, request.cpu_s / 4)
        while not (await asyncio.wait({exchange}, timeout=poll_s))[0]:
            worker.note_programs()
            cpu_s = worker.cpu_s() - cpu_started_s
            wall_s = self._clock.monotonic() - started_s
            if cpu_s >= request.cpu_s:
                grade = request.timed_out
            elif wall_s >= request.wall_s:
                grade = infra(f"{wall_s:.1f} s passed, but the answer got only {cpu_s:.1f} s of CPU")
            else:
                continue
            raise _StoppedError(dataclasses.replace(grade, cpu_s=cpu_s, wall_s=wall_s))

    async def _end(self, worker: launcher.Worker, reason: str) -> None:
        self._metrics.counter("rljob_verifier_workers_ended_total").inc(reason=reason)
        if not await worker.teardown():
            logger.error("processes of a grading worker survived its end")
            self._metrics.counter("rljob_sandbox_survivors_total").inc()

    def _count_busy(self, change: int) -> None:
        self._num_busy += change
        self._show()

    def _show(self) -> None:
        self._metrics.gauge("rljob_verifier_busy_slots").set(self._num_busy)
        self._metrics.gauge("rljob_verifier_waiting").set(self._jobs.qsize())


def _resolve(job: _Job, answer: base.Grade | errors.GraderError) -> None:
    if job.done.done():
        return
    if isinstance(answer, errors.GraderError):
        job.done.set_exception(answer)
    else:
        job.done.set_result(answer)


def infra(detail: str) -> base.Grade:
    """Return the grade that is none: the answer was not judged."""
    return base.Grade(
        score=None,
        reason=enums.VerdictReason.INFRA_FAILURE,
        outcome=enums.VerifyOutcome.INFRA_ERROR,
        detail=detail,
    )


def timed_out(limit_s: float) -> base.Grade:
    """Return the grade of an answer that used up its CPU limit, in reference seconds."""
    grade = base.failed(enums.VerdictReason.TIMEOUT, detail=f"over {limit_s:g} s of CPU")
    return dataclasses.replace(grade, outcome=enums.VerifyOutcome.TIMEOUT_CPU)
