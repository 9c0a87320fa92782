"""Real engine processes that die: the child with its parent, and the parent that continues with a new child."""

import asyncio
import gc
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

os.environ.update(engine.environment(num_threads=1, kind="cpu"))

async def main(folder):
    first = initial.of_model_files(folder, "bfloat16")
    stager = staging.Stager(first=first, job="job", puller=None, clock=SystemClock())
    made = engine.VllmEngine(base.Settings(
        model=folder, engine=section(EngineSpec, max_model_len=128, max_num_seqs=4, enforce_eager=True),
        trust_remote_code=False, image_path=stager.buffer.path, image_bytes=stager.layout.image_bytes,
        progress_path=stager.buffer.progress_path, loaded_bytes=stager.buffer.loaded_bytes))
    await made.start()
    print("ready", flush=True)
    await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


def test_kill_9_of_the_rollout_leaves_no_process(folders: list[pathlib.Path], tmp_path: pathlib.Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    command = [sys.executable, str(script), str(folders[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as rollout:
        assert rollout.stdout is not None
        assert any(line.strip() == "ready" for line in rollout.stdout)
        family = psutil.Process(rollout.pid).children(recursive=True)
        assert "EngineCor" in "".join(process.name() for process in family)
        rollout.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=60.0)
    assert [process.name() for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_an_engine_process_that_was_killed_is_replaced_and_serves_the_same_version(rig) -> None:
    if rig.receiver.served.version != 1:
        assert rig.loop.run_until_complete(rig.follow(1)).failure == ""
    (core,) = [process for process in psutil.Process().children() if "EngineCor" in process.name()]
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
