"""Runs one segment of a job on this machine, from the first process to the last.

      status thread --newest RunStatus--+
                                        v
    signals --> interrupts --> [ tick, 5 times a second ] --> display
                                 |  supervisor: endings, restarts (restart_policy)
                                 |  deadlines: start-up, whole run, stall
                                 |  memory, journal, pids.json
                                 v
                finished | Ctrl-C | failed --> shutdown, in its order of roles --> Outcome

Everything happens on one thread, so nothing is locked; the status thread only replaces one reference.
"""

import dataclasses
import enum
import json
from collections.abc import Callable, Mapping, Sequence

from rljob_api import enums, lifecycle, types, waiting
from rljob_workers.local.processes import PeakMemory
from rljob_workers.local.run import deadlines, display, live, restart_policy, shutdown, supervise
from rljob_workers.local.rundir import journal, layout
from rljob_workers.runtime import atomic
from rljob_workers.runtime import clock as clocks

_MEMORY_S = 1.0
_BEAT_S = 15.0
# Who waits for whom is shown before the first step, and once nothing has moved for this long.
_IDLE_SHOWN_S = 20.0


class Ending(enum.StrEnum):
    """How a segment ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a segment. `culprit` is the process that ended the run and `last_lines` the end of its log."""

    ending: Ending
    status: types.RunStatus | None
    wall_s: float
    peaks: Mapping[str, int]
    reason: str = ""
    because: str = ""
    culprit: str = ""
    failing_since: float | None = None
    last_lines: Sequence[str] = ()


class Interrupts:
    """Counts requests to stop; a signal handler only calls `request`."""

    def __init__(self) -> None:
        self.count = 0

    def request(self) -> None:
        self.count += 1


