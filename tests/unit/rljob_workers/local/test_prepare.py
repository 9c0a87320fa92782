"""What one machine does not have is refused before anything is started or written."""

import io
import json
import pathlib

import pytest

from rljob_api import errors
from rljob_api.validation import explain
from rljob_testing import runtime_makers
from rljob_workers.local import evaluate, prepare, session

MANIFEST = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  maxSteps: 1
  model: {name: "builtin:smollm2-135m-instruct"}
  data: {template: "raw", train: [{name: t, path: t.jsonl, maxPromptTokens: 32}]}
  algorithm: {groupSize: 4, promptsPerStep: 2}
  rollout: {engine: {maxModelLen: 64, maxNumSeqs: 4}, sampling: {maxTokens: 8}}
  verifier: {isolation: %s, rewards: [{name: sum, type: exact}]}
  evaluation: {suites: [{name: easy, path: e.jsonl, maxPromptTokens: 32}]}
"""
GVISOR = "{type: RuntimeClass, runtimeClassName: gvisor}"
REFUSAL = "spec.verifier.isolation.type is 'RuntimeClass', but there are no pods on one machine: use Sandbox"


def manifest(folder: pathlib.Path, isolation: str) -> prepare.Manifest:
    path = folder / "job.yaml"
    path.write_text(MANIFEST % isolation)
    return prepare.read_manifest(path)


@pytest.mark.covers("sandbox S-2")
def test_a_run_and_an_evaluation_of_a_runtime_class_are_refused_and_nothing_is_written(tmp_path: pathlib.Path) -> None:
    given, directory = manifest(tmp_path, GVISOR), tmp_path / "run"
    with pytest.raises(errors.ManifestError, match=REFUSAL):
        session.run_job(given, path=directory, skip_check=True, stream=io.StringIO())
    with pytest.raises(errors.ManifestError, match=REFUSAL):
        evaluate.evaluate(given, evaluate.Options(), path=directory, skip_check=True, stream=io.StringIO())
    assert not directory.exists()


def test_a_manifest_of_a_runtime_class_can_be_looked_at_here(tmp_path: pathlib.Path) -> None:
    resolved = prepare.resolve_here(manifest(tmp_path, GVISOR), run_dir=tmp_path, uid="u")
    assert resolved.verifiers[0].execution.isolation.runtime_class == "gvisor"


@pytest.mark.parametrize("isolation", ["{type: Sandbox}", "{type: None}"])
def test_other_isolations_are_admitted(isolation: str, tmp_path: pathlib.Path) -> None:
    prepare.admit_here(manifest(tmp_path, isolation))


def runtime_file(folder: pathlib.Path, **parts: dict[str, object]) -> pathlib.Path:
    path = folder / "runtime.yaml"
    path.write_text(json.dumps(runtime_makers.document(**parts)))
    return path


def job_file(folder: pathlib.Path, *more: str) -> pathlib.Path:
    path = folder / "job.yaml"
    path.write_text("\n".join([MANIFEST.rstrip() % "{type: Sandbox}", *(f"  {line}" for line in more)]))
    return path


def test_values_of_a_runtime_count_and_plan_says_that_they_are_the_runtimes(tmp_path: pathlib.Path) -> None:
    runtime = runtime_file(tmp_path, defaults={"seed": 9, "algorithm": {"groupSize": 8}})
    named = job_file(tmp_path, "runtimeRef: {name: platform}")
    manifest = prepare.read_manifest(named, runtime=runtime)
    assert (manifest.job.spec.seed, manifest.job.spec.algorithm.group_size) == (9, 4)
    resolved = prepare.resolve_here(manifest, run_dir=tmp_path, uid="u")
    rows = {row.path: row.why for row in explain.explain(manifest.job, resolved, origins=manifest.origins)}
    assert rows["spec.seed"] == "defaults of ClusterRLJobRuntime platform"
    assert rows["spec.algorithm.groupSize"] == "written"
    assert rows["spec.algorithm.epochs"] == "default"


def test_what_a_run_keeps_has_the_values_and_needs_the_runtime_no_more(tmp_path: pathlib.Path) -> None:
    runtime = runtime_file(tmp_path, fixed={"seed": 9})
    manifest = prepare.read_manifest(job_file(tmp_path, "runtimeRef: {name: platform}"), runtime=runtime)
    kept = tmp_path / "kept.yaml"
    kept.write_text(manifest.text)
    assert prepare.read_manifest(kept).job.spec == manifest.job.spec


def test_a_job_against_its_runtime_is_refused_by_field(tmp_path: pathlib.Path) -> None:
    runtime = runtime_file(tmp_path, fixed={"algorithm": {"groupSize": 8}})
    with pytest.raises(errors.ManifestError, match="spec.algorithm.groupSize is 4, but .* fixes it at 8"):
        prepare.read_manifest(job_file(tmp_path), runtime=runtime)


def test_a_job_that_names_another_runtime_or_one_that_is_not_at_hand_is_refused(tmp_path: pathlib.Path) -> None:
    named = job_file(tmp_path, "runtimeRef: {name: other}")
    with pytest.raises(errors.ManifestError, match="spec.runtimeRef.name is 'other', but .* platform"):
        prepare.read_manifest(named, runtime=runtime_file(tmp_path))
    with pytest.raises(errors.ManifestError, match="give its manifest with --runtime FILE"):
        prepare.resolve_here(prepare.read_manifest(named), run_dir=tmp_path, uid="u")
