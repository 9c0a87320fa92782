"""Batches of steps that a teacher scores: every row is in them, whatever it was rewarded with."""

from collections.abc import Callable
from typing import Any

import pytest

from rljob_workers.coordinator.batching import builder
from rljob_workers.coordinator.ledger import steps

Make = Callable[..., Any]


def built(bench: Any, rollout: str, *, serving: int = 0) -> builder.Built:
    """Return the next batch, of groups whose answers all get the same reward."""
    for lease in bench.lease(rollout, 9, serving=serving):
        bench.submit(rollout, lease, rewards=(1.0, 1.0), versions=serving)
    choice = steps.with_payloads(bench.ledger.db, steps.choose(bench.ledger, more_prompts=True))
    return builder.build(choice, bench.config)


@pytest.mark.parametrize("task_reward", [False, True])
def test_rows_without_advantage_are_trained_in_the_steps_that_a_teacher_scores(
    make_bench: Make, task_reward: bool
) -> None:
    bench = make_bench(teacher={"model": "better", "steps": 1, "taskReward": task_reward})
    rollout, trainer = bench.rollout(), bench.trainer()
    taught = built(bench, rollout)
    assert sum(len(part.rows) for part in taught.packed.micro_batches[0]) == 4
    assert taught.frozen.zero_advantage_groups == 0, "a teacher has something to say of each"
    bench.commit(trainer, bench.pack())
    alone = built(bench, rollout, serving=bench.publish(trainer, 1))
    assert sum(len(part.rows) for part in alone.packed.micro_batches[0]) < 4
    assert alone.frozen.zero_advantage_groups == 2


def test_the_steps_of_a_teacher_are_counted_from_the_first_one_of_rl(make_bench: Make) -> None:
    bench = make_bench(sft_steps=1, teacher={"model": "better", "steps": 1})
    rollout, trainer = bench.rollout(), bench.trainer()
    for lease in bench.lease(rollout, 9):
        bench.submit(rollout, lease, rewards=(0.0,))
    bench.commit(trainer, bench.pack())
    assert built(bench, rollout, serving=bench.publish(trainer, 1)).frozen.step == 2
    assert steps.choose(bench.ledger, more_prompts=True).taught
