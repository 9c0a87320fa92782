"""Real engine processes that die: the child with its parent, and the parent that continues with a new child."""

import asyncio
import gc
import os
import pathlib
import signal
import subprocess
import sys

import psutil
import zmq

from rljob_api import types
from rljob_api.enums import ReceiverState

CHILD = """
import asyncio, os, pathlib, sys
from rljob_api import process_config
from rljob_api.manifest.rollout import EngineSpec
from rljob_testing.sections import section
from rljob_workers.rollout.engines import base
from rljob_workers.rollout.engines.vllm import engine
from rljob_workers.rollout.sync import staging
from rljob_workers.runtime.clock import SystemClock
from rljob_workers.weights import initial

os.environ.update(engine.REGISTRATION.environment(1))

async def main(folder):
    first = initial.of_model_files(folder, "bfloat16")
    stager = staging.Stager(first=first, job="job", puller=None, clock=SystemClock())
    made = engine.VllmEngine(base.Settings(
        model=folder, engine=section(EngineSpec, max_model_len=128, max_num_seqs=4, enforce_eager=True),
        trust_remote_code=False, image_path=stager.buffer.path, image_bytes=stager.layout.image_bytes,
        progress_path=stager.buffer.progress_path, loaded_bytes=stager.buffer.loaded_bytes))
    await made.start()
    print("ready", flush=True)
    while made.alive():
        await asyncio.sleep(0.05)
    await made.restart()
    print("restarted", flush=True)
    await asyncio.Event().wait()

if __name__ == "__main__":
    engine.REGISTRATION.prepare()
    asyncio.run(main(pathlib.Path(sys.argv[1])))
"""

READS_DELTA = """
    import numpy
    from rljob_workers.weights import delta
    delta.patch(numpy.zeros(8, numpy.uint16), numpy.zeros(0, numpy.uint8), numpy.zeros(0, numpy.uint16))
"""


def test_kill_9_of_the_fork_server_costs_an_engine_and_of_the_rollout_leaves_no_process(
    folders: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    command = [sys.executable, str(script), str(folders[0])]
    environment = os.environ | {"VLLM_CACHE_ROOT": str(tmp_path / "no-cache-of-model-classes")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as rollout:
        assert rollout.stdout is not None
        assert any(line.strip() == "ready" for line in rollout.stdout)
        (core,) = _engines(rollout.pid)
        server = core.parent()
        assert server is not None
        assert server.cmdline() == psutil.Process(rollout.pid).cmdline(), "the engine process imported vLLM by itself"
        server.kill()
        assert any(line.strip() == "restarted" for line in rollout.stdout)
        assert not core.is_running()
        assert len(_engines(rollout.pid)) == 1
        family = psutil.Process(rollout.pid).children(recursive=True)
        rollout.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=60.0)
    assert [process.name() for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_an_engine_starts_in_a_process_that_has_read_deltas_before(
    folders: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    script = tmp_path / "child.py"
    script.write_text(
        CHILD.replace("    engine.REGISTRATION.prepare()", f"{READS_DELTA}\n    engine.REGISTRATION.prepare()")
    )
    with subprocess.Popen([sys.executable, str(script), str(folders[0])], stdout=subprocess.PIPE, text=True) as rollout:
        assert rollout.stdout is not None
        assert any(line.strip() == "ready" for line in rollout.stdout)
        rollout.send_signal(signal.SIGKILL)


def _engines(rollout: int) -> list[psutil.Process]:
    return [each for each in psutil.Process(rollout).children(recursive=True) if "EngineCor" in each.name()]


def test_an_engine_process_that_was_killed_is_replaced_and_serves_the_same_version(rig) -> None:
    if rig.receiver.served.version != 1:
        assert rig.loop.run_until_complete(rig.follow(1)).failure == ""
    (core,) = _engines(os.getpid())
    contexts = _open_contexts()
    core.kill()
    core.wait(timeout=60.0)

    async def revive() -> None:
        while rig.engine.alive():
            await asyncio.sleep(0.05)
        following = asyncio.ensure_future(rig.receiver.run())
        rig.receiver.want(types.VersionId(1))
        while not rig.engine.alive() or not rig.gate.is_open or rig.receiver.state is not ReceiverState.SERVING:
            if following.done():
                following.result()
            await asyncio.sleep(0.05)
        following.cancel()

    rig.loop.run_until_complete(revive())
    sampling = types.Sampling(greedy=True, max_tokens=4, ignore_eos=True)
    result = rig.loop.run_until_complete(rig.gate.generate(rig.request(range(40, 60), sampling)))
    assert set(result.versions) == {1}
    assert _open_contexts() == contexts, "the client of the dead engine left its ZeroMQ context, or its sockets, open"


def _open_contexts() -> int:
    return sum(type(each) is zmq.Context and not each.closed for each in gc.get_objects())
