"""Whose a run directory is, who may use it now, and what may differ when a run continues."""

import pathlib
import subprocess
import sys
import tempfile

import pytest

from rljob_api import errors
from rljob_api.validation.load import load_manifest
from rljob_workers.local.rundir import changes, layout

SPEC: dict[str, object] = {"maxSteps": 25, "algorithm": {"groupSize": 8}, "rollout": {"replicas": 1}}
HERE = pathlib.Path("/manifests")
MANIFEST = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  maxSteps: 4
  model: {name: "builtin:smollm2-135m-instruct"}
  data: {template: "raw", train: [{name: t, path: t.jsonl, maxPromptTokens: 32}]}
  verifier: {rewards: [{name: sum, type: exact}]}
"""


def claimed(path: pathlib.Path, *, name: str = "addition", finished: bool = False) -> layout.RunDir:
    directory = layout.RunDir(path)
    identity = directory.admit(name=name, spec=SPEC, manifest_dir=HERE)
    directory.claim(identity.model_copy(update={"finished": finished}), "kind: RLJob\n")
    return directory


def problems(directory: layout.RunDir, *, name: str = "addition", spec: dict[str, object] = SPEC) -> list[str]:
    with pytest.raises(errors.ManifestError) as caught:
        directory.admit(name=name, spec=spec, manifest_dir=HERE)
    return list(caught.value.problems)


def test_same_job_goes_on_under_the_same_uid(tmp_path: pathlib.Path) -> None:
    directory = claimed(tmp_path / "run")
    first = directory.identity()
    assert first is not None
    assert directory.admit(name="addition", spec=SPEC, manifest_dir=HERE).uid == first.uid


def test_directory_of_another_job_is_refused_naming_both(tmp_path: pathlib.Path) -> None:
    directory = claimed(tmp_path / "run", name="countdown")
    (problem,) = problems(directory)
    assert all(word in problem for word in ("'countdown'", "'addition'", "--run-dir"))


def test_refusal_leaves_the_directory_as_it_was(tmp_path: pathlib.Path) -> None:
    directory = claimed(tmp_path / "run", name="countdown")
    before = {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()}
    problems(directory)
    assert {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()} == before


def test_directory_with_other_files_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    (problem,) = problems(layout.RunDir(tmp_path))
    assert "thesis.tex" in problem


def test_changed_field_is_named_with_old_value_new_value_and_remedy(tmp_path: pathlib.Path) -> None:
    directory = claimed(tmp_path / "run")
    (problem,) = problems(directory, spec=SPEC | {"algorithm": {"groupSize": 4}})
    assert "spec.algorithm.groupSize is 4" in problem
    assert "started with 8" in problem
    assert "undo the change, or start another run with another --run-dir" in problem


def test_live_fields_may_change_between_segments(tmp_path: pathlib.Path) -> None:
    directory = claimed(tmp_path / "run")
    spec = SPEC | {"rollout": {"replicas": 2}, "maxSteps": 40, "failurePolicy": {"maxInfraRestarts": 7}}
    assert directory.admit(name="addition", spec=spec, manifest_dir=HERE).spec["maxSteps"] == 40


def test_max_steps_may_not_go_down(tmp_path: pathlib.Path) -> None:
    (problem,) = problems(claimed(tmp_path / "run"), spec=SPEC | {"maxSteps": 10})
    assert "spec.maxSteps is 10" in problem


def test_finished_run_with_a_later_end_goes_on_as_the_same_run(tmp_path: pathlib.Path) -> None:
    directory = claimed(tmp_path / "run", finished=True)
    first = directory.identity()
    assert first is not None
    spec = SPEC | {"maxSteps": 40, "rollout": {"replicas": 2}}
    admitted = directory.admit(name="addition", spec=spec, manifest_dir=HERE)
    assert (admitted.finished, admitted.uid, admitted.spec["maxSteps"]) == (False, first.uid, 40)


def test_finished_run_as_it_was_is_finished(tmp_path: pathlib.Path) -> None:
    directory = claimed(tmp_path / "run", finished=True)
    assert directory.admit(name="addition", spec=SPEC | {"queue": None}, manifest_dir=HERE).finished


def test_run_that_is_not_finished_stays_so(tmp_path: pathlib.Path) -> None:
    assert not claimed(tmp_path / "run").admit(name="addition", spec=SPEC, manifest_dir=HERE).finished


def test_finished_run_that_is_changed_but_not_prolonged_is_refused_with_the_way_to_go_on(
    tmp_path: pathlib.Path,
) -> None:
    (problem,) = problems(claimed(tmp_path / "run", finished=True), spec=SPEC | {"rollout": {"replicas": 2}})
    assert all(word in problem for word in ("finished", "spec.rollout.replicas", "spec.maxSteps above 25", "--run-dir"))


def test_finished_run_of_another_spec_is_refused_naming_the_field_even_with_a_later_end(tmp_path: pathlib.Path) -> None:
    spec = SPEC | {"maxSteps": 40, "algorithm": {"groupSize": 4}}
    (problem,) = problems(claimed(tmp_path / "run", finished=True), spec=spec)
    assert "spec.algorithm.groupSize is 4" in problem


def test_finished_run_may_not_end_earlier(tmp_path: pathlib.Path) -> None:
    (problem,) = problems(claimed(tmp_path / "run", finished=True), spec=SPEC | {"maxSteps": 10})
    assert "spec.maxSteps is 10" in problem


def test_unreadable_identity_is_a_sentence_and_no_traceback(tmp_path: pathlib.Path) -> None:
    directory = claimed(tmp_path / "run")
    (directory.path / "job.json").write_text("{")
    (problem,) = problems(directory)
    assert "job.json" in problem


def test_second_run_in_the_same_directory_is_refused_with_the_pid(tmp_path: pathlib.Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pathlib, sys, time\nfrom rljob_workers.local.rundir.layout import RunDir\n"
            "with RunDir(pathlib.Path(sys.argv[1])).lock():\n    print('held', flush=True)\n    time.sleep(600)",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline()
    with pytest.raises(errors.ManifestError, match=f"pid {holder.pid}"), layout.RunDir(tmp_path).lock():
        pass
    holder.kill()
    holder.communicate()
    with layout.RunDir(tmp_path).lock():
        pass


def test_entries_of_lists_are_compared_by_name() -> None:
    old = {"rewards": [{"name": "a", "weight": "1"}, {"name": "b", "weight": "2"}]}
    assert changes.refusals(old=old, new={"rewards": list(reversed(old["rewards"]))}, run_dir="r") == []
    removed = changes.refusals(old=old, new={"rewards": [{"name": "a", "weight": "1"}]}, run_dir="r")
    assert [sentence.split(",")[0] for sentence in removed] == [
        "spec.rewards[b].name is not set",
        "spec.rewards[b].weight is not set",
    ]


def test_null_and_absent_are_the_same() -> None:
    assert changes.refusals(old={"queue": None}, new={}, run_dir="r") == []


def test_a_changed_value_of_an_environment_is_named_and_not_shown() -> None:
    def spec(value: str) -> dict[str, object]:
        return {"rollout": {"pod": {"env": [{"name": "HF_TOKEN", "value": value}]}}}

    (problem,) = changes.refusals(old=spec("hf_canary_old"), new=spec("hf_canary_new"), run_dir="r")
    assert problem.startswith("spec.rollout.pod.env[HF_TOKEN].value is a value that is not shown, but the run in r")
    assert "hf_canary" not in problem


@pytest.fixture
def system(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return a folder that is the system's own for temporary files."""
    folder = tmp_path / "s"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_temporary_files_of_a_run_are_gone_with_it(tmp_path: pathlib.Path, system: pathlib.Path) -> None:
    directory = claimed(tmp_path / "run")
    with directory.temporary_files() as folder:
        (folder / "torchelastic_x").mkdir()
        (folder / "vllm_dist_x").write_text("x")
        assert list((tmp_path / "run/scratch/tmp").iterdir())
    assert not (tmp_path / "run/scratch/tmp").exists()
    assert list(system.iterdir()) == []


