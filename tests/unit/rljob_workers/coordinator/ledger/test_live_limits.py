"""Limits that change while a ledger is in use: what they free, what they drop, and an end that was reported already."""

from collections.abc import Callable
from typing import Any

from rljob_api import enums
from rljob_testing.sections import with_spec
from rljob_workers.coordinator.ledger import checkpoints, groups, queries, steps

MakeBench = Callable[..., Any]
KIND = enums.BatchKind


def take_over(bench: Any, **changes: int) -> None:
    bench.config = with_spec(bench.config, **changes)
    groups.take_over(bench.ledger, bench.config, now=bench.now)


def answer(bench: Any, trainer: str, step: int) -> enums.BatchKind:
    header = steps.decide(bench.ledger, token=trainer, step=step, rank=0, world_size=1, stop=False)
    kind: enums.BatchKind = header.kind
    return kind


def ended(bench: Any, *, saved: bool) -> str:
    """Train the one step of the run and show the trainer that it was the last; return the trainer's session."""
    rollout, trainer = bench.rollout(), bench.trainer()
    bench.step(rollout, trainer)
    assert answer(bench, trainer, 2) is KIND.FINISHED
    if saved:
        checkpoints.commit_checkpoint(
            bench.ledger, token=trainer, step=1, uri="c1", seconds=0.0, final=True, now=bench.now
        )
    return str(trainer)


def test_a_later_end_makes_room_for_more_groups(make_bench: MakeBench) -> None:
    bench = make_bench(max_steps=1)
    rollout = bench.rollout()
    assert len(bench.lease(rollout, capacity=9)) == 2, "one step of two prompts"
    take_over(bench, max_steps=2)
    assert len(bench.lease(rollout, capacity=9)) == 2, "one more step"


def test_a_larger_bound_makes_room_for_more_groups(make_bench: MakeBench) -> None:
    bench = make_bench(max_off_policy_steps=0)
    rollout = bench.rollout()
    assert len(bench.lease(rollout, capacity=9)) == 2
    take_over(bench, max_off_policy_steps=1, max_inflight_groups=4)
    assert len(bench.lease(rollout, capacity=9)) == 2


def test_a_smaller_bound_drops_at_once_what_no_longer_fits_and_its_prompts_are_next(make_bench: MakeBench) -> None:
    bench = make_bench(max_off_policy_steps=1)
    rollout, trainer = bench.rollout(), bench.trainer()
    granted = bench.lease(rollout, capacity=4)
    for lease in granted:
        bench.submit(rollout, lease, versions=0)
    bench.commit(trainer, bench.pack())
    bench.publish(trainer, 1)
    assert groups.counts(bench.ledger).submitted == 2
    take_over(bench, max_off_policy_steps=0)
    assert groups.counts(bench.ledger).submitted == 0
    again = bench.lease(rollout, capacity=2, serving=1)
    assert [lease.ref.prompt_id for lease in again] == [lease.ref.prompt_id for lease in granted[2:]]


def test_the_largest_bound_that_ever_held_is_kept_over_a_restart(make_bench: MakeBench) -> None:
    bench = make_bench(max_off_policy_steps=1)
    for bound in (4, 2):
        take_over(bench, max_off_policy_steps=bound)
    bench.reopen()
    assert bench.ledger.meta("max_off_policy_steps") == "4"


def test_an_end_that_the_trainer_was_told_stays_the_end(make_bench: MakeBench) -> None:
    bench = make_bench(max_steps=1)
    trainer = ended(bench, saved=False)
    take_over(bench, max_steps=3)
    assert answer(bench, trainer, 2) is KIND.FINISHED
    assert queries.completion(bench.ledger).last_step == 1
    assert bench.lease(bench.rollout("rollout-1"), capacity=9, serving=1) == []


def test_the_next_attempt_of_the_trainer_goes_on_to_the_later_end(make_bench: MakeBench) -> None:
    bench = make_bench(max_steps=1)
    ended(bench, saved=False)
    take_over(bench, max_steps=3)
    assert answer(bench, bench.trainer(attempt=2, resume_step=1), 2) is KIND.NOT_READY
    assert queries.completion(bench.ledger).last_step == 3


def test_a_run_that_ended_goes_on_when_it_is_started_again_with_a_later_end(make_bench: MakeBench) -> None:
    bench = make_bench(max_steps=1)
    ended(bench, saved=True)
    bench.config = with_spec(bench.config, max_steps=3)
    bench.reopen()
    checkpoints.go_on_after_end(bench.ledger)
    assert queries.completion(bench.ledger).last_step == 3
    assert queries.completion(bench.ledger).final_checkpoint_at is None


def test_a_restart_while_the_trainer_saves_its_last_checkpoint_does_not_move_the_end(make_bench: MakeBench) -> None:
    bench = make_bench(max_steps=1)
    ended(bench, saved=False)
    bench.config = with_spec(bench.config, max_steps=3)
    bench.reopen()
    checkpoints.go_on_after_end(bench.ledger)
    assert queries.completion(bench.ledger).last_step == 1


def test_a_run_that_ended_and_is_started_again_as_it_was_has_ended(make_bench: MakeBench) -> None:
    bench = make_bench(max_steps=1)
    ended(bench, saved=True)
    bench.reopen()
    checkpoints.go_on_after_end(bench.ledger)
    assert groups.announced_end(bench.ledger) == 1
    assert queries.completion(bench.ledger).final_checkpoint_at is not None
