import dataclasses
import json
import pathlib
from collections.abc import Mapping

import pytest

from rljob_api import errors, process_config
from rljob_api.manifest.trainer import DeepspeedSpec
from rljob_testing.sections import section
from rljob_testing.trainer_makers import make_trainer_config
from rljob_workers.trainer.state import checkpoint, marker

REFERENCE = checkpoint.FrozenHashes(reference="model")


def write(store: checkpoint.CheckpointStore, step: int, *, attempt: int = 0) -> checkpoint.Checkpoint:
    work = store.begin(step)
    (work / "state").mkdir()
    (work / "state" / "weights.bin").write_bytes(bytes([step]) * 100)
    return store.commit(
        marker.Progress(
            step=step,
            updates_applied=2 * step,
            skipped_in_a_row=1,
            optimizer=True,
            sections={"seed": "s"},
            attempt=attempt,
        )
    )


def steps_of(store: checkpoint.CheckpointStore) -> list[int]:
    return sorted(found.progress.step for found in store.all())


def test_the_newest_valid_checkpoint_is_found_with_its_progress(tmp_path: pathlib.Path) -> None:
    store = checkpoint.CheckpointStore(tmp_path)
    assert store.newest() is None
    write(store, 2)
    write(store, 10)
    found = store.newest()
    assert found is not None
    assert (found.progress.step, found.progress.updates_applied, found.progress.skipped_in_a_row) == (10, 20, 1)
    assert (found.path / "state" / "weights.bin").read_bytes() == bytes([10]) * 100


@pytest.mark.covers("algorithms 10")
@pytest.mark.parametrize("harm", ["no marker", "cut marker", "cut file", "lost file"])
def test_an_incomplete_checkpoint_is_passed_over(tmp_path: pathlib.Path, harm: str) -> None:
    store = checkpoint.CheckpointStore(tmp_path)
    write(store, 1)
    broken = write(store, 2).path
    marker, file = broken / "COMPLETE.json", broken / "state" / "weights.bin"
    if harm == "no marker":
        marker.unlink()
    elif harm == "cut marker":
        marker.write_text(marker.read_text()[:20])
    elif harm == "cut file":
        file.write_bytes(b"x")
    else:
        file.unlink()
    found = store.newest()
    assert found is not None
    assert found.progress.step == 1


def test_what_was_begun_and_never_committed_is_not_a_checkpoint(tmp_path: pathlib.Path) -> None:
    store = checkpoint.CheckpointStore(tmp_path)
    (store.begin(3) / "half").write_bytes(b"x")
    assert store.newest() is None
    assert list(store.begin(3).iterdir()) == []


def test_what_a_checkpoint_that_failed_left_makes_room_for_the_next_and_finished_ones_stay(
    tmp_path: pathlib.Path,
) -> None:
    store = checkpoint.CheckpointStore(tmp_path)
    write(store, 1)
    (store.begin(2) / "half").write_bytes(b"x")
    write(store, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000001", "step-000000003"]


def test_writing_a_step_again_replaces_it(tmp_path: pathlib.Path) -> None:
    store = checkpoint.CheckpointStore(tmp_path)
    write(store, 1)
    write(store, 1)
    assert steps_of(store) == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_pruning_keeps_the_newest_and_every_so_many(tmp_path: pathlib.Path) -> None:
    store = checkpoint.CheckpointStore(tmp_path)
    for step in (2, 4, 6, 8, 10):
        write(store, step)
    assert store.prune(keep_last=2, keep_every=4) == [6, 2]
    assert steps_of(store) == [4, 8, 10]


def test_pruning_never_removes_the_newest(tmp_path: pathlib.Path) -> None:
    store = checkpoint.CheckpointStore(tmp_path)
    write(store, 1)
    assert store.prune(keep_last=0, keep_every=0) == []


def found_of(config: process_config.TrainerConfig, path: pathlib.Path) -> checkpoint.Checkpoint:
    progress = marker.Progress(
        step=4,
        updates_applied=4,
        skipped_in_a_row=0,
        optimizer=True,
        sections=checkpoint.sections(config),
    )
    return checkpoint.Checkpoint(progress=progress, path=path)


def test_the_same_config_may_go_on(tmp_path: pathlib.Path) -> None:
    config = make_trainer_config(tmp_path)
    checkpoint.check_same_run(found_of(config, tmp_path), make_trainer_config(tmp_path, attempt=7, max_steps=99))


@pytest.mark.covers("algorithms 10")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 5}, "spec.seed"),
        ({"processes_per_node": 2}, "trainer processes"),
        ({"deepspeed": section(DeepspeedSpec, zero_stage=3)}, "zeroStage"),
    ],
)
def test_a_changed_seed_model_or_shape_is_refused_by_name(
    tmp_path: pathlib.Path, change: dict[str, object], field: str
) -> None:
    config = make_trainer_config(tmp_path)
    with pytest.raises(errors.ManifestError, match=field):
        checkpoint.check_same_run(found_of(config, tmp_path), make_trainer_config(tmp_path, **change))


