import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from rljob_api import enums, process_config, types
from rljob_workers.coordinator.ledger import queries, steps, versions
from rljob_workers.coordinator.reporting import processes, status

Make = Callable[..., Any]
MakeConfig = Callable[..., process_config.CoordinatorConfig]


@pytest.fixture
def config(make_config: MakeConfig) -> process_config.CoordinatorConfig:
    return make_config(max_steps=100)


def step(number: int, *, trained_at: float, wait_s: float = 0.0, reward: float = 0.5) -> queries.StepRecord:
    return queries.StepRecord(
        step=number, packed_at=0.0, trained_at=trained_at, summary={"reward_mean": reward},
        stats={enums.StepStat.WAIT_S: wait_s},
    )  # fmt: skip


def view(config: process_config.CoordinatorConfig, known: queries.Facts, *some: processes.Pod) -> status.View:
    return status.View(
        config=config, facts=known, pods=some, results=(), now=100.0, started_at=1.0, last_progress_at=99.0
    )


def test_the_trainer_wait_share_is_waiting_over_wall_seconds() -> None:
    # Simulated: steps end every 10 s, the trainer waited 2 s, then 4 s.
    steps = [step(1, trained_at=10, wait_s=9), step(2, trained_at=20, wait_s=2), step(3, trained_at=30, wait_s=4)]
    assert status.trainer_wait_share(steps) == pytest.approx(0.3)
    assert status.trainer_wait_share(steps[:1]) == 0.0


def test_a_wait_of_the_trainer_counts_while_it_lasts() -> None:
    """The two steps took 20 s, of which it waited for 6."""
    steps = [step(1, trained_at=10, wait_s=9), step(2, trained_at=20, wait_s=2), step(3, trained_at=30, wait_s=4)]
    assert status.trainer_wait_share(steps, waiting_s=20.0) == pytest.approx(26 / 40)


@pytest.mark.parametrize(("last_seen", "share"), [(99.0, 26 / 40), (1.0, 0.3)], ids=["there", "gone"])
def test_status_tells_of_the_wait_of_a_trainer_that_is_there(
    make_bench: Make, config: process_config.CoordinatorConfig, last_seen: float, share: float
) -> None:
    steps = (step(1, trained_at=10, wait_s=9), step(2, trained_at=20, wait_s=2), step(3, trained_at=30, wait_s=4))
    known = dataclasses.replace(queries.snapshot(make_bench().ledger), steps=steps)
    waiting = processes.Pod(
        token="t",
        role=enums.Role.TRAINER,
        pod="trainer-0",
        waiting_since=80.0,
        waiting_for="a batch",
        last_seen=last_seen,
    )
    assert status.status(view(config, known, waiting)).trainer_wait_share == pytest.approx(share)


def test_a_fresh_run_is_starting(make_bench: Make, config: process_config.CoordinatorConfig) -> None:
    found = status.status(view(config, queries.snapshot(make_bench().ledger)))
    assert (found.phase, found.step, found.max_steps, found.reward_mean) == (enums.Phase.STARTING, 0, 100, None)


def test_status_tells_of_each_trainer_attempt_and_by_which_clock(
    make_bench: Make, config: process_config.CoordinatorConfig
) -> None:
    bench = make_bench()
    rollout, trainer = bench.rollout(), bench.trainer()
    bench.step(rollout, trainer)
    found = status.status(view(config, queries.snapshot(bench.ledger)))
    assert found.attempts == (types.TrainerAttempt(attempt=1, first_step_at=bench.now),)
    assert found.said_at == 100.0, "when it was asked, as `last_progress_at` is"


def test_reward_lag_and_step_time_come_from_recent_steps(
    make_bench: Make, config: process_config.CoordinatorConfig
) -> None:
    bench = make_bench()
    rollout, trainer = bench.rollout(), bench.trainer()
    bench.step(rollout, trainer)
    steps = (
        step(1, trained_at=10, reward=0.2), step(2, trained_at=30, reward=0.4), step(3, trained_at=40, reward=0.6)
    )  # fmt: skip
    known = dataclasses.replace(queries.snapshot(bench.ledger), steps=steps)
    late = processes.Pod(token="t", role=enums.Role.ROLLOUT, pod="rollout-0", last_seen=99.0, serving_version=0)
    found = status.status(view(config, known, late))
    assert found.reward_mean == 0.6
    assert found.reward_delta == pytest.approx(0.3)
    assert found.step_s == 15.0
    assert (found.published_version, found.oldest_serving_version, found.version_lag_steps) == (1, 0, 1)


