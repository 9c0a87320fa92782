"""Every estimator, every loss and every proximal policy learns an easy task: a tiny model, rewarded for even tokens.

Real rows, packing, DeepSpeed updates and, for ppo, a real critic. A sign, an order or a mask that is wrong anywhere
between reward and gradient shows here, whatever each part says of itself.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from rljob_testing import learning

pytestmark = pytest.mark.timeout(600)
# Before anything is learned about half of all tokens are even.
LEARNED = 0.8


@pytest.fixture(scope="module")
def rewards(tiny_models: dict[str, pathlib.Path]) -> dict[str, list[float]]:
    """The mean reward of each step by case."""
    done = subprocess.run(
        [sys.executable, "-m", "rljob_testing.learning", str(tiny_models["float32"]), *learning.CASES],
        capture_output=True, text=True, timeout=550,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["case"]: line["rewards"] for line in lines}


@pytest.mark.covers("algorithms 5")
@pytest.mark.parametrize("case", learning.CASES)
def test_reward_rises(rewards: dict[str, list[float]], case: str) -> None:
    first, *_, before, last = rewards[case]
    assert first < 0.65, "there must be something to learn"
    assert (before + last) / 2 > LEARNED, f"rewards by step: {rewards[case]}"
