"""What an epoch leaves out of those after it: the choice, and that the ledger keeps it."""

from collections.abc import Callable
from typing import Any

import pytest

from rljob_api.manifest.data import CurriculumSpec, FilterGroupsSpec
from rljob_testing.sections import section
from rljob_workers.coordinator.ledger import groups, leases
from rljob_workers.coordinator.policy import curriculum

# A maker of the bench that conftest.py describes.
Make = Callable[..., Any]
SCORES = {("s", 0): 1.0, ("s", 1): 0.25, ("s", 2): 0.75, ("t", 0): 1.0, ("t", 1): 0.5}


def config(threshold: float = 0.5, fraction: float = 0.5) -> CurriculumSpec:
    return section(CurriculumSpec, filter_threshold=threshold, max_filter_percentage=fraction)


@pytest.mark.covers("workflows 6.2")
@pytest.mark.parametrize(
    ("threshold", "fraction", "num_drawn", "expected"),
    [
        (0.5, 1.0, 10, [("s", 0), ("t", 0), ("s", 2)]),
        (0.5, 0.25, 10, [("s", 0), ("t", 0)]),
        (0.5, 0.29, 100, [("s", 0), ("t", 0), ("s", 2)]),
        (0.5, 0.1, 9, []),
        (1e4, 1.0, 10, []),
        (-1.0, 1.0, 5, [("s", 0), ("t", 0), ("s", 2), ("t", 1)]),
    ],
    ids=["above the threshold alone", "the easiest first", "29 of 100", "less than one", "off", "never all"],
)
def test_the_easiest_prompts_leave_up_to_a_share_of_those_that_were_drawn(
    threshold: float, fraction: float, num_drawn: int, expected: list[curriculum.Prompt]
) -> None:
    assert curriculum.left_out(SCORES, num_drawn=num_drawn, config=config(threshold, fraction)) == expected


def test_29_hundredths_of_100_are_29_prompts() -> None:
    scores = {("s", place): 1.0 for place in range(100)}
    assert len(curriculum.left_out(scores, num_drawn=100, config=config(0.5, 0.29))) == 29


def epoch(bench: Any, rollout: str, trainer: str, *, rewards: dict[str, tuple[float, float]], serving: int) -> set[str]:
    """Draw and train four prompts in two steps, each with its rewards; return the ids of what was drawn."""
    drawn = set()
    for _ in range(2):
        for lease in bench.lease(rollout, 2, serving=serving):
            drawn.add(lease.ref.prompt_id)
            bench.submit(rollout, lease, rewards=rewards.get(lease.ref.prompt_id, (1.0, 0.0)), versions=serving)
        step = bench.pack()
        bench.commit(trainer, step)
        serving = bench.publish(trainer, step)
    return drawn


@pytest.mark.covers("workflows 6.2")
def test_a_prompt_above_the_threshold_is_in_no_later_epoch_also_after_a_restart(make_bench: Make) -> None:
    bench = make_bench(num_prompts=4, max_off_policy_steps=0, curriculum=config(0.6, 0.25))
    rollout, trainer = bench.rollout(), bench.trainer()
    easy = {"p1": (1.0, 0.75), "p2": (1.0, 0.5)}
    assert epoch(bench, rollout, trainer, rewards=easy, serving=0) == {"p0", "p1", "p2", "p3"}
    (first, *_) = bench.lease(rollout, 1, serving=2)
    leases.release(bench.ledger, token=rollout, lease_id=first.lease_id, reason="drain", now=bench.now)
    bench.reopen()
    drawn: list[str] = []
    serving = 2
    while len(drawn) < 6:
        for lease in bench.lease(rollout, 2, serving=serving):
            drawn.append(lease.ref.prompt_id)
            bench.submit(rollout, lease, rewards=(1.0, 0.0), versions=serving)
        step = bench.pack()
        bench.commit(trainer, step)
        serving = bench.publish(trainer, step)
    # A quarter of four is one: p1, the easier of the two; three prompts are an epoch now.
    assert set(drawn[:3]) == set(drawn[3:]) == {"p0", "p2", "p3"}


@pytest.mark.covers("workflows 6.2")
def test_a_group_that_the_filter_rejects_as_too_easy_counts(make_bench: Make) -> None:
    rejecting = section(FilterGroupsSpec, enabled=True, max_extra_groups=1000)
    bench = make_bench(num_prompts=2, max_off_policy_steps=0, curriculum=config(0.9, 0.5), filter_groups=rejecting)
    rollout = bench.rollout()
    drawn = []
    for _ in range(4):
        (lease,) = bench.lease(rollout, 1)
        drawn.append(lease.ref.prompt_id)
        assert bench.submit(rollout, lease, rewards=(1.0, 1.0)).outcome == "filtered"
    assert len(set(drawn[:2])) == 2
    assert len(set(drawn[2:])) == 1, "of two prompts one is left out, and never both"


@pytest.mark.covers("workflows 6.2")
def test_where_the_last_prompts_of_the_data_are_left_out_the_data_end(make_bench: Make) -> None:
    bench = make_bench(num_prompts=2, epochs=2, max_off_policy_steps=0, curriculum=config(-1.0, 0.5))
    rollout, trainer = bench.rollout(), bench.trainer()
    drawn: list[str] = []
    serving = 0
    for lease in bench.lease(rollout, 2, serving=serving):
        drawn.append(lease.ref.prompt_id)
        bench.submit(rollout, lease, rewards=(1.0, 0.0), versions=serving)
    bench.commit(trainer, bench.pack())
    serving = bench.publish(trainer, 1)
    rest = bench.lease(rollout, 2, serving=serving)
    assert len(rest) == 1
    assert bench.order.take(groups.cursor(bench.ledger), 1)[0] == []


def test_without_a_curriculum_nothing_is_kept_of_rewards(make_bench: Make) -> None:
    bench = make_bench()
    rollout = bench.rollout()
    (lease,) = bench.lease(rollout, 1)
    bench.submit(rollout, lease)
    assert bench.ledger.number("SELECT COUNT(*) AS n FROM scores") == 0
