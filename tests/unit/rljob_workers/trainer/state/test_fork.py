import pathlib

import pytest

from rljob_api import errors
from rljob_testing.trainer_makers import make_trainer_config
from rljob_workers.trainer.state import checkpoint, marker, warm_start


def write(folder: pathlib.Path, *steps: int, sections: dict[str, str] | None = None, optimizer: bool = True) -> None:
    store = checkpoint.CheckpointStore(folder)
    for step in steps:
        (store.begin(step) / "weights.bin").write_bytes(bytes([step]))
        store.commit(
            marker.Progress(
                step=step, updates_applied=step, skipped_in_a_row=0, optimizer=optimizer, sections=sections or {}
            )
        )


@pytest.mark.parametrize("named", ["run", "run/checkpoints", "run/checkpoints/step-000000020"])
def test_a_fork_names_a_run_its_checkpoints_or_one_of_them(tmp_path: pathlib.Path, named: str) -> None:
    write(tmp_path / "run/checkpoints", 10, 20)
    found = warm_start.find(str(tmp_path / named), None)
    assert (found.progress.step, found.path.name) == (20, "step-000000020")


def test_a_fork_may_begin_at_an_earlier_checkpoint(tmp_path: pathlib.Path) -> None:
    write(tmp_path, 10, 20)
    assert warm_start.find(str(tmp_path), 10).progress.step == 10


@pytest.mark.parametrize(
    ("path", "step", "sentence"),
    [
        ("nowhere", None, "spec.resumeFrom is '.*nowhere', but there is no such folder"),
        (".", None, "spec.resumeFrom is '.*', but no complete checkpoint is in it"),
        ("run", 15, r"spec.resumeFrom.step is 15, but '.*run' has checkpoints of steps 10, 20"),
        ("run/step-000000020", 10, "spec.resumeFrom.step is 10, but '.*' has checkpoints of steps 20"),
    ],
)
def test_a_fork_that_cannot_begin_says_what_is_there(
    tmp_path: pathlib.Path, path: str, step: int | None, sentence: str
) -> None:
    write(tmp_path / "run", 20, 10)
    with pytest.raises(errors.ManifestError, match=sentence):
        warm_start.find(str(tmp_path / path), step)


def test_a_fork_may_change_data_groups_seed_and_learning_rate(tmp_path: pathlib.Path) -> None:
    now = make_trainer_config(tmp_path)
    other = checkpoint.sections(now) | {"seed": "other", "optimizer": "other", "groups": "other", "data": "other"}
    write(tmp_path, 10, sections=other)
    warm_start.check_same_model(warm_start.find(str(tmp_path), None), now)


@pytest.mark.parametrize(
    ("section", "blamed"), [("model", "spec.model"), ("shape", "spec.trainer.deepspeed.zeroStage")]
)
def test_a_fork_of_another_model_or_shape_is_refused(tmp_path: pathlib.Path, section: str, blamed: str) -> None:
    now = make_trainer_config(tmp_path)
    write(tmp_path, 10, sections=checkpoint.sections(now) | {section: "other"})
    with pytest.raises(errors.ManifestError, match=f"{blamed}.* differs from the checkpoint of step 10"):
        warm_start.check_same_model(warm_start.find(str(tmp_path), None), now)


def test_weights_alone_are_loaded_by_any_shape(tmp_path: pathlib.Path) -> None:
    now = make_trainer_config(tmp_path)
    write(tmp_path, 10, sections=checkpoint.sections(now) | {"shape": "other"}, optimizer=False)
    warm_start.check_same_model(warm_start.find(str(tmp_path), None), now)
