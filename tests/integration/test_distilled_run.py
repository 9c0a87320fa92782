"""A student learns from a model that a run before it exported, by the real command; its trainer is killed meanwhile."""

import os
import pathlib
import signal

import pytest

from rljob_api import enums
from rljob_testing.every_example import EVERY_EXAMPLE
from rljob_testing.runs import Runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STEPS = 12


@pytest.fixture
def teacher(rljob: Runs) -> pathlib.Path:
    """A model that has learned the letters of this job by heart."""
    if not os.environ.get(EVERY_EXAMPLE):
        pytest.skip(f"a run for the teacher and one that is killed were not asked for ({EVERY_EXAMPLE}=1)")
    source = {"path": str(rljob.task.train), "columns": {"id": "id"}, "maxPromptTokens": 64}
    manifest = rljob.manifest(
        maxSteps=9,
        rollout__sampling__maxTokens=2,
        sft={"epochs": 2, "examplesPerStep": 16, "learningRate": "1e-3"},
        data__train=[{**source, "name": "letters"}, {**source, "name": "examples", "phase": "SFT"}],
    )
    code, output = rljob.run(manifest, run_dir="teacher")
    assert code == 0, output
    return rljob.folder / "teacher" / "export"


def student(rljob: Runs, teacher: pathlib.Path, *, steps: int = STEPS) -> pathlib.Path:
    return rljob.manifest(
        maxSteps=steps,
        algorithm__groupSize=8,
        algorithm__promptsPerStep=16,
        rollout__sampling__maxTokens=2,
        trainer__optimizer__learningRate="2e-3",
        teacher={"model": str(teacher)},
    )


def distances(rljob: Runs) -> list[float]:
    """Return the mean log-ratio of policy and teacher over the tokens of each step."""
    return [step["stats"][enums.StepStat.TEACHER_KL] for step in rljob.steps()]


def test_a_student_comes_nearer_to_its_teacher_also_in_a_run_that_is_killed(rljob: Runs, teacher: pathlib.Path) -> None:
    manifest = student(rljob, teacher)
    killed = rljob.start(manifest)
    rljob.wait_for_step(5)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=600)
    code, output = rljob.run(manifest)
    assert code == 0, output
    assert len(distances(rljob)) == STEPS, "no step was made without the teacher"
    assert distances(rljob)[-1] < distances(rljob)[0] / 2
    assert rljob.audit() == ""
    # Another model under the same name.
    (teacher / "model.safetensors").write_bytes((rljob.task.model / "model.safetensors").read_bytes())
    code, output = rljob.run(student(rljob, teacher, steps=STEPS + 1))
    assert code != 0
    assert "spec.teacher" in output
