"""What a report says is notable."""

import dataclasses
from typing import Any

import pytest

from rljob_api import enums
from rljob_workers.local.report import findings, summary
from rljob_workers.local.rundir import history, journal


def step(number: int, **changes: Any) -> history.Step:
    facts = {"reward_mean": number / 20, "reward_std": 0.3, "phases_s": {"wait": 0.5, "forward_backward": 9.5}}
    return history.Step(step=number, started_at=10.0 * number, finished_at=10.0 * number + 10, **(facts | changes))


def run(num_steps: int = 10, **changes: Any) -> history.Run:
    return history.Run(steps=[step(number, **changes) for number in range(1, num_steps + 1)])


def found(told: history.Run, *entries: journal.Entry, **numbers: Any) -> dict[str, str]:
    whole = summary.summarize(told, wall_s=100.0, peak_rss_bytes={})
    changed = whole.model_copy(update=numbers)
    return {one.section: one.sentence for one in findings.findings(told, changed, entries)}


def gap(nats: float) -> dict[str, float]:
    return {enums.StepStat.LOGPROB_ABS_DIFF: nats}


def counts(**changes: int) -> summary.TrajectoriesPart:
    return summary.TrajectoriesPart(**{"accepted": 100, "stale": 0, "infra_failed": 0, "filtered": 0, **changes})


def test_run_that_learns_and_wastes_nothing_has_nothing_that_stands_out() -> None:
    assert found(run()) == {}


def test_run_without_steps_tells_nothing() -> None:
    assert found(history.Run()) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward_mean": 0.0}, "No answer was ever right"),
        ({"reward_mean": 1.0, "reward_std": 0.0}, "All answers of a step get the same reward"),
        ({"reward_mean": 0.4}, "The reward does not rise: 0.400 in the beginning, 0.400 in the end."),
    ],
)
def test_reward_that_teaches_nothing_or_does_not_rise_is_told(changes: dict[str, float], said: str) -> None:
    assert said in found(run(**changes))[findings.REWARD]


@pytest.mark.parametrize("changes", [{"reward_mean": 0.0}, {"reward_mean": 1.0, "reward_std": 0.0}])
def test_rewards_that_are_all_alike_are_nothing_to_tell_where_a_teacher_scores(changes: dict[str, float]) -> None:
    told = found(run(7, stats={enums.StepStat.TEACHER_KL: 0.4}, **changes))
    assert findings.REWARD not in told


def test_seven_steps_are_too_few_for_a_trend() -> None:
    assert found(run(7, reward_mean=0.4)) == {}
    assert findings.REWARD in found(run(8, reward_mean=0.4))


@pytest.mark.parametrize(("last", "told"), [(0.43, False), (0.42, True)])
def test_score_that_fell_by_more_than_chance_is_told(last: float, told: bool) -> None:
    # 200 answers, half of them right: two standard errors are 0.0707.
    scores = [history.Evaluation(suite="held-out", step=0, accuracy=0.5, n=200)]
    scores.append(history.Evaluation(suite="held-out", step=10, accuracy=last, n=200))
    said = found(dataclasses.replace(run(), evaluations=scores))
    assert (findings.EVALUATION in said) is told


@pytest.mark.parametrize(("stale", "told"), [(5, False), (6, True)])
def test_work_that_was_thrown_away_is_told_above_one_in_twenty(stale: int, told: bool) -> None:
    assert (findings.STALENESS in found(run(), trajectories=counts(stale=stale))) is told


@pytest.mark.parametrize(("failed", "told"), [(1, False), (2, True)])
def test_failures_that_are_nobodys_answer_are_told_above_one_in_a_hundred(failed: int, told: bool) -> None:
    assert (findings.THROUGHPUT in found(run(), trajectories=counts(infra_failed=failed))) is told


@pytest.mark.parametrize(
    ("trainer", "rollout", "said"),
    [
        (0.31, 0.0, "The trainer waits 31% of its time: rollouts are too slow."),
        (0.0, 0.31, "The rollouts wait 31% of their time"),
        (0.31, 0.4, "Both sides wait, the trainer 31% and the rollouts 40% of their time."),
    ],
)
def test_who_waits_for_more_than_three_tenths_is_named(trainer: float, rollout: float, said: str) -> None:
    share = summary.WaitSharePart(trainer=trainer, rollout=rollout)
    assert said in found(run(), wait_share=share)[findings.WAITS]


def test_version_that_stops_generation_for_more_than_a_tenth_of_a_step_is_told() -> None:
    def syncs(pause_s: float) -> dict[str, str]:
        sync = history.Sync(pod="r", version=1, pause_s=pause_s, total_s=2.0, num_bytes=1, requests_in_flight=1)
        return found(dataclasses.replace(run(), syncs=[sync]))

    assert syncs(1.0) == {}
    assert syncs(1.01)[findings.UPDATES] == "A new version stops generation for 1.01 s of a step's 10.0 s."


def test_gap_is_judged_by_its_median_so_that_one_odd_step_says_nothing() -> None:
    steps = [step(number, stats=gap(0.03)) for number in range(1, 10)]
    one_odd = history.Run(steps=[*steps, step(10, stats=gap(2.0))])
    assert found(one_odd) == {}
    assert "0.060 nats" in found(run(stats=gap(0.06)))[findings.GAP]


def test_processes_that_came_back_are_counted() -> None:
    entry = journal.Entry(event="ended", at=1.0, name="rollout", role="rollout", code=-9, detail="restart in 1 s")
    assert found(run(), entry)[findings.RESTARTS] == "1 process were restarted."
    assert found(run(), entry, entry)[findings.RESTARTS] == "2 processes were restarted."
