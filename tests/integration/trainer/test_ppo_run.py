"""PPO with a critic over the real coordinator and the real trainer, from one manifest; rollouts are played by the test.

Turns as unit of time, onStale wait, a step in which only the critic learns, and a checkpoint with both models.
"""

import asyncio
import json
import os
import pathlib
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rljob_api import enums, process_config, resolve, types
from rljob_api.validation.load import load_manifest
from rljob_testing import local_weights, makers, trainer_makers
from rljob_workers.rpc import work
from rljob_workers.runtime import clock, retry

pytestmark = pytest.mark.timeout(400)
_END_S = 180.0
STEPS = 3


def job_text(model: pathlib.Path, data: pathlib.Path) -> str:
    return json.dumps(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "ppo"},
            "spec": {
                "maxSteps": STEPS,
                "model": {"name": str(model), "dtype": "float32"},
                "data": {
                    "template": "raw",
                    "train": [{"name": "letters", "path": str(data), "maxPromptTokens": 8}],
                    "filterGroups": {"enabled": False},
                },
                "workflow": {"type": "multi_turn_math", "config": {"numTurns": 2}},
                "algorithm": {
                    "advantageEstimator": "ppo",
                    "groupSize": 2,
                    "promptsPerStep": 4,
                    "minibatches": 2,
                    "gae": {"lambda": "0.9", "unit": "Turn"},
                    "critic": {"learningRate": "1e-2", "warmupSteps": 1},
                },
                "async": {"maxOffPolicySteps": 1, "onStale": "Wait"},
                "rollout": {"sampling": {"maxTokens": 8}},
                "verifier": {"rewards": [{"name": "letter", "type": "exact"}]},
                "trainer": {
                    "dtype": "float32",
                    "optimizer": {"learningRate": "1e-3"},
                    "deepspeed": {"zeroStage": 0},
                    "gradientCheckpointing": False,
                    "maxTokensPerMicroBatch": 64,
                },
                "checkpoint": {"everySteps": 2},
                "evaluation": {"everySteps": 0, "beforeTraining": False},
            },
        }
    )


@pytest.fixture
def run(tmp_path: pathlib.Path, tiny_models: dict[str, pathlib.Path], free_ports: list[int]) -> resolve.ResolvedJob:
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"p{i}", "answer": "a"}) + "\n" for i in range(20)))
    job = load_manifest(job_text(tiny_models["float32"], data))
    placement = resolve.local_placement(
        job, uid="u", run_dir=str(tmp_path / "run"), base_dir=str(tmp_path), cache_dir=str(tmp_path / "cache"),
        ports=free_ports, num_cores=1,
    )  # fmt: skip
    return resolve.resolve(job, placement)


