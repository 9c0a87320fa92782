"""The weight store as a child: heard of while it works, ended and started again when it is not."""

import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from rljob_api import process_config
from rljob_testing.ports import free_ports
from rljob_workers.coordinator.weights.store_process import StoreProcess
from rljob_workers.runtime import clock

_LIMIT_S = 100.0


@pytest.fixture
def config(make_config: Callable[..., process_config.CoordinatorConfig]) -> process_config.CoordinatorConfig:
    (port,) = free_ports(1)
    return make_config().model_copy(update={"store_port": port, "store_address": f"127.0.0.1:{port}"})


@pytest.fixture
def path(config: process_config.CoordinatorConfig, tmp_path: pathlib.Path) -> pathlib.Path:
    found = tmp_path / "coordinator.json"
    found.write_text(config.model_dump_json(), encoding="utf-8")
    return found


@pytest.mark.covers("weights W-13")
async def test_a_store_that_hangs_is_ended_and_started_again(
    config: process_config.CoordinatorConfig, path: pathlib.Path
) -> None:
    store = StoreProcess(
        config_path=path, host="127.0.0.1", port=config.store_port, clock=clock.SystemClock(), silent_s=3.0
    )
    running = asyncio.create_task(store.run())
    try:
        await _until(lambda: store.ready)
        hung = store.pid
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        await _until(lambda: store.pid != hung and store.ready)
        assert not pathlib.Path(f"/proc/{hung}").exists()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@pytest.mark.covers("weights W-13")
def test_a_store_says_that_it_works_and_ends_with_its_starter(path: pathlib.Path) -> None:
    starter, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "rljob_workers.coordinator.weights.store", "--config", str(path)], stdin=theirs
        )
    with starter:
        starter.settimeout(_LIMIT_S)
        assert starter.recv(1) == b"."
        assert starter.recv(1) == b".", "and says it again"
    assert process.wait(_LIMIT_S) == 0


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(_LIMIT_S):
        while not holds():
            await asyncio.sleep(0.05)
