"""One run that its queue preempts again and again trains what an undisturbed run trains.

The API server, its controllers and the operator are real, and so is the coordinator with its ledger. Kueue's
controller, kubelets, rollout and trainer are stand-ins (`stand_in_queue`, `played_pods`, `preempted_run`). Of ETTR
(docs/design/performance.md#s-8) that leaves out what a model takes to load: each preemption costs the drain, the
operator's work and the start of the coordinator.

RLJOB_PREEMPTIONS=20 RLJOB_PREEMPTION_SECONDS=90 preempts twenty times, after so many seconds of training each: half an
hour. ETTR is demanded where at least so many seconds are between two preemptions.
"""

import asyncio
import os
import pathlib
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rljob_operator.kube import client as cluster
from rljob_operator.settings import Integrations, JobSettings, Settings
from rljob_testing import operator_queue, operator_stage, preempted_run, stand_in_queue
from rljob_testing.cluster import kueue
from rljob_testing.cluster.binaries import MissingProgramError
from rljob_testing.cluster.light import LightCluster
from rljob_testing.cluster.manifests import Api
from rljob_testing.operator_queue import LABELS
from rljob_testing.operator_stage import SaidStatus, Stage
from rljob_testing.played_pods import PlayedPods
from rljob_testing.preempted_run import Pace, Volume

NUM_PREEMPTIONS = int(os.environ.get("RLJOB_PREEMPTIONS", "3"))
BETWEEN_S = float(os.environ.get("RLJOB_PREEMPTION_SECONDS", "4"))
# What a step takes at least.
STEP_S = max(1.0, BETWEEN_S / 15)
PACE = Pace(group_s=STEP_S * 0.6 / preempted_run.PROMPTS, step_s=STEP_S * 0.4)
# Two more between preemptions: the first one of each start, and one that was under way.
NUM_STEPS = (NUM_PREEMPTIONS + 1) * (int(BETWEEN_S / STEP_S) + 2)
# Of an undisturbed run, a preemption, and a preempted job that starts again.
FREE_WITHIN_S, STARTED_WITHIN_S, ENDED_WITHIN_S = 60.0, 240.0, 600.0
LEAST_ETTR, DEMANDED_FROM_S = 0.9, 90.0

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900 + 2 * NUM_PREEMPTIONS * BETWEEN_S)]


class _Stage(Stage):
    """Its pods are those of `played_pods`."""

    async def play(self) -> None:
        """Leave them alone."""


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Volume:
    return Volume(tmp_path_factory.mktemp("volume"), max_steps=NUM_STEPS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(light_cluster: LightCluster, api: Api, volume: Volume) -> AsyncIterator[Stage]:
    try:
        kueue.install(light_cluster)
    except MissingProgramError as error:
        pytest.skip(str(error))
    connection = await cluster.connect(str(light_cluster.kubeconfig))
    client = cluster.Client(connection, qps=1000.0, burst=1000)
    settings = Settings(jobs=JobSettings(images=operator_stage.IMAGES), integrations=Integrations(kueue="true"))
    made = light_cluster.kubectl("create", "namespace", "preempted")
    assert made.returncode == 0, made.stderr
    async with operator_stage.running_operator(connection, coordinator=volume.address, settings=settings):
        stage = _Stage(client, "preempted", SaidStatus(), [])
        yield stage
        await stage.delete("RLJob", "run")
    await client.close()
    await operator_stage.connections_gone()


async def test_a_preempted_run_trains_what_an_undisturbed_one_trains_and_its_quota_is_free_soon(
    stage: Stage, volume: Volume, tmp_path: pathlib.Path
) -> None:
    expected = await preempted_run.undisturbed(Volume(tmp_path, max_steps=NUM_STEPS))
    assert len(expected.groups) == NUM_STEPS
    freed_s = list[float]()
    async with PlayedPods(stage, volume, PACE).following():
        await stage.create(labels=LABELS, maxSteps=NUM_STEPS, rollout__drainSeconds=30)
        await operator_queue.asked(stage)
        began = time.monotonic()
        for number in range(1, NUM_PREEMPTIONS + 1):
            await _train(stage, volume)
            # Anywhere in a step.
            await asyncio.sleep(BETWEEN_S + number * STEP_S / NUM_PREEMPTIONS)
            freed_s.append(await operator_queue.evict(stage))
            step = f"preemption {number} at step {volume.completed}"
            print(f"{time.monotonic() - began:.0f} s: {step}, quota free after {freed_s[-1]:.1f} s", flush=True)
        await _train(stage, volume)
        # The rest is undisturbed.
        num_steps, wall_s = volume.completed, time.monotonic() - began
        await stage.until("run", "Complete", within_s=ENDED_WITHIN_S)
        await stage.sees(lambda: _is_over(stage), within_s=FREE_WITHIN_S)
    job = await stage.job("run")
    assert job is not None
    trained = volume.trained()
    ettr = num_steps * trained.usual_step_s / wall_s
    cost_s = (wall_s - num_steps * trained.usual_step_s) / NUM_PREEMPTIONS
    print(
        f"{NUM_PREEMPTIONS} preemptions in {wall_s:.0f} s: quota free after {min(freed_s):.1f} to {max(freed_s):.1f} s,"
        f" {num_steps} steps of {trained.usual_step_s:.2f} s, {cost_s:.1f} s lost with each, ETTR {ettr:.3f}"
    )
    assert trained.violations == expected.violations == []
    assert trained.groups == expected.groups
    assert job["status"]["step"] == NUM_STEPS
    assert job["status"]["attempt"] == NUM_PREEMPTIONS + 1
    assert "restarts" not in job["status"], "a preemption is no failure"
    assert max(freed_s) < FREE_WITHIN_S
    if BETWEEN_S >= DEMANDED_FROM_S:
        assert ettr >= LEAST_ETTR


async def _train(stage: Stage, volume: Volume) -> None:
    """Give the job its quota, and wait until it has made a step with it."""
    before = volume.completed
    await operator_queue.admit(stage)

    async def has_stepped() -> bool:
        return volume.completed > before

    await stage.sees(has_stepped, within_s=STARTED_WITHIN_S)


async def _is_over(stage: Stage) -> bool:
    """Return whether the queue has its quota back, and no pod is left that could write."""
    child = await operator_queue.workload(stage)
    assert child is not None
    still = [pod for pod in await stage.pods() if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    return not stand_in_queue.holds_quota(child) and not still
