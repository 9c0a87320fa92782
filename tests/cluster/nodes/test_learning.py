"""The addition example as it is, on two nodes: it learns as on one machine, and `kubectl get -w` shows it."""

from typing import Any

from rljob_testing.cluster import learning_run
from rljob_testing.cluster.learning_run import LearningRun

# As in local runs of the example: from below 0.25 to above 0.55, three seeds.
RISE = 0.2


def test_rows_without_a_reward_are_left_out() -> None:
    shown = "NAME STATUS  STEP REWARD\nrun  Running\nrun  Running 2    0.5\n"
    assert learning_run.rows(shown) == [{"NAME": "run", "STATUS": "Running", "STEP": "2", "REWARD": "0.5"}]


def test_reward_rises_as_in_a_local_run(learned: LearningRun) -> None:
    assert learned.job.status()["summary"] == "Succeeded", learned.job.describe()
    by_step = {int(row["STEP"]): float(row["REWARD"]) for row in learned.rows if int(row["STEP"])}
    rewards = [by_step[step] for step in sorted(by_step)]
    assert len(rewards) >= 10, learned.rows
    first, last = sum(rewards[:3]) / 3, sum(rewards[-5:]) / 5
    print(f"mean reward of the first three steps shown {first:.3f}, of the last five {last:.3f}; {learned.job.seen}")
    assert last - first >= RISE, by_step


def test_steps_only_rise_and_no_rollout_is_far_behind(learned: LearningRun) -> None:
    steps = [int(row["STEP"]) for row in learned.rows]
    assert steps == sorted(steps)
    assert max(int(row["LAG"]) for row in learned.rows) <= 3, learned.rows


def test_model_answers_more_held_out_questions_than_before(learned: LearningRun) -> None:
    status: Any = learned.job.status()
    (suite,) = status["evaluation"]
    print(f"held-out: {suite}")
    assert float(suite["accuracy"]) >= 0.4, "24 % before"
