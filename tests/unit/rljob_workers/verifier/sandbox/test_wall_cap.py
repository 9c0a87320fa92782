"""Who is to blame where a program did not end in time: itself, or a machine that gave it none."""

import dataclasses
from typing import cast

import pytest

from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.processes import spawn

LIMITS = programs.Limits(cpu_s=60.0, wall_s=1e-9, memory_bytes=512 << 20, output_bytes=64 << 10)
ADDS = programs.Program(source="print(sum(map(int, input().split())))", compat=False)


@pytest.mark.covers("sandbox S-6")
@pytest.mark.parametrize(
    ("waits_s", "cpu_s", "starved"),
    [
        ([0.0, 0.0], 0.0, False),
        ([3.0, 0.0], 0.0, False),
        ([3.1, 0.0], 0.0, True),
        # The program waited for its turn, then for a runner that had none.
        ([1.6, 1.5], 0.0, True),
        ([1.1, 1.0, 1.0], 0.0, True),
        ([1.0, 1.0, 1.0], 0.0, False),
        # A tree that used so much may have made them wait itself, all at once.
        ([3.1, 0.0], 0.2, False),
        ([1.6, 1.5, 0.1], 0.2, False),
        ([9.0, 0.0], 3.0, True),
        ([3.9, 3.9, 3.9], 4.0, False),
    ],
)
def test_machine_is_to_blame_where_a_quarter_of_the_cap_went_by_in_waiting_for_others(
    waits_s: list[float], cpu_s: float, starved: bool
) -> None:
    assert programs.is_starved(waits_s, cpu_s=cpu_s, wall_s=12.0) is starved


class Overslept:
    """A process whose runner looks only once it has ended."""

    def __init__(self, started: spawn.Started) -> None:
        self._started = started

    def __getattr__(self, name: str) -> object:
        return getattr(self._started, name)

    def poll(self) -> int | None:
        assert self._started.wait(60)
        return self._started.poll()


def overslept(request_fd: int, reply_fd: int) -> spawn.Started:
    return cast("spawn.Started", Overslept(spawn.fresh(request_fd, reply_fd)))


@pytest.mark.covers("sandbox S-6")
def test_program_whose_end_the_runner_slept_through_is_not_over_its_cap() -> None:
    ended = programs.run(ADDS, stdin=b"1 2", limits=LIMITS, start=overslept)
    assert (ended.stopped, ended.output, ended.exit_code) == ("", b"3\n", 0)


def test_program_that_ended_after_its_limit_of_cpu_is_over_it_though_nobody_looked() -> None:
    source = "import time\nwhile time.process_time() < 0.3:\n    pass\nprint(3)"
    program = dataclasses.replace(ADDS, source=source)
    ended = programs.run(program, stdin=b"", limits=dataclasses.replace(LIMITS, cpu_s=0.3), start=overslept)
    assert (ended.stopped, ended.exit_code) == ("cpu", 0)
