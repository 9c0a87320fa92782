"""Programs through real grading workers, confined and not: whole trees ended, the next answer fine."""

import asyncio
import contextlib
import json
import os
import pathlib
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from rljob_api import enums, process_config, types
from rljob_workers.verifier import grading, service
from rljob_workers.verifier.sandbox.processes import procfs

R, O = enums.VerdictReason, enums.VerifyOutcome  # noqa: E741  # short in tables
LEVELS = {"confined": {}, "none": {"execution": {"isolation": {"type": "None"}, "allowUnsafe": True}}}
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=LEVELS)
async def graded(
    request: pytest.FixtureRequest,
    make_config: Callable[..., process_config.VerifierConfig],
    running: Callable[..., contextlib.AbstractAsyncContextManager[service.Service]],
) -> AsyncIterator[grading.Grading]:
    if request.param == "confined":
        request.getfixturevalue("confined")
    reward = process_config.GraderConfig(name="passes", type="areal-code")
    config = make_config(reward, cpu_limit_s=20.0, wall_limit_s=200.0, num_slots=1, **LEVELS[request.param])
    async with running(config) as verifier:
        yield verifier.grading


def item(program: str, name: str) -> types.VerifyItem:
    tests = json.dumps({"inputs": ["1 2"], "outputs": ["3"]})
    columns = {"query_id": "q", "input_output": tests}
    return types.VerifyItem(
        sample_id=name, attempt=0, prompt="", completion=f"```python\n{program}\n```", columns=columns
    )


RIGHT = "print(sum(map(int, input().split())))"
# the grandchild leaves session and parent, and stays.
STAYS = f"""
import os, time
{RIGHT}
import sys
sys.stdout.flush()
if os.fork() == 0:
    try:
        os.setsid()
    except OSError:
        pass
    if os.fork() == 0:
        os.close(1)
        time.sleep(600)
    os._exit(0)
"""
CROWD = """
import os, time
for _ in range(100):
    if os.fork() == 0:
        time.sleep(600)
time.sleep(600)
"""


@pytest.mark.covers("graders 2.1")
async def test_right_and_wrong_programs_are_told_apart_with_case_results_on_the_wire(graded: grading.Grading) -> None:
    right, wrong, lost = await graded.verify(
        [item(RIGHT, "a"), item("print(4)", "b"), item("import os\nos.abort()", "c")]
    )
    assert (right.reward, right.case_results, right.error_code) == (1.0, (1,), None)
    assert (wrong.reward, wrong.reason, wrong.case_results, wrong.error_code) == (0.0, R.WRONG, (0,), -2)
    assert (lost.reward, lost.reason, lost.outcome) == (0.0, R.CRASH, O.FORCED_EXIT)


@pytest.mark.covers("graders 6.6", "sandbox A-40", "sandbox P8", "sandbox 4")
async def test_nothing_of_a_program_outlives_its_verdict(graded: grading.Grading) -> None:
    (verdict,) = await graded.verify([item(STAYS, "stays")])
    assert verdict.reason is R.OK
    await nobody_sleeps()


@pytest.mark.covers("graders 3.3")
async def test_crowd_of_processes_is_ended_as_a_whole_and_the_next_program_runs(graded: grading.Grading) -> None:
    crowd, after = await graded.verify([item(CROWD, "crowd"), item(RIGHT, "after")])
    assert (crowd.reward, crowd.reason, crowd.outcome) == (0.0, R.RESOURCE_LIMIT, O.OOM)
    assert after.reason is R.OK
    await nobody_sleeps()


async def nobody_sleeps() -> None:
    """Return once none is left; what these programs leave behind would stay for minutes.

    Not at once: a worker that is just being started tests its confinement with a program, too.
    """
    async with asyncio.timeout(60):
        while sleepers():
            await asyncio.sleep(0.01)


def sleepers() -> list[int]:
    """Return the process ids below this one that run a program; its orphans are adopted by the worker."""
    found = []
    for pid in procfs.tree(os.getpid()):
        with contextlib.suppress(OSError):
            if b"processes/candidate.py" in command(pid) and not is_interpreter(pid):
                found.append(pid)
    return found


def is_interpreter(pid: int) -> bool:
    """Return whether it only forks programs: the leader of its session, as a program is, and a worker's child."""
    workers = [parent for parent in procfs.tree(os.getpid()) if b"verifier.worker" in command(parent)]
    own = any(pid in procfs.children(worker) for worker in workers)
    return own and b"--warm" in command(pid) and os.getsid(pid) == pid


def command(pid: int) -> bytes:
    """Return the command line of a process; nothing if it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
