"""What one machine does not have is refused before anything is started or written."""

import io
import pathlib

import pytest

from rljob_api import errors
from rljob_workers.local import evaluate, prepare, session

MANIFEST = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  maxSteps: 1
  model: {name: "builtin:smollm2-135m-instruct"}
  data: {template: "no", train: [{name: t, path: t.jsonl, maxPromptTokens: 32}]}
  algorithm: {groupSize: 4, promptsPerStep: 2}
  rollout: {engine: {maxModelLen: 64, maxNumSeqs: 4}, sampling: {maxTokens: 8}}
  verifier: {isolation: "%s", rewards: [{name: sum, type: exact}]}
  evaluation: {suites: [{name: easy, path: e.jsonl, maxPromptTokens: 32}]}
"""
REFUSAL = "spec.verifier.isolation is 'runtimeClass:gvisor', but there are no pods on one machine: set sandbox"


def manifest(folder: pathlib.Path, isolation: str) -> prepare.Manifest:
    path = folder / "job.yaml"
    path.write_text(MANIFEST % isolation)
    return prepare.read_manifest(path)


@pytest.mark.covers("sandbox S-2")
def test_a_run_and_an_evaluation_of_a_runtime_class_are_refused_and_nothing_is_written(tmp_path: pathlib.Path) -> None:
    given, directory = manifest(tmp_path, "runtimeClass:gvisor"), tmp_path / "run"
    with pytest.raises(errors.ManifestError, match=REFUSAL):
        session.run_job(given, path=directory, skip_check=True, stream=io.StringIO())
    with pytest.raises(errors.ManifestError, match=REFUSAL):
        evaluate.evaluate(given, evaluate.Options(), path=directory, skip_check=True, stream=io.StringIO())
    assert not directory.exists()


def test_a_manifest_of_a_runtime_class_can_be_looked_at_here(tmp_path: pathlib.Path) -> None:
    resolved = prepare.resolve_here(manifest(tmp_path, "runtimeClass:gvisor"), run_dir=tmp_path, uid="u")
    assert resolved.verifiers[0].execution.isolation == "runtimeClass:gvisor"


@pytest.mark.parametrize("isolation", ["sandbox", "none"])
def test_other_isolations_are_admitted(isolation: str, tmp_path: pathlib.Path) -> None:
    prepare.admit_here(manifest(tmp_path, isolation))
