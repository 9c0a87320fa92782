"""A synchronous run of the real command, undisturbed, and interrupted and continued with: both train the same
samples.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from rljob_testing import gate
from rljob_testing.jobs import TinyTask
from rljob_testing.runs import Runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MAX_STEPS = 4
SYNCHRONOUS = {"maxSteps": MAX_STEPS, "async": {"maxOffPolicySteps": 0}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny: TinyTask) -> Iterator[Runs]:
    """A synchronous run that nothing disturbed, in `run`."""
    made = Runs(tmp_path_factory.mktemp("undisturbed"), tiny)
    opened = gate.Gate(made.folder, steps=2)
    opened.open()
    try:
        code, output = made.run(made.manifest(**SYNCHRONOUS, **opened.changes()))
        assert code == 0, output
        yield made
    finally:
        made.end()


def test_synchronous_run_consumes_only_tokens_of_the_current_version(undisturbed: Runs) -> None:
    assert [line["staleness"] for line in undisturbed.steps()] == [{"0": 4}] * 4
    assert all(line["mixed_version_trajectories"] == 0 for line in undisturbed.steps())
    # Groups without spread are not computed, so a step may have no token to compare; over the run there are some.
    assert any(line["stats"]["mismatch/tokens"] > 0 for line in undisturbed.steps())
    assert undisturbed.audit() == ""


def test_interrupted_run_goes_on_with_the_same_samples_as_one_that_was_not(undisturbed: Runs, rljob: Runs) -> None:
    # The run waits for the interrupt: without rewards it comes to no fourth step, however fast the machine is.
    held = gate.Gate(rljob.folder, steps=2)
    # What is held is not graded within any time to drain.
    manifest = rljob.manifest(**SYNCHRONOUS, **held.changes(), rollout__drainSeconds=1)
    interrupted = rljob.start(manifest)
    rljob.wait_for_step(2)
    os.kill(interrupted.pid, signal.SIGINT)
    output, _ = interrupted.communicate(timeout=600)
    assert interrupted.returncode == 130, output
    assert "rljob run" in output
    assert rljob.leftovers() == []
    assert 2 <= len(rljob.steps()) < MAX_STEPS
    held.open()
    code, output = rljob.run(manifest)
    assert code == 0, output
    assert rljob.trained_prompts() == undisturbed.trained_prompts()
    assert rljob.audit() == ""
