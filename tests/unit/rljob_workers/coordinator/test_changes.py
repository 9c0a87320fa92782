"""Who is woken by a commit: the ranks by batches, of the rollouts those whose lease is there, and no one else."""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from rljob_testing.clock import FakeClock
from rljob_workers.coordinator import changes

Make = Callable[..., Any]


@pytest.fixture
def quiet(make_bench: Make) -> changes.Pulse:
    """The pulse of a run in which nothing may be leased: V is 3, floor 2, nothing is queued."""
    bench = make_bench()
    found = changes.of(bench.ledger)
    bench.ledger.close()
    return dataclasses.replace(found, room=0, queued=0, floor=2, recorded=3)


def wanted(step: int | None = 3, *, capacity: int = 1, reason: str = "staleness", **kinds: Any) -> changes.LeaseDemand:
    return changes.LeaseDemand(
        **{"token": "rollout", "evaluates": False} | kinds,
        version=step or 0,
        step=step,
        capacity=capacity,
        reason=reason,
    )


async def woken(signals: changes.Changes, waiting: list[changes.LeaseDemand], *pulses: changes.Pulse) -> list[int]:
    """Return which of those who wait are woken by pulses, by their places."""
    tasks = [asyncio.create_task(signals.wait_for_lease(one, signals.mark, 60.0)) for one in waiting]
    await asyncio.sleep(0)
    for each in pulses:
        signals.take(each)
    for _ in range(10):
        await asyncio.sleep(0)
    done = [place for place, task in enumerate(tasks) if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return done


async def test_a_commit_that_frees_nothing_wakes_no_rollout(quiet: changes.Pulse) -> None:
    signals = changes.Changes(FakeClock(), quiet)
    assert await woken(signals, [wanted()] * 3, *[quiet] * 100) == []
    assert signals.mark == 100, "who looks at everything is told of everything"


async def test_as_many_are_woken_as_there_is_room_for_who_waits_longest_first(quiet: changes.Pulse) -> None:
    signals = changes.Changes(FakeClock(), quiet)
    room = dataclasses.replace(quiet, room=3, queued=3)
    waiting = [wanted(capacity=2), wanted(step=1), wanted(step=4), wanted(step=None), wanted(), wanted(), wanted()]
    # Too old a version, one of an undone step and an unknown one can take nothing.
    assert await woken(signals, waiting, room) == [0, 4]


async def test_who_loads_the_head_is_woken_by_the_room_that_it_makes(quiet: changes.Pulse) -> None:
    signals = changes.Changes(FakeClock(), quiet)
    published = dataclasses.replace(quiet, room=2, queued=2, head_version=9, head_step=3)

    def waiting() -> list[changes.LeaseDemand]:
        return [wanted(1), wanted(1, ahead=True), wanted(None, ahead=True)]

    assert await woken(signals, waiting(), published) == [1, 2]
    undone = dataclasses.replace(published, head_step=4)
    assert await woken(signals, waiting(), undone) == []


async def test_room_of_the_head_is_not_given_to_who_evaluates_an_older_version(quiet: changes.Pulse) -> None:
    published = dataclasses.replace(quiet, head_version=9, head_step=3, evaluating=1)
    signals = changes.Changes(FakeClock(), published)
    waiting = [wanted(1, ahead=True, evaluates=True), wanted(1, ahead=True)]
    assert await woken(signals, waiting, dataclasses.replace(published, room=1, queued=1)) == [1]


async def test_an_evaluation_that_begins_wakes_everybody_since_anyone_may_be_chosen(quiet: changes.Pulse) -> None:
    signals = changes.Changes(FakeClock(), quiet)
    begun = dataclasses.replace(quiet, evaluating=3, eval_queued=1)
    assert await woken(signals, [wanted(1), wanted()], begun) == [0, 1]


async def test_who_lacks_prompts_is_woken_by_prompts(quiet: changes.Pulse) -> None:
    signals = changes.Changes(FakeClock(), quiet)
    lacking = wanted(reason="no_prompts")
    assert await woken(signals, [lacking], dataclasses.replace(quiet, room=5)) == []
    assert await woken(signals, [lacking], dataclasses.replace(quiet, room=5, queued=1)) == [0]


async def test_groups_of_an_evaluation_wake_those_that_evaluate_it(quiet: changes.Pulse) -> None:
    evaluating = dataclasses.replace(quiet, evaluating=3)
    signals = changes.Changes(FakeClock(), evaluating)
    kinds: list[dict[str, Any]] = [
        {}, {"evaluates": True}, {"step": 2, "evaluates": True}, {"step": 2, "evaluates": True, "ahead": True},
    ]  # fmt: skip
    for queued, expected in [(1, [1]), (9, [1, 3])]:
        waiting = [wanted(**kind) for kind in kinds]
        assert await woken(signals, waiting, dataclasses.replace(evaluating, eval_queued=queued)) == expected


async def test_the_end_of_the_run_wakes_everybody(quiet: changes.Pulse) -> None:
    signals = changes.Changes(FakeClock(), quiet)
    end = dataclasses.replace(quiet.completion, committed=quiet.completion.last_step)
    assert await woken(signals, [wanted(step=1), wanted()], dataclasses.replace(quiet, completion=end)) == [0, 1]


async def test_what_happens_between_the_look_and_the_wait_is_not_missed(quiet: changes.Pulse) -> None:
    signals = changes.Changes(FakeClock(), quiet)
    mark = signals.mark
    signals.take(dataclasses.replace(quiet, room=1, queued=1))
    await asyncio.wait_for(signals.wait_for_lease(wanted(), mark, 600.0), 60)
    signals.take(dataclasses.replace(quiet, room=1, queued=1))
    # Nothing has changed since this mark: what was refused would be refused again.
    task = asyncio.create_task(signals.wait_for_lease(wanted(), signals.mark, 60.0))
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()


async def test_ranks_are_woken_by_batches_and_not_by_groups(quiet: changes.Pulse) -> None:
    signals = changes.Changes(FakeClock(), quiet)
    batches, loads = signals.batches.mark, signals.loads.mark
    signals.take(dataclasses.replace(quiet, room=1, queued=4))
    assert (signals.batches.mark, signals.loads.mark) == (batches, loads)
    signals.take(dataclasses.replace(quiet, recorded=4))
    assert (signals.batches.mark, signals.loads.mark) == (batches + 1, loads)
    signals.take(dataclasses.replace(quiet, recorded=4, head_version=1))
    assert (signals.batches.mark, signals.loads.mark) == (batches + 1, loads + 1)
    signals.take(dataclasses.replace(quiet, recorded=4, head_version=1, stop_step=5))
    assert signals.batches.mark == batches + 2


async def test_examples_wake_rollouts_of_any_version(quiet: changes.Pulse) -> None:
    signals = changes.Changes(FakeClock(), quiet)
    waiting = [wanted(step=0), wanted(step=None), wanted(), wanted()]
    assert await woken(signals, waiting, dataclasses.replace(quiet, examples=3)) == [0, 1, 2]
