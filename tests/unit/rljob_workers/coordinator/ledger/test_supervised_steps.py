"""Examples and the supervised steps that learn them: their order, what comes after them, and what a restart leaves."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from rljob_api import enums, types
from rljob_testing import makers
from rljob_workers.coordinator.batching import builder
from rljob_workers.coordinator.ledger import audit, checkpoints, examples, groups, leases, queries, retention, steps
from rljob_workers.coordinator.policy import prompts

# A maker of the bench that conftest.py describes: three examples a step.
Make = Callable[..., Any]


def hand_in(bench: Any, rollout: str, lease: leases.Lease) -> types.SubmitReply:
    reply: types.SubmitReply = bench.submit(rollout, lease, rewards=(0.0,))
    return reply


def learned(bench: Any) -> list[str]:
    """Return the examples of all trained steps in order, pruned or not."""
    pruned = [member for member in retention.everything(bench.ledger.db) if member.fate == enums.GroupState.TRAINED]
    rows = bench.ledger.db.all(
        "SELECT step, step_position, prompt_id FROM groups WHERE kind = 'example' AND state = 'trained'"
    )
    placed = [((row["step"], row["step_position"]), row["prompt_id"]) for row in rows]
    # What is pruned of a step comes before the rest of it.
    placed += [
        ((member.step or 0, number - len(pruned)), member.ref.prompt_id)
        for number, member in enumerate(pruned)
        if member.kind is enums.GroupKind.EXAMPLE
    ]
    return [prompt_id for _, prompt_id in sorted(placed)]


def expected(bench: Any, count: int) -> list[str]:
    refs, _ = bench.examples.take(prompts.Cursor(), count)
    return [ref.prompt_id for ref in refs]


def supervise(bench: Any, rollout: str, trainer: str, *, serving: int = 0) -> int:
    """Make one supervised step whole."""
    for lease in bench.lease(rollout, 9, serving=serving):
        hand_in(bench, rollout, lease)
    step: int = bench.pack()
    bench.commit(trainer, step)
    bench.publish(trainer, step)
    return step


def test_a_batch_holds_the_next_examples_whoever_handed_them_in_first(make_bench: Make) -> None:
    bench = make_bench(sft_steps=2)
    rollout, trainer = bench.rollout(), bench.trainer()
    granted = bench.lease(rollout, 9)
    assert [lease.kind for lease in granted] == [enums.GroupKind.EXAMPLE] * 6, "those of two steps"
    for lease in reversed(granted[1:]):
        assert hand_in(bench, rollout, lease).outcome == "accepted"
        assert bench.pack() is None, "the first in the order is still under way"
    hand_in(bench, rollout, granted[0])
    assert (bench.pack(), bench.pack()) == (1, 2)
    bench.commit(trainer, 1)
    bench.commit(trainer, 2)
    assert learned(bench) == expected(bench, 6)


def test_rl_begins_with_the_weights_that_the_supervised_steps_led_to(make_bench: Make) -> None:
    bench = make_bench(sft_steps=2)
    rollout, trainer = bench.rollout(), bench.trainer()
    assert supervise(bench, rollout, trainer) == 1
    for lease in bench.lease(rollout, 9, serving=1):
        hand_in(bench, rollout, lease)
    assert bench.pack() == 2
    assert bench.lease(rollout, 9, serving=1) == [], "whatever the bound on age allows"
    bench.commit(trainer, 2)
    assert bench.lease(rollout, 9, serving=1) == []
    version = bench.publish(trainer, 2)
    assert bench.lease(rollout, 1, serving=1) == []
    granted = bench.lease(rollout, 9, serving=version)
    assert {lease.kind for lease in granted} == {enums.GroupKind.TRAIN}
    assert [lease.floor_step for lease in granted] == [2] * 4, "B 2, eta 1"
    for lease in granted:
        bench.submit(rollout, lease, versions=version)
    assert bench.pack() == 3


def test_a_rollout_that_waits_for_supervised_steps_waits_for_the_trainer(make_bench: Make) -> None:
    bench = make_bench(sft_steps=1)
    rollout = bench.rollout()
    bench.lease(rollout, 9)
    granted, reason = leases.lease(
        bench.ledger, token=rollout, capacity=1, serving_version=0, take=bench.order.take, now=bench.now,
        take_examples=bench.examples.take,
    )  # fmt: skip
    assert (granted, reason) == ([], enums.WaitReason.STALENESS)


def test_an_example_that_cannot_be_used_is_left_out_and_the_next_one_taken(make_bench: Make) -> None:
    bench = make_bench(sft_steps=1)
    rollout, trainer = bench.rollout(), bench.trainer()
    first, *others = bench.lease(rollout, 9)
    failure = types.MemberFailure(sample_index=0, role="rollout", reason=enums.DropReason.TOO_LONG, infra=False)
    bench.submit(rollout, first, rewards=(), failures=[failure])
    for lease in (*others, *bench.lease(rollout, 9)):
        hand_in(bench, rollout, lease)
    assert bench.pack() == 1
    bench.commit(trainer, 1)
    assert learned(bench) == expected(bench, 4)[1:]
    assert groups.num_unusable(bench.ledger, enums.GroupKind.EXAMPLE) == 1
    assert groups.num_unusable(bench.ledger) == 0


def test_examples_are_no_trajectories_and_their_tokens_are_not_generated(make_bench: Make) -> None:
    bench = make_bench(sft_steps=1)
    rollout, trainer = bench.rollout(), bench.trainer()
    supervise(bench, rollout, trainer)
    counters = bench.ledger.counters()
    assert counters["groups:accepted"] == 3
    told = {name for name in counters if name.startswith(("trajectories", "answers", "tokens_generated"))}
    assert told == set()
    assert queries.snapshot(bench.ledger).queue_depth == {"queued": 0, "leased": 0, "submitted": 0, "packed": 0}


def test_a_trainer_that_fell_back_gets_the_same_supervised_batches(make_bench: Make) -> None:
    bench = make_bench(sft_steps=3)
    rollout, trainer = bench.rollout(), bench.trainer()
    versions = [supervise(bench, rollout, trainer) for _ in range(2)]
    before = [steps.parts(bench.ledger, step=step, rank=0) for step in versions]
    again = bench.trainer(attempt=2, resume_step=0)
    assert [steps.parts(bench.ledger, step=step, rank=0) for step in versions] == before
    bench.reopen()
    for step in versions:
        bench.commit(again, step)
    assert learned(bench) == expected(bench, 6)


def test_a_trainer_behind_a_pruned_checkpoint_learns_the_same_examples_in_the_same_order(make_bench: Make) -> None:
    bench = make_bench(sft_steps=4)
    rollout, trainer = bench.rollout(), bench.trainer()
    for _ in range(2):
        supervise(bench, rollout, trainer)
    checkpoints.commit_checkpoint(
        bench.ledger, token=trainer, step=2, uri="c2", seconds=1.0, final=False, now=bench.now
    )
    while retention.prune(bench.ledger, history_seq=0, now=bench.now):
        pass
    # Two steps' examples are under way when the trainer comes back from the very beginning.
    ahead = bench.lease(rollout, 9)
    hand_in(bench, rollout, ahead[0])
    trainer = bench.trainer(attempt=2, resume_step=0)
    for step in range(1, 5):
        for lease in bench.lease(rollout, 9):
            hand_in(bench, rollout, lease)
        assert bench.pack() == step
        bench.commit(trainer, step)
    assert learned(bench) == expected(bench, 12)
    assert audit.audit(bench.ledger.db, max_off_policy_steps=1) == []


@pytest.mark.parametrize("seed", range(4))
def test_each_example_is_learned_exactly_as_often_in_the_same_order_whoever_is_lost(
    make_bench: Make, seed: int
) -> None:
    """Two epochs of twelve examples; leases are lost, released and handed in by two rollouts at random."""
    bench, chance = make_bench(sft_steps=8), random.Random(seed)
    rollouts = [bench.rollout("rollout-0"), bench.rollout("rollout-1")]
    trainer, open_leases = bench.trainer(), list[tuple[str, leases.Lease]]()
    while groups.committed(bench.ledger) < 8:
        event = chance.choice(("lease", "lease", "hand in", "hand in", "release", "lose", "pack", "commit", "reopen"))
        if event == "lease":
            rollout = chance.choice(rollouts)
            open_leases += [(rollout, lease) for lease in bench.lease(rollout, chance.randint(1, 4))]
        elif event in ("hand in", "release") and open_leases:
            rollout, lease = open_leases.pop(chance.randrange(len(open_leases)))
            if event == "hand in":
                hand_in(bench, rollout, lease)
            else:
                leases.release(bench.ledger, token=rollout, lease_id=lease.lease_id, reason="draining", now=bench.now)
        elif event == "lose":
            place = chance.randrange(2)
            lost, rollouts[place] = rollouts[place], bench.rollout(f"rollout-{place}")
            open_leases = [(rollout, lease) for rollout, lease in open_leases if rollout != lost]
        elif event == "pack":
            bench.pack()
        elif event == "commit" and groups.committed(bench.ledger) < groups.recorded(bench.ledger):
            bench.commit(trainer, groups.committed(bench.ledger) + 1)
        elif event == "reopen":
            bench.reopen()
    # One that failed too often is opened again, in its place.
    assert learned(bench) == expected(bench, 24)
    assert audit.audit(bench.ledger.db, max_off_policy_steps=1) == []


def test_a_supervised_batch_is_one_update_of_rows_with_advantage_one(make_bench: Make) -> None:
    bench = make_bench(sft_steps=1, minibatches=2)
    rollout = bench.rollout()
    for lease in bench.lease(rollout, 9):
        row = makers.make_trajectory(completion=(8, 9, 10), logprobs=0.0, reward=0.0)
        group = types.PromptGroup(
            lease_id=lease.lease_id, group_id=lease.group_id, attempt=lease.attempt, trajectories=[row]
        )
        bench.submit_group(rollout, group)
    choice = steps.with_payloads(bench.ledger.db, examples.choose(bench.ledger))
    built = builder.build(choice, bench.config)
    (micro_batch,) = built.packed.micro_batches[0]
    assert built.packed.minibatches == (types.Minibatch(num_tokens=9, num_rows=3),)
    assert list(micro_batch.advantages) == [1.0] * 9
    assert list(micro_batch.version_steps) == [0] * 9
    assert built.frozen.summary["phase"] == "SFT"
    assert "reward_mean" not in built.frozen.summary, "no one rewarded them"