def test_a_changed_learning_rate_is_logged_and_accepted(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_trainer_config(tmp_path)
    other = make_trainer_config(tmp_path, {"trainer.optimizer.learningRate": "0.5"})
    checkpoint.check_same_run(found_of(config, tmp_path), other)
    assert "section optimizer differs" in caplog.text


def test_the_marker_can_be_read_by_people(tmp_path: pathlib.Path) -> None:
    path = write(checkpoint.CheckpointStore(tmp_path), 3).path
    marker = json.loads((path / "COMPLETE.json").read_text())
    assert marker["step"] == 3
    assert marker["files"] == {"state/weights.bin": 100}


@pytest.mark.covers("algorithms 10")
@pytest.mark.parametrize(("section", "field"), [("groups", "promptsPerStep or groupSize"), ("data", "spec.data")])
def test_other_data_or_groups_are_refused(tmp_path: pathlib.Path, section: str, field: str) -> None:
    config = make_trainer_config(tmp_path, spec_digests={section: "before"})
    found = found_of(config, tmp_path)
    with pytest.raises(errors.ManifestError, match=field):
        checkpoint.check_same_run(found, config.model_copy(update={"spec_digests": {section: "after"}}))


@pytest.mark.covers("algorithms 10")
def test_another_algorithm_or_reference_model_is_logged(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_trainer_config(tmp_path, spec_digests={"algorithm": "before"})
    progress = dataclasses.replace(
        found_of(config, tmp_path).progress, sections=checkpoint.sections(config, frozen=REFERENCE)
    )
    found = checkpoint.Checkpoint(progress=progress, path=tmp_path)
    now = config.model_copy(update={"spec_digests": {"algorithm": "after"}})
    checkpoint.check_same_run(found, now, frozen=checkpoint.FrozenHashes(reference="another model"))
    assert "section algorithm differs" in caplog.text
    assert "section reference differs" in caplog.text


def test_an_adapter_is_continued_on_the_files_that_it_was_trained_on_alone(tmp_path: pathlib.Path) -> None:
    config = make_trainer_config(tmp_path, {"model.lora": {"rank": 4}})
    progress = dataclasses.replace(
        found_of(config, tmp_path).progress, sections=checkpoint.sections(config, base="these files")
    )
    found = checkpoint.Checkpoint(progress=progress, path=tmp_path)
    checkpoint.check_same_run(found, config, base="these files")
    with pytest.raises(
        errors.ManifestError, match=r"what the files of spec\.model hold .* differs from the checkpoint"
    ):
        checkpoint.check_same_run(found, config, base="others")
    for change in ({"rank": 8}, {"rank": 4, "alpha": 4}, {"rank": 4, "targets": ["q_proj"]}):
        other = make_trainer_config(tmp_path, {"model.lora": change})
        with pytest.raises(errors.ManifestError, match=r"spec\.model differs from the checkpoint"):
            checkpoint.check_same_run(found, other, base="these files")


TAUGHT = {"teacher": {"model": "better", "coef": "0.5"}}
BETTER = process_config.ModelFiles(name="better", cache_dir="")


def taught(folder: pathlib.Path, changes: Mapping[str, object] | None = None) -> process_config.TrainerConfig:
    return make_trainer_config(folder, {**TAUGHT, **(changes or {})}, teacher=BETTER)


@pytest.mark.covers("algorithms 10")
@pytest.mark.parametrize("which", ["another model", "no teacher"])
def test_a_run_is_continued_with_the_teacher_that_it_began_with_alone(tmp_path: pathlib.Path, which: str) -> None:
    config = taught(tmp_path)
    teacher = checkpoint.FrozenHashes(teacher="these tensors")
    progress = dataclasses.replace(
        found_of(config, tmp_path).progress, sections=checkpoint.sections(config, frozen=teacher)
    )
    found = checkpoint.Checkpoint(progress=progress, path=tmp_path)
    checkpoint.check_same_run(found, config, frozen=teacher)
    now = config if which == "another model" else make_trainer_config(tmp_path)
    with pytest.raises(errors.ManifestError, match=r"spec\.teacher .*what the files of it hold.* differs from"):
        checkpoint.check_same_run(found, now, frozen=checkpoint.FrozenHashes(teacher="others"))


def test_no_teacher_comes_in_the_middle_of_a_run(tmp_path: pathlib.Path) -> None:
    config = make_trainer_config(tmp_path)
    progress = dataclasses.replace(found_of(config, tmp_path).progress, sections=checkpoint.sections(config))
    found = checkpoint.Checkpoint(progress=progress, path=tmp_path)
    with pytest.raises(errors.ManifestError, match=r"spec\.teacher"):
        checkpoint.check_same_run(found, taught(tmp_path), frozen=checkpoint.FrozenHashes(teacher="these tensors"))


def test_another_weight_of_the_same_teacher_is_logged(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    config, teacher = taught(tmp_path), checkpoint.FrozenHashes(teacher="these tensors")
    progress = dataclasses.replace(
        found_of(config, tmp_path).progress, sections=checkpoint.sections(config, frozen=teacher)
    )
    now = taught(tmp_path, {"teacher": {"model": "better", "coef": "1"}})
    checkpoint.check_same_run(checkpoint.Checkpoint(progress=progress, path=tmp_path), now, frozen=teacher)
    assert "section distillation differs" in caplog.text


def test_ranks_that_do_not_read_the_reference_model_do_not_judge_it(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_trainer_config(tmp_path)
    progress = dataclasses.replace(
        found_of(config, tmp_path).progress, sections=checkpoint.sections(config, frozen=REFERENCE)
    )
    checkpoint.check_same_run(checkpoint.Checkpoint(progress=progress, path=tmp_path), config)
    assert not caplog.records


# Attempts that were replaced and do not know it.


def test_what_a_replaced_attempt_finishes_later_is_no_checkpoint(tmp_path: pathlib.Path) -> None:
    """Attempt 1 trained step 6 and is cut off while it saves; attempt 2 continues from 5, and the rename comes
    after.
    """
    first, second = (checkpoint.CheckpointStore(tmp_path, attempt=attempt) for attempt in (1, 2))
    first.fence(0)
    write(first, 5, attempt=1)
    work = first.begin(6)
    (work / "weights.bin").write_bytes(b"of a history that was taken back")
    second.fence(5)
    # It had looked for a fence before that one was: the rename cannot be held back.
    first._check_not_replaced = lambda: None  # type: ignore[method-assign]
    progress = marker.Progress(step=6, updates_applied=6, skipped_in_a_row=0, optimizer=True, sections={}, attempt=1)
    first.commit(progress)
    assert steps_of(second) == [5]
    newest = checkpoint.CheckpointStore(tmp_path, attempt=3).newest()
    assert newest is not None
    assert newest.progress.step == 5
    # The history that counts reaches step 6 as well.
    write(second, 6, attempt=2)
    found = second.newest()
    assert found is not None
    assert (found.progress.step, found.progress.attempt) == (6, 2)


def test_a_replaced_attempt_begins_commits_and_removes_nothing(tmp_path: pathlib.Path) -> None:
    first, second = (checkpoint.CheckpointStore(tmp_path, attempt=attempt) for attempt in (1, 2))
    write(first, 5, attempt=1)
    begun = first.begin(6)
    second.fence(5)
    with pytest.raises(PermissionError, match="attempt 2 of the trainer has taken over from attempt 1"):
        first.begin(7)
    with pytest.raises(PermissionError, match="taken over"):
        first.commit(marker.Progress(step=6, updates_applied=0, skipped_in_a_row=0, optimizer=True, sections={}))
    assert begun.is_dir()
    write(second, 6, attempt=2)
    write(second, 7, attempt=2)
    assert first.prune(keep_last=1, keep_every=0) == []
    assert steps_of(second) == [5, 6, 7]


def test_what_was_taken_back_is_removed_when_checkpoints_are_pruned(tmp_path: pathlib.Path) -> None:
    first, second = (checkpoint.CheckpointStore(tmp_path, attempt=attempt) for attempt in (1, 2))
    for step in (5, 9):
        write(first, step, attempt=1)
    second.fence(5)
    write(second, 6, attempt=2)
    assert second.prune(keep_last=5, keep_every=0) == []
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000000005", "step-000000006"]


def test_checkpoints_of_earlier_releases_have_no_attempt_and_count(tmp_path: pathlib.Path) -> None:
    store = checkpoint.CheckpointStore(tmp_path, attempt=4)
    path = write(store, 5).path
    marker = json.loads((path / "COMPLETE.json").read_text())
    del marker["attempt"], marker["run"]
    (path / "COMPLETE.json").write_text(json.dumps(marker))
    store.fence(5)
    assert steps_of(store) == [5]


def test_weights_alone_go_on_with_another_number_of_processes(tmp_path: pathlib.Path) -> None:
    config = make_trainer_config(tmp_path)
    saved = marker.Progress(
        step=3, updates_applied=3, skipped_in_a_row=0, optimizer=False, sections=checkpoint.sections(config)
    )
    more = make_trainer_config(tmp_path, processes_per_node=2)
    checkpoint.check_same_run(checkpoint.Checkpoint(progress=saved, path=tmp_path), more)
    for changes in ({"optimizer": True}, {"critic": True}):
        held = checkpoint.Checkpoint(progress=dataclasses.replace(saved, **changes), path=tmp_path)
        with pytest.raises(errors.ManifestError, match="the number of trainer processes"):
            checkpoint.check_same_run(held, more)


def test_a_run_that_was_made_anew_on_the_volume_is_not_held_back_by_the_attempts_of_the_old_one(
    tmp_path: pathlib.Path,
) -> None:
    checkpoint.CheckpointStore(tmp_path, run="old", attempt=7).fence(3)
    anew = checkpoint.CheckpointStore(tmp_path, run="new", attempt=1)
    anew.fence(0)
    write(anew, 4, attempt=1)
    assert steps_of(anew) == [4]
    assert anew.prune(keep_last=1, keep_every=0) == []
