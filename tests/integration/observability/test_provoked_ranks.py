"""One rank of a trainer of two hangs: the others are in a collective, and everyone waits for the trainer."""

import json
import os
import pathlib
import signal
import subprocess
import time
from typing import Any

import pytest

from rljob_testing.every_example import EVERY_EXAMPLE
from rljob_testing.runs import RLJOB, Runs
from rljob_workers.local import processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not os.environ.get(EVERY_EXAMPLE), reason=f"a run of two ranks was not asked for ({EVERY_EXAMPLE}=1)"
    ),
]

STALL_S = 30
# On a machine that has other work as well.
NAMED_S, LOOK_S = STALL_S + 150.0, 1.0
CHANGES: dict[str, object] = {
    "maxSteps": 5000,
    "trainer__processesPerNode": 2,
    "checkpoint__everySteps": 1000,
    "failurePolicy__stall__timeoutSeconds": STALL_S,
}


def ranks(trainer: int) -> dict[str, int]:
    """Return the pids of a trainer's ranks by RANK, as the launcher gave it to them."""
    found = {}
    for pid in processes.descendants(trainer):
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        rank = next((one[5:].decode() for one in environment if one.startswith(b"RANK=")), "")
        if rank:
            found.setdefault(rank, pid)
    return found


def why(runs: Runs) -> dict[str, Any]:
    command = [RLJOB, "why", "tiny", "--run-dir", str(runs.folder / "run"), "--events", "0", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_rank_that_hangs_holds_the_others_in_a_collective_and_the_trainer_is_named(rljob: Runs) -> None:
    rljob.start(rljob.manifest(**CHANGES))
    rljob.wait_for_step(2)
    trainer = json.loads((rljob.folder / "run/pids.json").read_text())["trainer"]["pid"]
    by_rank = ranks(trainer)
    assert set(by_rank) == {"0", "1"}
    processes.kill(by_rank["1"], signal.SIGSTOP)
    try:
        end = time.monotonic() + NAMED_S
        while not (told := why(rljob))["stalled"]:
            assert time.monotonic() < end, told
            time.sleep(LOOK_S)
        found = told["diagnosis"]
        assert (found["reason"], found["role"], found["pod"]) == ("CollectiveHang", "trainer", "trainer-0"), told
    finally:
        processes.kill(by_rank["1"], signal.SIGCONT)
    rljob.wait_for_step(len(rljob.steps()) + 2)
    assert why(rljob)["diagnosis"] is None