def test_a_silent_process_neither_counts_nor_waits(make_bench: Make, config: process_config.CoordinatorConfig) -> None:
    gone = processes.Pod(
        token="t", role=enums.Role.ROLLOUT, pod="rollout-0", last_seen=10.0, serving_version=0,
        receiver_state=enums.ReceiverState.SERVING, waiting_for="verifier", waiting_since=5.0,
    )  # fmt: skip
    found = status.status(view(config, queries.snapshot(make_bench().ledger), gone))
    assert [pod.ready for pod in found.pods] == [False]
    assert found.waiting == ()


@pytest.mark.covers("workflows 6.2")
def test_filter_starvation_is_named(make_bench: Make, make_config: MakeConfig) -> None:
    config = make_config()
    known = dataclasses.replace(queries.snapshot(make_bench().ledger), filtered_this_step=1001)
    assert status.status(view(config, known)).reason == "FilterStarvation"


def test_everything_that_moves_is_progress(make_bench: Make) -> None:
    bench = make_bench()
    rollout, trainer = bench.rollout(), bench.trainer()
    seen = [status.progress(bench.ledger.counters())]

    def note() -> None:
        seen.append(status.progress(bench.ledger.counters()))

    (first, second) = bench.lease(rollout, 2)
    for lease in (first, second):
        bench.submit(rollout, lease)
        note()
    bench.pack()
    steps.decide(bench.ledger, token=trainer, step=1, rank=0, world_size=1, stop=False)
    note()
    bench.commit(trainer, 1)
    note()
    version = bench.publish(trainer, 1)
    note()
    versions.mark_live(bench.ledger, version, now=1.0)
    note()
    assert seen == sorted(set(seen))


def test_a_ledger_that_does_not_answer_is_named_with_the_last_status_known() -> None:
    last = types.RunStatus(job="j", phase=enums.Phase.RUNNING, step=7)
    assert status.stuck(last) == dataclasses.replace(last, reason="LedgerStuck")


def test_a_share_of_lost_answers_above_the_policys_is_the_reason(
    make_bench: Make, config: process_config.CoordinatorConfig
) -> None:
    seen, most = (
        view(config, queries.snapshot(make_bench().ledger)),
        config.spec.failure_policy.max_infra_failure_fraction,
    )
    within, above = (
        status.status(dataclasses.replace(seen, infra_share=share)).reason for share in (most, most + 0.01)
    )
    assert (within, above) == ("", "InfraFailureShareHigh")


def test_answers_that_are_chosen_by_their_length_are_a_concern_and_no_degradation(
    make_bench: Make, config: process_config.CoordinatorConfig
) -> None:
    known = queries.snapshot(make_bench().ledger)
    counters = {"answers:trained": 900, "answer_tokens:trained": 9000, "answers:cancelled": 100}
    told = status.status(view(config, dataclasses.replace(known, counters=counters)))
    assert [concern.reason for concern in told.concerns] == ["LengthSelection"]
    assert told.reason == ""


def test_groups_that_are_lost_filtered_or_late_are_no_progress() -> None:
    """A run that only makes such groups is busy and makes no progress."""
    busy = {"groups:infra_failure": 9, "groups:filtered": 9, "groups:stale": 9, "trajectories:infra_failure": 99}
    assert status.progress(busy) == 0
    assert status.progress({**busy, "groups:accepted": 1, "steps_committed": 1}) == 2


def test_groups_that_are_left_out_are_told_by_reason(
    make_bench: Make, config: process_config.CoordinatorConfig
) -> None:
    bench = make_bench(num_prompts=3)
    rollout = bench.rollout()
    (lease,) = bench.lease(rollout)
    failures = [
        types.MemberFailure(sample_index=index, role="rollout", reason=enums.DropReason.TOO_LONG, infra=False)
        for index in range(2)
    ]
    bench.submit(rollout, lease, rewards=(), failures=failures)
    told = status.status(view(config, queries.snapshot(bench.ledger))).left_out
    assert told == {"too_long": 1, "invalid_record": 0}


@pytest.mark.covers("workflows 10")
def test_dumps_that_failed_are_counted_over_all_rollouts(
    make_bench: Make, config: process_config.CoordinatorConfig
) -> None:
    some = [
        processes.Pod(
            token=f"t{n}", role=enums.Role.ROLLOUT, pod=f"rollout-{n}", load=types.RolloutLoad(dump_failures=n)
        )
        for n in (2, 3)
    ]
    assert status.status(view(config, queries.snapshot(make_bench().ledger), *some)).dump_failures == 5
