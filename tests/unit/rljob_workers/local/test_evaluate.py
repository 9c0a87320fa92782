"""An evaluation alone: pure parts, and the whole of it over FAKE programs (rljob_testing.fake_roles)."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from rljob_api import enums, errors
from rljob_workers.local import evaluate, prepare

MANIFEST = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  maxSteps: 7
  model: {name: "builtin:smollm2-135m-instruct"}
  data: {template: "raw", train: [{name: t, path: t.jsonl, maxPromptTokens: 32}]}
  algorithm: {groupSize: 4, promptsPerStep: 2}
  rollout: {engine: {maxModelLen: 64, maxNumSeqs: 4}, sampling: {maxTokens: 8}}
  verifier: {rewards: [{name: sum, type: exact}]}
  evaluation:
    beforeTraining: false
    suites: [{name: easy, path: e.jsonl, maxPromptTokens: 32}, {name: hard, path: h.jsonl, maxPromptTokens: 32}]
"""
DRIVER = """
import pathlib, sys
from rljob_workers.local import evaluate, prepare
def programs(role):
    return (sys.executable, "-m", "rljob_testing.fake_roles", str(role))
manifest = prepare.read_manifest(pathlib.Path("job.yaml"))
for as_json in (False, True):
    options = evaluate.Options(suites=("hard",), step=40, as_json=as_json)
    code = evaluate.evaluate(
        manifest, options, path=pathlib.Path("out"), skip_check=False, stream=sys.stdout, programs=programs
    )
sys.exit(code)
"""


def run(folder: pathlib.Path) -> "subprocess.CompletedProcess[str]":
    (folder / "job.yaml").write_text(MANIFEST)
    environment = {**os.environ, "RLJOB_FAKE_DIR": str(folder), "GRPC_VERBOSITY": "NONE"}
    return subprocess.run(
        [sys.executable, "-c", DRIVER], capture_output=True, text=True, cwd=folder, env=environment, timeout=60
    )


@pytest.mark.covers("workflows 11")
def test_an_evaluation_starts_no_trainer_files_its_results_under_the_step_and_is_not_repeated(
    tmp_path: pathlib.Path,
) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    events = (tmp_path / "events").read_text().splitlines()
    assert sorted(event for event in events if "started" in event) == [
        "coordinator started", "rollout started", "verifier started",
    ]  # fmt: skip
    results = tmp_path / "out" / "eval_results"
    assert sorted(path.name for path in results.iterdir()) == ["40.json", "40_hard.json"]
    found = json.loads((results / "40.json").read_text())
    assert (found["step"], found["metrics"]["eval/hard/accuracy"]) == (40, 0.5)
    # The second call found it finished and printed the same as JSON.
    assert json.loads(done.stdout[done.stdout.index("{") :]) == found


@pytest.mark.covers("workflows 11")
def test_a_suite_without_result_fails_the_command_and_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "missing").write_text("hard")
    done = run(tmp_path)
    assert done.returncode == enums.ExitCode.FAILED
    assert "error: suite hard has no result: 1 of its prompts could not be graded" in done.stderr
    assert "eval/hard/accuracy" not in (tmp_path / "out" / "eval_results" / "40.json").read_text()


@pytest.mark.covers("workflows 11")
def test_suites_are_chosen_by_exact_name_in_the_manifests_order() -> None:
    assert evaluate.chosen(["math", "math500", "aime"], ["aime", "math"]) == ["math", "aime"]
    assert evaluate.chosen(["math", "aime"], []) == ["math", "aime"]


@pytest.mark.parametrize(
    ("known", "wanted", "said"),
    [
        ([], [], "spec.evaluation.suites is empty, so there is nothing to evaluate: name a source"),
        (["math"], ["mat"], "--suite mat is not in spec.evaluation.suites; expected one of math"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(known: list[str], wanted: list[str], said: str) -> None:
    with pytest.raises(errors.ManifestError) as refused:
        evaluate.chosen(known, wanted)
    assert str(refused.value) == said


def test_the_configs_of_an_evaluation_have_no_step_and_the_chosen_suites(tmp_path: pathlib.Path) -> None:
    (tmp_path / "job.yaml").write_text(MANIFEST)
    manifest = prepare.read_manifest(tmp_path / "job.yaml")
    resolved = prepare.resolve_here(manifest, run_dir=tmp_path, uid="u")
    configs = evaluate.without_training(resolved, ["hard"])
    assert [config.role for config in configs] == ["coordinator", "verifier", "rollout"]
    coordinator = resolved.coordinator.model_validate_json(configs[0].model_dump_json())
    assert (coordinator.max_steps, coordinator.spec.evaluation.before_training) == (0, True)
    assert [suite.name for suite in coordinator.spec.evaluation.suites] == ["hard"]


def test_the_table_has_a_row_a_suite_and_no_zero_for_what_is_missing() -> None:
    text = evaluate.table({"eval/easy/accuracy": 0.25, "eval/average/accuracy": 0.25}, ["easy", "hard"])
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert rows["easy"][0] == rows["average"][0] == "0.25"
    assert set(rows["hard"]) == {"-"}
