"""The addition example as it stands, on two nodes: it learns as on one machine, and `kubectl get -w` shows it."""

import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from rljob_testing.cluster import whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.whole_job import Watched

NAME = "learning"
FINISHED_S = 1800.0
# As in local runs of the example: from below 0.25 to above 0.55, three seeds.
RISE = 0.2
Row = dict[str, str]


@pytest.fixture(scope="module")
def watched(
    all_asked: None, operator: FullCluster, volume_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Watched, list[Row]]]:
    """The job after its end, and what a person who watched it read, row by row."""
    whole_job.apply(operator, [*whole_job.surroundings(NAME, volume_folder), whole_job.addition(NAME, {})])
    shown = tmp_path_factory.mktemp("watched") / "rljob.txt"
    with shown.open("wb") as file:
        process = subprocess.Popen(operator.plane.kubectl_command("get", "rljob", NAME, "-w"), stdout=file)
        try:
            job = Watched(operator, NAME)
            job.until(whole_job.is_over, FINISHED_S)
        finally:
            process.terminate()
            process.wait()
    yield job, rows(shown.read_text())
    operator.kubectl("delete", "rljob", NAME, "--wait=false")


def rows(shown: str) -> list[Row]:
    """Return the rows in which every column is filled."""
    header, *lines = [line.split() for line in shown.splitlines()]
    return [dict(zip(header, line, strict=True)) for line in lines if len(line) == len(header)]


def test_rows_without_a_reward_are_left_out() -> None:
    shown = "NAME STATUS  STEP REWARD\nrun  Running\nrun  Running 2    0.5\n"
    assert rows(shown) == [{"NAME": "run", "STATUS": "Running", "STEP": "2", "REWARD": "0.5"}]


def test_reward_rises_as_in_a_local_run(watched: tuple[Watched, list[Row]]) -> None:
    job, shown = watched
    assert job.status()["summary"] == "Succeeded", job.describe()
    by_step = {int(row["STEP"]): float(row["REWARD"]) for row in shown if int(row["STEP"])}
    rewards = [by_step[step] for step in sorted(by_step)]
    assert len(rewards) >= 10, shown
    first, last = sum(rewards[:3]) / 3, sum(rewards[-5:]) / 5
    print(f"mean reward of the first three steps shown {first:.3f}, of the last five {last:.3f}; {job.seen}")
    assert last - first >= RISE, by_step


def test_steps_only_rise_and_no_rollout_is_far_behind(watched: tuple[Watched, list[Row]]) -> None:
    _, shown = watched
    steps = [int(row["STEP"]) for row in shown]
    assert steps == sorted(steps)
    assert max(int(row["LAG"]) for row in shown) <= 3, shown


def test_model_answers_more_held_out_questions_than_before(watched: tuple[Watched, list[Row]]) -> None:
    job, _ = watched
    status: Any = job.status()
    (suite,) = status["evaluation"]
    print(f"held-out: {suite}")
    assert float(suite["accuracy"]) >= 0.4, "24 % before"
