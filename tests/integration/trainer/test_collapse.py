"""A run that is driven into collapse is named while it still earns: a learning rate 20 times too high, a small model.

Real graders, packing, DeepSpeed updates and statistics; the judgement is that of the coordinator.
"""

import json
import os
import subprocess
import sys

import pytest
from tests.bench.learning import diverging

from rljob_api import learning
from rljob_testing.diverging import told

COLLAPSE = "RLJOB_COLLAPSE"
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.environ.get(COLLAPSE) != "1", reason=f"needs {COLLAPSE}=1: a minute of one core"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[learning.Point]]:
    """The points of each run, by how many times too high its learning rate is."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.learning.diverging", str(tmp_path_factory.mktemp("base"))],
        capture_output=True, text=True, timeout=850,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    points: dict[int, list[learning.Point]] = {}
    for line in (json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")):
        points.setdefault(line.pop("rate"), []).append(learning.Point(**line))
    return points


def test_a_rate_20_times_too_high_is_named_before_the_reward_is_gone(runs: dict[int, list[learning.Point]]) -> None:
    points = runs[diverging.TOO_HIGH]
    assert points[-1].reward < 0.2 * points[0].reward, "it must collapse"
    ((step, message), *_) = told(points)
    assert points[step - 1].reward > 0.5 * points[0].reward
    assert "lower spec.trainer.optimizer.learningRate" in message


def test_the_usual_rate_is_not_named(runs: dict[int, list[learning.Point]]) -> None:
    assert told(runs[1]) == []
