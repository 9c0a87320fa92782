"""A rollout whose pod gets less time than its drain: the notice of a spot node, an eviction with a grace of its own.

Coordinator and rollout are their programs (the rollout with the engine without a model). The test does what a kubelet
does: it runs the pod's preStop hook, and as the grace is over sends SIGTERM while the hook still waits.
"""

import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import pytest

from rljob_api import enums
from rljob_testing import witnessed_rollout
from rljob_testing.preempted_run import Volume

STARTED_S = 120.0
# A kubelet kills two seconds after SIGTERM; the process ends later than it hands back, and this machine has other work.
ENDED_S = 20.0
ROLLOUT = enums.Role.ROLLOUT


def program(log: pathlib.Path, arguments: Sequence[str], **environment: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", *arguments]
    with log.open("ab") as file:
        return subprocess.Popen(command, env={**os.environ, **environment}, stdout=file, stderr=file)


@contextlib.asynccontextmanager
async def rollout(volume: Volume, *, token_s: float) -> AsyncIterator["subprocess.Popen[bytes]"]:
    environment = {
        witnessed_rollout.ENGINE: "fake",
        witnessed_rollout.TOKEN_S: str(token_s),
        "RLJOB_WITNESS": str(volume.log(ROLLOUT).with_suffix(".witness")),
    }
    arguments = ["rljob_testing.witnessed_rollout", "--config", str(volume.path(ROLLOUT))]
    process = program(volume.log(ROLLOUT), arguments, **environment)
    try:
        yield process
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


async def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + STARTED_S
    while not holds():
        assert time.monotonic() < end, f"not {what} within {STARTED_S:.0f} s"
        await asyncio.sleep(0.1)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def leases(volume: Volume) -> Mapping[str, int]:
    """Return how many leases are in each state."""
    ledger = volume.ledger()
    rows = ledger.all("SELECT state, COUNT(*) AS n FROM leases GROUP BY state")
    ledger.close()
    return {row["state"]: row["n"] for row in rows}


@pytest.mark.timeout(300)
async def test_a_rollout_whose_grace_ends_before_its_drain_hands_its_groups_back_before_it_is_killed(
    tmp_path: pathlib.Path,
) -> None:
    settings = ("spec.rollout.drainSeconds=600", "spec.rollout.sampling.maxTokens=128")
    volume = Volume(tmp_path, max_steps=4, settings=settings)
    async with volume.coordinator():
        await until(lambda: listens(volume.config.control_port), "a coordinator")
        # An answer takes half a minute; the engine's test of itself, at its start, makes 16 tokens.
        async with rollout(volume, token_s=0.25) as process:
            await until(lambda: leases(volume).get("open", 0) > 0, "a lease")
            hook = program(
                volume.log(ROLLOUT),
                ["rljob_workers.runtime.stop", "--config", str(volume.path(ROLLOUT)), "--seconds", "600"],
            )
            try:
                await until(lambda: '"draining"' in volume.log(ROLLOUT).read_text(), "a drain")
                began = time.monotonic()
                process.send_signal(signal.SIGTERM)
                await until(lambda: "open" not in leases(volume), "handed back")
                handed_back_s = time.monotonic() - began
                code = await asyncio.to_thread(process.wait, ENDED_S)
                assert await asyncio.to_thread(hook.wait, ENDED_S) == 0
            finally:
                hook.kill()
        assert code == 0
        ended = leases(volume)
        print(f"handed back after {handed_back_s:.2f} s: {ended}")
        assert ended["released"] > 0
        assert set(ended) <= {"released", "done"}
