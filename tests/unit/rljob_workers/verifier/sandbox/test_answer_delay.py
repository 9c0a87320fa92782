"""A program that waits for its runner is distinguished from one that sleeps by choice, by what the runner itself
waited.
"""

import itertools
import pathlib
import threading

import pytest

from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import procfs, spawn
from rljob_workers.verifier.sandbox.requests.answer_delay import AnswerDelay

LIMITS = programs.Limits(cpu_s=60.0, wall_s=1.0, memory_bytes=512 << 20, output_bytes=64 << 10)
# Where the machine gives a program no time, its end says nothing of its runner: it is run again.
MOST_ATTEMPTS = 20
# What the runner says that it waited, from one look at its account to the next.
EACH_S = 600.0


def test_only_what_passed_before_an_answer_is_a_delay() -> None:
    delays = iter((1.0, 3.0, 3.5, 7.0, 7.25, 9.0, 9.5))
    delay = AnswerDelay(lambda: next(delays))
    delay.begin()  # 3.0
    delay.answered()  # 3.5
    delay.begin()  # 7.0: no one asked until here
    delay.begin()  # 7.25
    delay.answered()  # 9.0
    delay.answered()  # 9.5: another one had asked, too
    assert delay.total_s == 0.5 + 1.75 + 0.5


def told_s() -> float:
    """Return what the kernel says of the calling thread under its number."""
    text = pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text(encoding="ascii")
    return int(text.split()[1]) / 1e9


def test_delay_is_of_the_thread_that_asks() -> None:
    seen: list[list[float]] = []

    def look() -> None:
        seen.append([told_s(), procfs.own_run_delay_s(), told_s()])

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    look()
    assert seen == [sorted(each) for each in seen]


def stopped(source: str, confined: profile.Confinement) -> str:
    """Return what stopped a program whose runner says that it waits for ever; empty if its time was over before it."""
    looks = itertools.count()
    program = programs.Program(source=source, compat=False)
    try:
        return programs.run(
            program, stdin=b"", limits=LIMITS, confined=confined, run_delay_s=lambda: EACH_S * next(looks)
        ).stopped
    except spawn.CannotRunError:
        return ""


@pytest.mark.covers("sandbox S-6")
def test_program_whose_runner_was_kept_from_answering_it_is_not_to_blame(confined: profile.Confinement) -> None:
    asks = "import signal, threading\nthreading.Thread(target=signal.pause, daemon=True).start()\nsignal.pause()"
    assert "starved" in (stopped(asks, confined) for _ in range(MOST_ATTEMPTS))


@pytest.mark.covers("sandbox S-6")
def test_program_that_asks_for_nothing_is_to_blame_however_late_its_runner_wakes(
    confined: profile.Confinement,
) -> None:
    sleeps = "import signal\nsignal.pause()"
    assert "wall" in (stopped(sleeps, confined) for _ in range(MOST_ATTEMPTS))


@pytest.mark.parametrize(("answer_s", "starved"), [(2.6, True), (2.5, False), (3.0, False)])
def test_answers_that_the_tree_itself_delayed_are_its_own_doing(answer_s: float, starved: bool) -> None:
    # A cap of 10 s; for the last row the tree used half a second in which its runner may have waited.
    cpu_s = 0.5 if answer_s == 3.0 else 0.0
    assert programs.is_starved([answer_s], cpu_s=cpu_s, wall_s=10.0) is starved
