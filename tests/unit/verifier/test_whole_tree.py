"""A grading worker that is ended while a program of the policy's runs takes the program and its children with it."""

import asyncio
import contextlib
import json
import os

import pytest

from rljob_api import roles
from rljob_workers.verifier import frames, grading_worker, service
from rljob_workers.verifier.sandbox import confinement, launcher, procfs

REWARD = roles.GraderConfig(name="r", type="areal-code", cpu_limit_s=60.0, wall_limit_s=200.0)
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
    "prompt_ids": [], "completion_ids": [], "cpu_limit_s": 60.0,
}  # fmt: skip
# The worker, the program, and three grandchildren whose parents have ended.
NUM_MEMBERS = 5


@pytest.mark.parametrize("isolation", ["sandbox", "none"])
async def test_program_and_orphans_end_with_their_worker(isolation: str, confined: confinement.Confinement) -> None:
    hello = grading_worker.Hello(rewards=(REWARD,), memory_bytes=512 << 20, isolation=isolation)
    worker = await launcher.start(module=service.WORKER_MODULE, arguments=[], hello=hello.payload())
    asked = asyncio.ensure_future(worker.exchange(frames.encode(REQUEST, max_bytes=frames.MAX_REQUEST_BYTES)))
    try:
        async with asyncio.timeout(60):
            while len(members := procfs.tree(worker.pid)) < NUM_MEMBERS:
                await asyncio.sleep(0.01)
        assert {os.getsid(pid) for pid in members} - {worker.pid}, "the program has a session of its own"
    finally:
        gone = await worker.teardown()
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError, launcher.WorkerLostError):
            await asked
    assert gone
    assert [pid for pid in members if procfs.tree(pid)] == []