@pytest.fixture
def started(run: resolve.ResolvedJob, tmp_path: pathlib.Path) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """The coordinator and the trainer as programs; their logs are in the test's folder."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    configs: dict[str, process_config.CoordinatorConfig | process_config.TrainerConfig] = {
        "coordinator": run.coordinator,
        "trainer": run.trainer,
    }
    for role, config in configs.items():
        path = tmp_path / f"{role}.json"
        path.write_text(config.model_dump_json())
        with (tmp_path / f"{role}.log").open("wb") as log:
            running[role] = subprocess.Popen(
                [sys.executable, "-m", f"rljob_workers.{role}", "--config", str(path)],
                stdout=log, stderr=log, env=environment,
            )  # fmt: skip
    yield running
    for process in running.values():
        if process.poll() is None:
            process.terminate()
            process.wait(30)
    for role in configs:
        print(role, (tmp_path / f"{role}.log").read_text()[-4000:])


def two_turns(rng: random.Random, index: int, version: int) -> types.Trajectory:
    """Three tokens of prompt, an answer, one inserted token, a second answer; right if the last token is even."""
    first, second = rng.randint(1, 3), rng.randint(1, 3)
    mask = [0] * 3 + [1] * first + [0] + [1] * second
    tokens = [5, 6, 7] + [rng.randrange(1, trainer_makers.VOCAB) for _ in mask[3:]]
    reward = float(tokens[-1] % 2 == 0)
    return types.Trajectory(
        tokens=types.ints(tokens),
        loss_mask=types.mask(mask),
        logprobs=types.floats([-4.0 * flag for flag in mask]),
        versions=types.ints([version if flag else types.NO_VERSION for flag in mask]),
        turn_ids=types.ints([-1] * 3 + [0] * first + [-1] + [1] * second),
        truncated=index == 0,
        reward=reward,
        raw_reward=reward,
        verdict=makers.make_verdict(reward),
        sample_index=index,
        num_turns=2,
    )


async def play_rollout(run: resolve.ResolvedJob, model: pathlib.Path) -> None:
    """Serve whatever version is asked for and finish leased groups at random, until there is no more work."""
    rng = random.Random(1)
    client = work.WorkClient(address=run.rollouts[0].coordinator_address, tls=None)
    initial = local_weights.initial_version(model, "ppo", "float32")[1].state_hash
    await retry.retry_async(
        lambda: client.register(pod="rollout-0", boot_id="b", initial_state_hash=initial),
        clock=clock.SystemClock(), deadline_s=60.0, backoff=retry.Backoff(first_s=0.1, most_s=0.5),
    )  # fmt: skip
    serving, finished = types.VersionId(0), False
    held: list[tuple[types.GroupLease, int]] = []
    while not finished:
        order = await client.heartbeat(
            lease_ids=[lease.lease_id for lease, _ in held],
            serving_version=serving,
            receiver_state=enums.ReceiverState.SERVING,
            load=types.RolloutLoad(),
            syncs=(),
            draining=False,
        )
        serving, finished = order.load_version, order.finished
        assert not order.cancel, "under wait nothing is hopeless"
        grant = await client.lease(capacity=4, serving_version=serving, wait_s=0.2)
        held += [(lease, int(serving)) for lease in grant.leases]
        rng.shuffle(held)
        for lease, version in [held.pop() for _ in range(min(2, len(held)))]:
            rows = tuple(two_turns(rng, index, version) for index in range(lease.group_size))
            group = makers.make_group(lease_id=lease.lease_id, group_id=lease.group_id, attempt=lease.attempt)
            answer = await client.submit(
                types.PromptGroup(
                    lease_id=group.lease_id, group_id=group.group_id, attempt=group.attempt, trajectories=rows,
                    generate_started_at=1.0, generate_finished_at=2.0,
                )
            )  # fmt: skip
            assert answer.outcome is enums.TrajectoryOutcome.ACCEPTED, answer
    await client.close()


@pytest.mark.covers("algorithms 2.3", "algorithms 5")
async def test_ppo_trains_policy_and_critic_from_the_groups_that_rollouts_submit(
    run: resolve.ResolvedJob,
    started: dict[str, "subprocess.Popen[bytes]"],
    tiny_models: dict[str, pathlib.Path],
) -> None:
    playing = asyncio.ensure_future(play_rollout(run, tiny_models["float32"]))
    ended = asyncio.ensure_future(asyncio.to_thread(started["trainer"].wait, _END_S))
    await asyncio.wait([playing, ended], return_when=asyncio.FIRST_COMPLETED)
    if playing.done():
        playing.result()
    assert await ended == enums.ExitCode.OK
    history = pathlib.Path(run.coordinator.state_dir) / "history.jsonl"
    events = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    steps = [event for event in events if event["kind"] == "step"]
    assert [step["step"] for step in steps] == [1, 2, 3]
    warm, *trained = (step["stats"] for step in steps)
    assert "policy/loss" not in warm
    assert warm["critic/loss"] > 0.0
    assert warm["critic/explained_variance"] == 0.0
    for stats in trained:
        assert {"policy/loss", "critic/loss", "critic/explained_variance", "groups/zero_adv", "adv/std"} <= stats.keys()
        assert stats["batch/rows"] == 8.0
    # Advantages of the step are whitened over tokens: those of rows differ, and are around 0.
    assert trained[-1]["adv/std"] > 0.0
    assert set(steps[-1]["trajectories"]) == {"accepted"}, "nothing went stale"
    assert max(int(age) for step in steps for age in step["staleness"]) <= 1
    newest = pathlib.Path(run.trainer.checkpoint_dir) / f"step-{STEPS:09d}"
    assert (newest / "critic").is_dir()
    marker = json.loads((newest / "COMPLETE.json").read_text())
    # Two updates a step; the policy took none in the first.
    assert (marker["updates_applied"], marker["critic_updates_applied"]) == (4, 6)
    playing.cancel()