class Runner:
    """One segment. `run` returns when no process is left."""

    def __init__(
        self,
        *,
        processes: Mapping[str, enums.Role],
        supervisor: supervise.Supervisor,
        source: live.StatusSource,
        shown: display.Display,
        directory: layout.RunDir,
        log: journal.Journal,
        interrupts: Interrupts,
        ask_trainer: shutdown.AskToStop | None,
        bounds: shutdown.Bounds,
        limits: deadlines.Limits,
        clock: clocks.Clock,
        pause: Callable[[], None],
    ) -> None:
        """`pause` waits between two ticks. Without a trainer among the processes the run is an evaluation alone: it is
        over when the coordinator says so.
        """
        self._processes, self._supervisor, self._source, self._display = processes, supervisor, source, shown
        self._directory, self._journal, self._interrupts = directory, log, interrupts
        self._ask_trainer, self._bounds, self._limits = ask_trainer, bounds, limits
        self._clock, self._pause = clock, pause
        self._begin, self._memory = clock.monotonic(), PeakMemory()
        self._measured_at = self._beat_at = self._begin
        self._replaced_at = -limits.stall_s
        self._first_step: int | None = None
        self._journaled_step = 0
        self._written_pids: Mapping[str, Mapping[str, int | None]] = {}
        self._trains = enums.Role.TRAINER in processes.values()
        self._trainer_done = not self._trains
        self._ending: Ending | None = None
        self._shutdown: shutdown.Shutdown | None = None
        self._failure: dict[str, str] = {}
        self._failed: supervise.Ended | None = None
        self._failing_since: dict[str, float] = {}

    def run(self) -> Outcome:
        """Start everything, keep it going, end it in order."""
        self._journal.write(journal.Entry(event="segment", at=self._clock.now()))
        for name, role in self._processes.items():
            self._supervisor.start(name, role, supervise.Progress())
        try:
            while self._shutdown is None or not self._shutdown.finished:
                self._tick()
                self._pause()
        finally:
            self._supervisor.kill_all()
        self._journal.write(
            journal.Entry(event="segment_end", at=self._clock.now(), detail=str(self._ending), peaks=self._memory.peaks)
        )
        self._directory.pids.unlink(missing_ok=True)
        return self._outcome()

    def _tick(self) -> None:
        status = self._source.latest()
        reached = _progress(status)
        ended = self._supervisor.tick(reached, restart=self._restartable())
        for ending in ended:
            self._note(ending)
        if self._shutdown is None:
            self._judge(status, reached)
        if self._interrupts.count > 1:
            self._supervisor.kill_all()
        if self._shutdown is not None:
            self._shutdown.tick()
        self._housekeeping(status)
        if self._shutdown is None or not self._shutdown.finished:
            self._display.show(self._frame(status))

    def _restartable(self) -> Sequence[enums.Role]:
        if self._shutdown is None:
            return tuple(enums.Role)
        # The trainer's last checkpoint is committed at the coordinator.
        return (enums.Role.COORDINATOR,) if self._supervisor.running(enums.Role.TRAINER) else ()

    def _judge(self, status: types.RunStatus | None, reached: supervise.Progress) -> None:
        # The first that holds decides: a user's stop, the end of all work, a failure, a deadline, then a stall.
        if self._interrupts.count > 0:
            self._end(Ending.STOPPED, "stopping: waiting for a checkpoint; press Ctrl-C again to stop immediately")
        elif self._trainer_done and reached.finished:
            self._end(Ending.FINISHED, "finished: ending the processes")
        elif status is not None and status.phase is enums.Phase.FAILED:
            self._fail("ConfigurationError", status.failure or "the coordinator ended the run")
        elif late := deadlines.exceeded(self._elapsed(status), self._limits):
            self._fail(late.reason, late.message)
        elif status is not None and self._limits.on_stall == "Restart":
            self._replace_culprit(status)

    def _replace_culprit(self, status: types.RunStatus) -> None:
        """End the role that everyone waits for, once per stall timeout; the policy starts it again."""
        now = self._clock.monotonic()
        stalled = deadlines.is_stalled(self._elapsed(status), self._limits)
        if not stalled or now - self._replaced_at < self._limits.stall_s:
            return
        self._replaced_at = now
        diagnosis = waiting.diagnose(status, now=self._clock.now())
        role = diagnosis.role
        self._display.say(
            f"stalled ({diagnosis.reason}): {diagnosis.message or 'no process reports a wait'}; restarting the {role}"
        )
        for process in self._supervisor.running(enums.Role(role)).values():
            process.kill()

    def _elapsed(self, status: types.RunStatus | None) -> deadlines.Elapsed:
        if status is not None and self._first_step is None:
            self._first_step = status.step
        return deadlines.Elapsed(
            segment_s=self._clock.monotonic() - self._begin,
            idle_s=None if status is None else self._clock.now() - status.last_progress_at,
            stepped=not self._trains
            or (status is not None and (status.step > (self._first_step or 0) or status.phase is enums.Phase.FINISHED)),
        )

    def _note(self, ended: supervise.Ended) -> None:
        """Tell and record an ending, and act on what was decided."""
        decision, exit_text = ended.decision, lifecycle.describe_exit(ended.code)
        detail = _detail(decision) if self._shutdown is None else "stopped"
        self._journal.write(
            journal.Entry(
                event="ended", at=ended.at, name=ended.name, role=str(ended.role), code=ended.code, detail=detail
            )
        )
        if self._shutdown is not None:
            return
        self._failing_since.setdefault(ended.name, ended.at)
        if isinstance(decision, restart_policy.Restart):
            if decision.history.in_a_row == 1:
                self._failing_since[ended.name] = ended.at
            last = ended.last_lines[-1] if ended.last_lines else "it wrote no log"
            self._display.say(
                f"{ended.name} ended with {exit_text} after {ended.ran_s:.0f} s; {detail}; last line: {last}"
            )
        elif isinstance(decision, lifecycle.Failure):
            self._failed = ended
            self._fail(decision.reason, decision.message)
        elif ended.role is enums.Role.TRAINER and decision.finished:
            self._trainer_done = True
        elif not decision.finished:
            self._end(Ending.STOPPED, "stopped on request after a checkpoint: ending the processes")

    def _fail(self, reason: str, because: str) -> None:
        self._failure = {"reason": reason, "because": because}
        self._end(Ending.FAILED, f"failed ({reason}): saving a checkpoint if possible, ending the processes")

    def _end(self, ending: Ending, message: str) -> None:
        if self._shutdown is not None:
            return
        self._ending = ending
        self._display.say(message)
        self._shutdown = shutdown.Shutdown(
            supervisor=self._supervisor, clock=self._clock, bounds=self._bounds, ask_trainer=self._ask_trainer
        )

    def _housekeeping(self, status: types.RunStatus | None) -> None:
        now = self._clock.monotonic()
        self._write_pids()
        if status is not None and status.step > self._journaled_step:
            self._journaled_step = status.step
            self._journal.write(
                journal.Entry(
                    event="step", at=self._clock.now(), step=status.step, rollout_wait_share=status.rollout_wait_share
                )
            )
        if now - self._measured_at >= _MEMORY_S:
            self._measured_at = now
            self._memory.sample(self._supervisor.roots())
        if now - self._beat_at >= _BEAT_S:
            self._beat_at = now
            self._journal.write(journal.Entry(event="beat", at=self._clock.now(), peaks=self._memory.peaks))

    def _write_pids(self) -> None:
        running = self._supervisor.running().items()
        pids = {name: {"pid": process.pid, "guard": process.guard_pid} for name, process in running}
        if pids != self._written_pids:
            self._written_pids = pids
            atomic.write_text(self._directory.pids, json.dumps(pids))

    def _frame(self, status: types.RunStatus | None) -> display.Frame:
        note = ""
        if self._shutdown is not None:
            note = f"ending: waiting for {self._shutdown.waiting_for}"
        return display.Frame(
            elapsed_s=self._clock.monotonic() - self._begin,
            status=status,
            states=self._supervisor.states(),
            rollouts_wanted=sum(role is enums.Role.ROLLOUT for role in self._processes.values()),
            note=note,
            stalled=""
            if status is None or not self._tell_chain(status)
            else waiting.chain_of(status).message(self._clock.now()),
        )

    def _tell_chain(self, status: types.RunStatus) -> bool:
        first_step_ahead = status.phase is enums.Phase.RUNNING and status.step == self._first_step
        return first_step_ahead or self._clock.now() - status.last_progress_at >= _IDLE_SHOWN_S

    def _outcome(self) -> Outcome:
        assert self._ending is not None, "the loop ends only after `_end`"
        culprit = self._failed
        return Outcome(
            ending=self._ending,
            status=self._source.latest(),
            wall_s=self._clock.monotonic() - self._begin,
            peaks=self._memory.peaks,
            reason=self._failure.get("reason", ""),
            because=self._failure.get("because", ""),
            culprit="" if culprit is None else culprit.name,
            failing_since=None if culprit is None else self._failing_since[culprit.name],
            last_lines=() if culprit is None else culprit.last_lines,
        )


def _progress(status: types.RunStatus | None) -> supervise.Progress:
    if status is None:
        return supervise.Progress()
    return supervise.Progress(
        steps=status.step, checkpoints=status.checkpoint_step, finished=status.phase is enums.Phase.FINISHED
    )


def _detail(decision: restart_policy.Decision) -> str:
    if isinstance(decision, restart_policy.Restart):
        return f"restart in {decision.delay_s:.0f} s ({decision.failure} failure)"
    if isinstance(decision, lifecycle.Failure):
        return f"failed: {decision.reason}"
    return "finished" if decision.finished else "stopped on request"
