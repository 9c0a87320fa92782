"""Keeps the processes of a run alive within the failure policy; what to do, `restart_policy.decide` says.

`tick` is called a few times a second: it notices endings, asks for a decision, and starts what is due again. A child
counts as ended only when its whole process tree is gone, so a restart never meets its predecessor.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from rljob_api import enums
from rljob_workers.local import processes
from rljob_workers.local.run import restart_policy
from rljob_workers.runtime import clock as clocks


class Process(Protocol):
    """What is needed of a child; `child.Child` is the real one."""

    @property
    def guard_pid(self) -> int:
        """Return the root pid of the tree."""

    @property
    def pid(self) -> int | None:
        """Return the role's own pid once known."""

    def poll(self) -> int | None:
        """Return the exit code once the tree is gone."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End the tree at once."""

    def last_lines(self, count: int = 1) -> list[str]:
        """Return the end of its log."""


_LOG_LINES = 8

Spawn = Callable[[str, enums.Role], Process]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the run has reached, to judge whether a process that ended had achieved something."""

    steps: int = 0
    checkpoints: int = 0
    finished: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process ended, and what was decided. `at` is unix seconds."""

    name: str
    role: enums.Role
    code: int
    at: float
    ran_s: float
    decision: restart_policy.Decision
    last_lines: Sequence[str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The status of one process. `restart_in_s`: it ended and is started again then; `started_at`: unix seconds."""

    role: enums.Role
    running: bool
    started_at: float = 0.0
    restart_in_s: float | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class _Slot:
    role: enums.Role
    process: Process | None = None
    started_at: float = 0.0
    begin: float = 0.0
    # What the run had reached when the process was started, and when its predecessor ended.
    start: Progress = dataclasses.field(default_factory=Progress)
    last_end: Progress | None = None
    history: restart_policy.History = dataclasses.field(default_factory=restart_policy.History)
    due_at: float | None = None


class Supervisor:
    """The processes of one run by name (`coordinator`, `rollout-0`, ...). All methods are called from one thread."""

    def __init__(
        self,
        *,
        spawn: Spawn,
        policy: restart_policy.Policy,
        clock: clocks.Clock,
        sweep: Callable[[Collection[int]], None],
    ) -> None:
        """Nothing is started. `sweep` gets the live guards when a process has ended."""
        self._spawn, self._policy, self._clock, self._sweep = spawn, policy, clock, sweep
        self._slots: dict[str, _Slot] = {}
        self.restarts = 0

    def start(self, name: str, role: enums.Role, progress: Progress) -> None:
        self._slots[name] = _Slot(role=role)
        self._launch(name, progress)

    def tick(self, progress: Progress, *, restart: Collection[enums.Role] = tuple(enums.Role)) -> list[Ended]:
        """Notice endings and start what is due again, of the roles in `restart`; return the endings."""
        ended = [event for name in list(self._slots) if (event := self._check(name, progress, restart)) is not None]
        for name, slot in self._slots.items():
            if slot.role in restart and slot.due_at is not None and self._clock.monotonic() >= slot.due_at:
                self.restarts += 1
                self._launch(name, progress)
        return ended

    def running(self, role: enums.Role | None = None) -> dict[str, Process]:
        """Return the live processes by name, of one role or of all."""
        return {
            name: slot.process
            for name, slot in self._slots.items()
            if slot.process is not None and role in (None, slot.role)
        }

    def states(self) -> dict[str, State]:
        """Return every process by name, running or not."""
        return {
            name: State(
                role=slot.role,
                running=slot.process is not None,
                started_at=slot.started_at,
                restart_in_s=None if slot.due_at is None else max(0.0, slot.due_at - self._clock.monotonic()),
            )
            for name, slot in self._slots.items()
        }

    def roots(self) -> Mapping[str, Sequence[int]]:
        """Return the root pids of the live trees by role, for measuring memory."""
        roots: dict[str, list[int]] = {str(slot.role): [] for slot in self._slots.values()}
        for slot in self._slots.values():
            if slot.process is not None:
                roots[str(slot.role)].append(slot.process.guard_pid)
        return roots

    def kill_all(self) -> None:
        for process in self.running().values():
            process.kill()

    def _launch(self, name: str, progress: Progress) -> None:
        slot = self._slots[name]
        slot.due_at = None
        slot.start, slot.started_at, slot.begin = progress, self._clock.now(), self._clock.monotonic()
        slot.process = self._spawn(name, slot.role)

    def _check(self, name: str, progress: Progress, restart: Collection[enums.Role]) -> Ended | None:
        slot = self._slots[name]
        if slot.process is None or (code := slot.process.poll()) is None:
            return None
        ran_s = self._clock.monotonic() - slot.begin
        before = slot.last_end or slot.start
        ending = restart_policy.Ending(
            role=slot.role,
            code=code,
            ran_s=ran_s,
            steps_gained=progress.steps - slot.start.steps,
            checkpoints_gained=progress.checkpoints - before.checkpoints,
        )
        decision = restart_policy.decide(ending, slot.history, self._policy, run_finished=progress.finished)
        last_lines = slot.process.last_lines(_LOG_LINES)
        slot.process, slot.last_end = None, progress
        # Without the guard of the process that ended: what it left behind, if it was killed, is a stray now.
        self._sweep({process.guard_pid for process in self.running().values()})
        if isinstance(decision, restart_policy.Restart) and slot.role in restart:
            slot.history, slot.due_at = decision.history, self._clock.monotonic() + decision.delay_s
        return Ended(
            name=name,
            role=slot.role,
            code=code,
            at=self._clock.now(),
            ran_s=ran_s,
            decision=decision,
            last_lines=last_lines,
        )


def end_leftover_processes(guards: Collection[int]) -> None:
    """Kill the children of this process that are not a guard: orphans of a killed guard. For the runner's own
    process.
    """
    parent_of = processes.parents()
    for stray in [pid for pid, parent in parent_of.items() if parent == os.getpid() and pid not in guards]:
        family = (stray, *processes.descendants(stray, parent_of))
        for pid in family:
            processes.kill(pid)
        # What a stray leaves behind is ours once it is gone, so each can be waited for in turn.
        for pid in family:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