@pytest.mark.parametrize("name", ["run", "r" * 100])
def test_temporary_files_of_a_run_that_was_killed_are_gone_with_the_next(
    tmp_path: pathlib.Path, system: pathlib.Path, name: str
) -> None:
    directory = claimed(tmp_path / name)
    # Never left: the runner was killed.
    killed = directory.temporary_files()
    folder = killed.__enter__()
    (folder / "left").write_text("x")
    with directory.temporary_files() as again:
        assert again == folder
        assert list(again.iterdir()) == []
    assert not folder.exists()
    assert list(system.iterdir()) == []


def test_path_of_temporary_files_is_short_enough_for_sockets(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")  # the system's own
    with claimed(tmp_path / ("r" * 100)).temporary_files() as folder:
        assert len(str(folder)) <= 64
        (folder / "x").write_text("x")
        assert (tmp_path / ("r" * 100) / "scratch/tmp/x").exists()
    assert not folder.is_symlink()


def test_link_of_another_run_is_left_alone(tmp_path: pathlib.Path, system: pathlib.Path) -> None:
    with claimed(tmp_path / ("a" * 100)).temporary_files() as one:
        with claimed(tmp_path / ("b" * 100)).temporary_files() as other:
            assert one != other
        assert one.is_symlink()


def test_run_of_an_earlier_release_goes_on_though_a_field_is_new(tmp_path: pathlib.Path) -> None:
    spec = load_manifest(MANIFEST).spec.model_dump(mode="json", by_alias=True)
    earlier = {**spec, "evaluation": {key: value for key, value in spec["evaluation"].items() if key != "everySteps"}}
    earlier["algorithm"] = {key: value for key, value in spec["algorithm"].items() if key != "promptsPerStep"}
    directory = layout.RunDir(tmp_path / "run")
    directory.claim(directory.admit(name="small", spec=earlier, manifest_dir=HERE), MANIFEST)
    directory.admit(name="small", spec=spec, manifest_dir=HERE)
    changed = {**spec, "seed": 7}
    assert ["spec.seed is 7" in problem for problem in problems(directory, name="small", spec=changed)] == [True]
