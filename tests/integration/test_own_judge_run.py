"""A run whose judge serves its model itself, and loses it: vLLM's real server with the small model.

RLJOB_EVERY_EXAMPLE=1 runs it: two minutes of two cores.
"""

import os
import pathlib
import signal

import pytest

from rljob_testing.every_example import EVERY_EXAMPLE
from rljob_testing.runs import Runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get(EVERY_EXAMPLE), reason=f"a judge with its own model was not asked for ({EVERY_EXAMPLE}=1)"
    ),
]
STEPS = 4
CHANGES: dict[str, object] = {
    "maxSteps": STEPS,
    "algorithm__promptsPerStep": 2,
    "algorithm__groupSize": 4,
    "evaluation": {},
    "judge": {
        "model": "builtin:smollm2-135m-instruct",
        "maxModelLen": 512,
        "extraArgs": {"max_num_seqs": 4},
    },
    "verifier__rewards": [
        {"name": "graded", "type": "judge", "config": {"scale": [1, 5], "verdict": "schema", "maxTokens": 16}}
    ],
}


def servers(folder: pathlib.Path) -> list[int]:
    """Return the processes of vLLM's server below the run's judge, by the variables that the run gave them."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            if b"api_server.entry" in words and str(folder).encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # It has ended.
    return found


def test_a_run_whose_own_judge_is_killed_waits_for_the_next_one_and_learns_from_no_failure(rljob: Runs) -> None:
    running = rljob.start(rljob.manifest(**CHANGES))
    rljob.wait_for_step(1)
    (server,) = servers(rljob.folder)
    os.kill(server, signal.SIGKILL)
    output, _ = running.communicate(timeout=600)
    assert running.returncode == 0, output
    assert "judge ended with exit code 75" in output
    steps = rljob.steps()
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert all(step["groups"] == 2 and 0.0 <= step["reward_mean"] <= 1.0 for step in steps)
    assert rljob.summary()["judges"]["graded"]["calls"] >= STEPS
    assert rljob.audit() == ""
    assert rljob.leftovers() == []
    assert servers(rljob.folder) == []
