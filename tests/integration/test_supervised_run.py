"""Supervised steps and the steps of RL after them, in one run of the real command."""

import os
import signal

import pytest

from rljob_api import enums
from rljob_testing.every_example import EVERY_EXAMPLE
from rljob_testing.runs import Runs
from rljob_workers.coordinator.ledger import database, retention

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SUPERVISED, STEPS = 8, 10
IN_LEDGER = "SELECT prompt_id FROM groups WHERE step = ? AND state = 'trained' ORDER BY step_position"


def changes(rljob: Runs) -> dict[str, object]:
    """Return a job whose first steps learn the answers of its own prompts: 64 of them, 16 a step, two epochs."""
    source = {"path": str(rljob.task.train), "columns": {"id": "id"}, "maxPromptTokens": 64}
    return {
        "maxSteps": STEPS,
        # A letter and the end.
        "rollout__sampling__maxTokens": 2,
        "sft": {"epochs": 2, "examplesPerStep": 16, "learningRate": "1e-3"},
        "data__train": [{**source, "name": "letters"}, {**source, "name": "examples", "phase": "SFT"}],
    }


def supervised(rljob: Runs, run_dir: str = "run") -> list[tuple[int, str]]:
    """Return (step, example) in the order of training; what a checkpoint lets go of a step comes before the rest."""
    ledger = database.Database(rljob.folder / run_dir / "state/ledger.sqlite", read_only=True)
    try:
        return [
            (step, prompt)
            for step in range(1, SUPERVISED + 1)
            for prompt in (
                *(m.ref.prompt_id for m in retention.of_step(ledger, step) if m.kind is enums.GroupKind.EXAMPLE),
                *(row["prompt_id"] for row in ledger.all(IN_LEDGER, step)),
            )
        ]
    finally:
        ledger.close()


def losses(rljob: Runs, run_dir: str = "run") -> list[float]:
    """Return the loss of each supervised step."""
    return [step["stats"]["policy/loss"] for step in rljob.steps(run_dir)[:SUPERVISED]]


def test_rl_goes_on_from_what_supervised_steps_learned(rljob: Runs) -> None:
    code, output = rljob.run(rljob.manifest(**changes(rljob)))
    assert code == 0, output
    steps = rljob.steps()
    assert [step.get("phase") for step in steps] == ["SFT"] * SUPERVISED + [None] * (STEPS - SUPERVISED)
    assert losses(rljob)[-1] < losses(rljob)[0] - 0.1, "the second epoch begins with what the first one has taught"
    assert all(step["staleness"].keys() <= {"0", "1"} and "reward_mean" in step for step in steps[SUPERVISED:])
    evaluated = sorted({line["step"] for line in rljob.history() if line["kind"] == "evaluation"})
    assert evaluated == [0, SUPERVISED, STEPS]
    epochs = [sorted(prompt for step, prompt in supervised(rljob) if (step > 4) == late) for late in (False, True)]
    assert len(set(epochs[0])) == len(epochs[0]) == 64
    assert epochs[0] == epochs[1], "each example once an epoch"
    assert rljob.summary()["reward_mean"][:SUPERVISED] == [None] * SUPERVISED
    assert rljob.audit() == ""


def test_a_run_that_is_killed_in_its_supervised_steps_learns_the_same_batches(rljob: Runs) -> None:
    if not os.environ.get(EVERY_EXAMPLE):
        pytest.skip(f"a run that is killed and one that is not were not asked for ({EVERY_EXAMPLE}=1)")
    manifest = rljob.manifest(**changes(rljob))
    code, output = rljob.run(manifest, run_dir="undisturbed")
    assert code == 0, output
    killed = rljob.start(manifest)
    rljob.wait_for_step(3)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=600)
    code, output = rljob.run(manifest)
    assert code == 0, output
    assert len(rljob.steps()) == STEPS
    assert supervised(rljob) == supervised(rljob, "undisturbed")
    assert losses(rljob) == pytest.approx(losses(rljob, "undisturbed"), rel=1e-3)
    assert rljob.audit() == ""
