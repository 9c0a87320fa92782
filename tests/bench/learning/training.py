"""One run of the learning bench, in this process.

    version n - lag --sample--> groups --coordinator's assembly and packing--> batch --learner--> version n + 1

Real: manifest and defaults, graders and environments, rewards to advantages, packing and the wire, loss, weights and
masks, optimizer. Played: the engine (`sampling.py`), and time: every sample of a step is of the version `lag` steps
back, from its first token to its last, where a real run has ages up to the bound and versions that change within a row.
Weights are float32 on both sides, so neither rounding nor another engine's arithmetic is in it.
"""

import collections
import dataclasses
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from tests.bench.learning import sampling, scoring, sides, tasks

from rljob_api import enums, types
from rljob_api import learning as judged
from rljob_testing import learning, makers


def train(
    cell: sides.Cell,
    task: tasks.Task,
    base: pathlib.Path,
    folder: pathlib.Path,
    *,
    learning_rate: str = sides.LEARNING_RATE,
    after_step: Callable[[judged.Point], None] = lambda point: None,
) -> scoring.Outcome:
    """Train and score the last version. The process must be a rank (`learning.only_rank`).

    after_step: gets what the coordinator reads of each step to judge how a run learns.
    """
    lag = sides.SIDES[cell.side].lag
    manifest = sides.manifest(cell, model=str(base), max_tokens=task.max_tokens, learning_rate=learning_rate)
    found = learning.resolved(manifest, folder)
    torch.manual_seed(cell.seed)
    policy, learner = learning.new_learner(found.trainer, base)
    sampler = scoring.sampler_of(base, base)
    names = sampler.names
    # Of steps n - lag to n; at the start of a run, of all that there are.
    versions = collections.deque([_weights(policy, names)], maxlen=lag + 1)
    questions = tasks.order(task.train, seed=cell.seed, count=cell.steps * sides.PROMPTS_PER_STEP)
    rewards, gaps = [], []
    started = time.process_time()
    for step in range(1, cell.steps + 1):
        version = max(0, step - 1 - lag)
        sampler.load(versions[0])
        chosen = questions[(step - 1) * sides.PROMPTS_PER_STEP : step * sides.PROMPTS_PER_STEP]
        groups = _groups(sampler, task, chosen, cell, step, version)
        header, parts, summary = learning.batch_of(groups, step, version, found)
        learned = learner.learn(header, parts)
        rewards.append(summary["reward_mean"])
        after_step(judged.point_of(step, summary, learned.stats))
        gaps.append(learned.stats.get(enums.StepStat.BEHAVIOR_ABS_DIFF, 0.0))
        versions.append(_weights(policy, names))
    cpu_s = time.process_time() - started
    sampler.load(versions[-1])
    return scoring.Outcome(
        rewards=tuple(rewards),
        held_out=scoring.score(sampler, task, greedy=True),
        sampled=scoring.score(sampler, task, greedy=False),
        gap=statistics.fmean(gaps),
        cpu_s=cpu_s,
    )


def _weights(policy: object, names: Sequence[str]) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}

    def receive(name: str, tensor: torch.Tensor) -> None:
        weights[name] = tensor.clone()

    policy.visit(names, receive)  # type: ignore[attr-defined]  # deepspeed.Engine
    return weights


def _groups(
    sampler: sampling.Sampler,
    task: tasks.Task,
    questions: Sequence[tasks.Record],
    cell: sides.Cell,
    step: int,
    version: int,
) -> list[types.PromptGroup]:
    rows = [record for record in questions for _ in range(sides.GROUP_SIZE)]
    noise = sampling.noise_of(cell.seed, task.name, step, rows=len(rows))
    episodes = sampler.sample(task, rows, noise=noise, version=version)
    return [
        dataclasses.replace(
            makers.make_group(group_id=f"g{step}-{index}"),
            trajectories=tuple(
                dataclasses.replace(row, sample_index=place)
                for place, row in enumerate(episodes[index * sides.GROUP_SIZE : (index + 1) * sides.GROUP_SIZE])
            ),
        )
        for index in range(len(questions))
    ]
