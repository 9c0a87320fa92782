"""Programs that ask for more processes and threads than they may have, on this kernel, while hardly anyone
looks.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator

import pytest

from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.confinement import notifications, profile
from rljob_workers.verifier.sandbox.processes import procfs, spawn

LIMITS = programs.Limits(cpu_s=60.0, wall_s=120.0, memory_bytes=512 << 20, output_bytes=64 << 10, may_fork=True)
# Longer than these runs take: what bounds a program then is not that someone looks.
RARELY_S = 30.0
# Four times as many as may be, and never more. Each new one writes a byte as it begins, and none of them ends.
TOO_MANY = {
    "processes": """
import os, signal
for _ in range(8):
    if os.fork() == 0:
        os.write(1, b".")
signal.pause()
""",
    "orphans": """
import os, signal
for _ in range(255):
    if os.fork() == 0:
        if os.fork() == 0:
            os.write(1, b".")
            signal.pause()
        os._exit(0)
    os.wait()
signal.pause()
""",
    "processes that nobody waits for": """
import os, signal
for _ in range(255):
    if os.fork() == 0:
        os.write(1, b".")
        os._exit(0)
signal.pause()
""",
    "threads": """
import os, signal, threading
def begin():
    os.write(1, b".")
    signal.pause()
threading.stack_size(1 << 16)
for _ in range(255):
    threading.Thread(target=begin, daemon=True).start()
signal.pause()
""",
}
Begun = Callable[[int, int], spawn.Started]


class Peak:
    """Counts a program's tasks over and over, from when it is begun until the run is over."""

    def __init__(self, start: spawn.Start) -> None:
        self._start, self._over = start, threading.Event()
        self._threads: list[threading.Thread] = []
        self.num_tasks = 0

    def start(self, request_fd: int, reply_fd: int) -> spawn.Started:
        started = self._start(request_fd, reply_fd)
        self._threads.append(threading.Thread(target=self._look, args=(started.pid,)))
        self._threads[-1].start()
        return started

    def _look(self, session: int) -> None:
        while not self._over.is_set():
            self.num_tasks = max(self.num_tasks, procfs.num_tasks(session))

    @contextlib.contextmanager
    def watched(self) -> Iterator[Begun]:
        try:
            yield self.start
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()


def run(source: str, confined: profile.Confinement, start: Begun, **changes: object) -> programs.Run:
    limits = dataclasses.replace(LIMITS, **changes)  # type: ignore[arg-type]  # a test's own fields
    program = programs.Program(source=source, compat=False)
    return programs.run(program, stdin=b"", limits=limits, confined=confined, start=start, poll_s=RARELY_S)


@pytest.mark.covers("sandbox A-28", "sandbox P6", "security")
@pytest.mark.parametrize("what", TOO_MANY)
def test_program_never_has_more_than_64_though_nobody_looks(
    what: str, confined: profile.Confinement, start: spawn.Start
) -> None:
    peak = Peak(start)
    with peak.watched() as watched:
        ended = run(TOO_MANY[what], confined, watched)
    assert ended.stopped == "memory"
    assert len(ended.output) < programs.MAX_PROCESSES
    assert peak.num_tasks <= programs.MAX_PROCESSES


@pytest.mark.covers("sandbox A-29", "sandbox P6")
def test_threads_of_a_program_without_processes_are_bounded_too(
    confined: profile.Confinement, start: spawn.Start
) -> None:
    ended = run(TOO_MANY["threads"], confined, start, may_fork=False)
    assert ended.stopped == "memory"
    assert len(ended.output) < programs.MAX_PROCESSES


def test_as_many_as_may_be_at_once_are_granted(confined: profile.Confinement, start: spawn.Start) -> None:
    source = f"""
import os
for _ in range({programs.MAX_PROCESSES - 1}):
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
print("all")
"""
    ended = run(source, confined, start)
    assert (ended.stopped, ended.output) == ("", b"all\n")


def test_program_may_start_any_number_one_after_the_other(confined: profile.Confinement, start: spawn.Start) -> None:
    source = f"""
import os
for _ in range({3 * programs.MAX_PROCESSES}):
    if os.fork() == 0:
        os._exit(0)
    os.wait()
print("all")
"""
    ended = run(source, confined, start)
    assert (ended.stopped, ended.output) == ("", b"all\n")


@pytest.mark.covers("sandbox A-28")
def test_program_holds_no_descriptor_with_which_it_could_answer_itself(
    confined: profile.Confinement, start: spawn.Start
) -> None:
    source = """
import fcntl
opened = []
for descriptor in range(1 << 16):
    try:
        fcntl.fcntl(descriptor, fcntl.F_GETFD)
    except OSError:
        continue
    opened.append(descriptor)
print(opened)
"""
    assert run(source, confined, start).output == b"[0, 1, 2]\n"


def test_requests_that_cannot_be_answered_are_nobodys_fault(
    confined: profile.Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise OSError("a message without its descriptor came")

    monkeypatch.setattr(notifications, "handed_over", lost)
    with pytest.raises(spawn.CannotRunError, match="cannot be answered: a message without its descriptor"):
        run("print(1)", confined, spawn.fresh)
