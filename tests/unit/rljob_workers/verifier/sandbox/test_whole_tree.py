"""A grading worker that is ended while a program of the policy's runs takes the program and its children with it."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator

import pytest

from rljob_api import process_config
from rljob_api.manifest.verifier import IsolationSpec
from rljob_testing.sections import section
from rljob_workers.verifier import frames, service
from rljob_workers.verifier import worker as grading_worker
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import launcher, procfs

REWARD = process_config.GraderConfig(name="r", type="areal-code", cpu_limit_s=60.0, wall_limit_s=200.0)
CROWD = """
import os, signal
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            signal.pause()
        os._exit(0)
while True:
    signal.pause()
"""
COLUMNS = {"query_id": "q", "input_output": json.dumps({"inputs": ["1"], "outputs": ["1"]})}
REQUEST = {
    "reward": 0, "prompt": "", "completion": f"```python\n{CROWD}\n```", "columns": COLUMNS,
    "prompt_ids": [], "completion_ids": [], "cpu_limit_s": 60.0, "cpu_factor": 1.0,
}  # fmt: skip
# The worker, the program, and three grandchildren whose parents have ended; where it is confined, the interpreter that
# it was forked from.
NUM_MEMBERS = {"None": 5, "Sandbox": 6}


@contextlib.asynccontextmanager
async def crowded(isolation: str) -> AsyncIterator[tuple[launcher.ProcessWorker, frozenset[int]]]:
    """Yield a worker in the midst of a program, and who that is."""
    hello = grading_worker.Hello(
        rewards=(REWARD,), memory_bytes=512 << 20, isolation=section(IsolationSpec, type=isolation)
    )
    worker = await launcher.start(module=service.WORKER_MODULE, arguments=[], hello=hello.payload())
    asked = asyncio.ensure_future(worker.exchange(frames.encode(REQUEST, max_bytes=frames.MAX_REQUEST_BYTES)))
    try:
        async with asyncio.timeout(60):
            while len(members := procfs.tree(worker.pid)) < NUM_MEMBERS[isolation]:
                await asyncio.sleep(0.01)
        assert {os.getsid(pid) for pid in members} - {worker.pid}, "the program has a session of its own"
        yield worker, members
    finally:
        await worker.teardown()
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError, launcher.WorkerLostError):
            await asked


async def test_look_at_a_tree_ends_at_its_bound(confined: profile.Confinement) -> None:
    async with crowded("Sandbox") as (worker, members):
        some = procfs.tree(worker.pid, at_most=3)
        session = frozenset(map(os.getsid, members)) - {worker.pid}
        assert len(some) == 3
        assert some <= members
        assert len(procfs.in_sessions(session, at_most=2)) == 2


def alive(members: frozenset[int]) -> list[int]:
    return [pid for pid in members if procfs.tree(pid)]


@pytest.mark.covers("sandbox P8", "sandbox 4", "security")
@pytest.mark.parametrize("isolation", ["Sandbox", "None"])
async def test_program_and_orphans_end_with_their_worker(isolation: str, confined: profile.Confinement) -> None:
    async with crowded(isolation) as (worker, members):
        assert await worker.teardown()
        assert alive(members) == []


@pytest.mark.covers("sandbox P8", "sandbox 4")
async def test_orphans_of_a_worker_that_died_by_itself_end_too(confined: profile.Confinement) -> None:
    async with crowded("Sandbox") as (worker, members):
        # As the pool does while it waits.
        worker.note_programs()
        os.kill(worker.pid, signal.SIGKILL)
        assert await worker.teardown()
        assert alive(members) == []
