"""Real child processes (`python -c`), ended with SIGKILL: started again, group gone, nothing left."""

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from rljob_api import enums, lifecycle
from rljob_testing.clock import FakeClock
from rljob_workers.local import processes
from rljob_workers.local.run import restart_policy, supervise
from rljob_workers.local.run.child import Child, readable
from rljob_workers.runtime.clock import SystemClock

ROLLOUT = enums.Role.ROLLOUT
WAIT_S = 20.0
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
# A parent with a worker in a session of its own, as an engine core or a grading worker may be.
FAMILY = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
# In one write: who reads it meanwhile must not find half a line.
print(f"worker {worker.pid}\\n", end="", flush=True)
time.sleep(600)
"""


def wait_for(holds: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)


def command(program: str, *arguments: str) -> Sequence[str]:
    return [sys.executable, "-c", program, *arguments]


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Callable[[str], Child]]:
    started: list[Child] = []

    def begin(program: str) -> Child:
        log = tmp_path / f"{len(started)}.log"
        child = Child(role=ROLLOUT, name="rollout", command=command(program), log=log, env=dict(os.environ))
        started.append(child)
        return child

    yield begin
    for child in started:
        child.kill()
        ended(child)


def up(child: Child) -> int:
    wait_for(lambda: child.pid is not None and child.last_lines())
    assert child.pid is not None
    return child.pid


def ended(child: Child) -> int:
    wait_for(lambda: child.poll() is not None)
    code = child.poll()
    assert code is not None
    return code


def test_exit_code_of_a_child_is_reported(start: Callable[[str], Child]) -> None:
    assert ended(start("raise SystemExit(75)")) == 75


def test_child_killed_by_a_signal_is_reported_with_that_signal_and_its_last_line(start: Callable[[str], Child]) -> None:
    child = start(SLEEPER)
    os.kill(up(child), signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    assert child.last_lines() == ["up"]


def test_sigterm_reaches_the_program_through_its_guard(start: Callable[[str], Child]) -> None:
    child = start(
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(7))\nprint('up', flush=True)\ntime.sleep(600)"
    )
    up(child)
    child.terminate()
    assert ended(child) == 7


def test_worker_in_its_own_session_is_gone_when_the_parents_death_is_reported(start: Callable[[str], Child]) -> None:
    child = start(FAMILY)
    pid = up(child)
    worker = int(child.last_lines()[0].split()[1])
    assert processes.is_running(worker)
    os.kill(pid, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    assert not processes.is_running(worker)


def test_letting_go_of_the_leash_ends_the_whole_tree(start: Callable[[str], Child]) -> None:
    child = start(FAMILY)
    pid = up(child)
    worker = int(child.last_lines()[0].split()[1])
    child.kill()
    ended(child)
    assert not processes.is_running(pid)
    assert not processes.is_running(worker)


RUNNER = """
import os, pathlib, sys, time
from rljob_api import enums
from rljob_testing.clock import FakeClock
from rljob_workers.local.run.child import Child
child = Child(role=enums.Role.ROLLOUT, name="rollout", command=[sys.executable, "-c", sys.argv[1]],
              log=pathlib.Path(sys.argv[2]), env=dict(os.environ))
while child.pid is None or not child.last_lines():
    time.sleep(0.02)
print(child.guard_pid, child.pid, child.last_lines()[0].split()[1], flush=True)
time.sleep(600)
"""


def test_nothing_outlives_a_runner_that_was_killed(tmp_path: pathlib.Path) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, FAMILY, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    pids = [int(word) for word in runner.stdout.readline().split()]
    assert len(pids) == 3
    assert all(processes.is_running(pid) for pid in pids)
    runner.kill()
    runner.communicate()
    wait_for(lambda: not any(processes.is_running(pid) for pid in pids))


def test_killed_guard_takes_the_role_with_it_and_strays_are_swept(tmp_path: pathlib.Path) -> None:
    # In a process of its own, because the sweep ends every child of the process that is not a guard.
    program = f"""
import os, pathlib, signal, sys, time
from rljob_api import enums
from rljob_testing.clock import FakeClock
from rljob_workers.local import processes
from rljob_workers.local.run import restart_policy, supervise
from rljob_workers.local.run.child import Child
from rljob_workers.runtime import boot, clock
processes.adopt_orphans()
def spawn(name, role):
    command, log = [sys.executable, "-c", {FAMILY!r}], pathlib.Path(sys.argv[1])
    return Child(role=role, name=name, command=command, log=log, env=dict(os.environ))
supervisor = supervise.Supervisor(spawn=spawn, policy=restart_policy.Policy(first_delay_s=600.0, most_delay_s=600.0),
                                  clock=clock.SystemClock(), sweep=supervise.end_leftover_processes)
supervisor.start("rollout", enums.Role.ROLLOUT, supervise.Progress())
child = supervisor.running()["rollout"]
while child.pid is None or not child.last_lines():
    time.sleep(0.02)
pids = [child.pid, int(child.last_lines()[0].split()[1])]
os.kill(child.guard_pid, signal.SIGKILL)
while not (ended := supervisor.tick(supervise.Progress())):
    time.sleep(0.02)
print(ended[0].code, [processes.is_running(pid) for pid in pids], flush=True)
"""
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.strip() == "-9 [False, False]"


def supervisor_of(program: str, folder: pathlib.Path, policy: restart_policy.Policy) -> supervise.Supervisor:
    def spawn(name: str, role: enums.Role) -> Child:
        return Child(role=role, name=name, command=command(program), log=folder / f"{name}.log", env=dict(os.environ))

    return supervise.Supervisor(spawn=spawn, policy=policy, clock=SystemClock(), sweep=lambda _guards: None)


def noticed(supervisor: supervise.Supervisor, events: list[supervise.Ended]) -> bool:
    events += supervisor.tick(supervise.Progress())
    return bool(events)


def test_killed_process_is_noticed_and_started_again(tmp_path: pathlib.Path) -> None:
    supervisor = supervisor_of(SLEEPER, tmp_path, restart_policy.Policy(first_delay_s=0.1))
    supervisor.start("rollout", ROLLOUT, supervise.Progress())
    wait_for(lambda: supervisor.running()["rollout"].pid)
    first = supervisor.running()["rollout"].pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    events = list[supervise.Ended]()
    wait_for(lambda: noticed(supervisor, events))
    assert (events[0].name, events[0].code) == ("rollout", -signal.SIGKILL)
    wait_for(lambda: supervisor.tick(supervise.Progress()) or supervisor.running())
    second = supervisor.running()["rollout"]
    wait_for(lambda: second.pid)
    assert second.pid != first
    assert not processes.is_running(first)
    supervisor.kill_all()
    wait_for(lambda: supervisor.tick(supervise.Progress(), restart=()) or not supervisor.running())
    assert supervisor.roots() == {"rollout": []}


def test_process_is_not_restarted_when_the_policy_says_fail(tmp_path: pathlib.Path) -> None:
    supervisor = supervisor_of("raise SystemExit(78)", tmp_path, restart_policy.Policy())
    supervisor.start("rollout", ROLLOUT, supervise.Progress())
    events = list[supervise.Ended]()
    wait_for(lambda: noticed(supervisor, events))
    assert isinstance(events[0].decision, lifecycle.Failure)
    state = supervisor.states()["rollout"]
    assert (state.running, state.restart_in_s) == (False, None)


def test_log_line_of_ours_is_shown_as_its_message() -> None:
    assert readable('{"ts": "t", "level": "error", "msg": "lost the engine"}') == "error: lost the engine"
    assert readable("  Segmentation fault\n") == "Segmentation fault"
    assert readable("[1, 2]") == "[1, 2]"
    assert readable("\x1b[31mfailed\x1b[0m") == r"\x1b[31mfailed\x1b[0m"


class Stands:
    """A process that ends when it is asked to."""

    guard_pid, pid = 1, 2

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.code = -15

    def kill(self) -> None:
        self.code = -9

    def last_lines(self, count: int = 1) -> list[str]:
        return []


def test_checkpoint_while_a_process_is_started_again_is_progress_for_its_budget() -> None:
    """Of a process that never lives as long as from one checkpoint to the next, while the run gets on."""
    clock, started = FakeClock(), list[Stands]()

    def spawn(name: str, role: enums.Role) -> Stands:
        started.append(Stands())
        return started[-1]

    supervisor = supervise.Supervisor(
        spawn=spawn, policy=restart_policy.Policy(max_infra_restarts=1), clock=clock, sweep=lambda _guards: None
    )
    supervisor.start("rollout", ROLLOUT, supervise.Progress())
    for checkpoint in range(1, 20):
        started[-1].kill()
        (ended,) = supervisor.tick(supervise.Progress(steps=2 * checkpoint, checkpoints=2 * checkpoint - 1))
        assert isinstance(ended.decision, restart_policy.Restart), checkpoint
        clock.tick(ended.decision.delay_s)
        # Passed before it is there again.
        supervisor.tick(supervise.Progress(steps=2 * checkpoint, checkpoints=2 * checkpoint))
    assert len(started) == 20
