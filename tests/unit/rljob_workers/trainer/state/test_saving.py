"""A checkpoint that cannot be written is one error on every rank, and leaves the one before it as it was."""

import dataclasses
import pathlib
import threading
from collections.abc import Callable, Mapping, Sequence

import pytest

from rljob_api import errors
from rljob_testing import ranks
from rljob_testing.sections import with_spec
from rljob_testing.trainer_makers import make_trainer_config
from rljob_workers.runtime import atomic
from rljob_workers.trainer.algorithms import entropy
from rljob_workers.trainer.engine import schedule
from rljob_workers.trainer.state import checkpoint, export, saving
from rljob_workers.weights import image


@dataclasses.dataclass
class FakeEngine:
    """Writes one file; `fails` raises instead. `largest_of`: how ranks reduce."""

    rank: int = 0
    world_size: int = 1
    fails: Exception | None = None
    largest_of: Callable[[Sequence[float]], list[float]] = list

    def save(self, directory: pathlib.Path) -> None:
        if self.fails is not None:
            raise self.fails
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"part-{self.rank}").write_bytes(b"x")

    def barrier(self) -> None:
        self.largest([0.0])

    def largest(self, values: Sequence[float]) -> list[float]:
        return self.largest_of(values)


def checkpoints(folder: pathlib.Path, engine: FakeEngine) -> saving.RankCheckpoints:
    layout = image.make_layout([("w", "float32", (1,))])
    return saving.RankCheckpoints(
        engine=engine,
        exporter=export.ImageExporter(layout=layout, visit=lambda names, receive: None, writes=False),
        config=make_trainer_config(folder),
        model_dir=folder,
        progress=schedule.UpdateCount(),
        before_export=lambda: None,
    )


def steps(folder: pathlib.Path) -> list[int]:
    return [found.progress.step for found in checkpoint.CheckpointStore(folder / "checkpoints").all()]


def test_a_checkpoint_that_was_written_is_found(tmp_path: pathlib.Path) -> None:
    checkpoints(tmp_path, FakeEngine()).save(3)
    assert steps(tmp_path) == [3]


def test_a_checkpoint_holds_what_the_entropy_coefficient_continues_from_to_the_last_bit(tmp_path: pathlib.Path) -> None:
    layout = image.make_layout([("w", "float32", (1,))])
    reached = entropy.AdaptiveCoefficient(0.1 + 0.2, 1.0 / 3.0)

    def progress_of(changes: Mapping[str, object], folder: str) -> tuple[float | None, float | None]:
        saving.RankCheckpoints(
            engine=FakeEngine(),
            exporter=export.ImageExporter(layout=layout, visit=lambda names, receive: None, writes=False),
            config=with_spec(make_trainer_config(tmp_path / folder), changes),
            model_dir=tmp_path,
            progress=schedule.UpdateCount(),
            entropy_coef=reached,
            before_export=lambda: None,
        ).save(3)
        (found,) = checkpoint.CheckpointStore(tmp_path / folder / "checkpoints").all()
        return found.progress.entropy_coef, found.progress.entropy

    assert progress_of({"algorithm.entropy.target": "0.5"}, "with") == (0.1 + 0.2, 1.0 / 3.0)
    assert progress_of({}, "without") == (None, None)


@pytest.mark.parametrize(
    "failure",
    [OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed writing file")],
    ids=["the system's error", "torch's error"],
)
def test_a_rank_that_is_alone_says_that_its_part_was_not_written(tmp_path: pathlib.Path, failure: Exception) -> None:
    checkpoints(tmp_path, FakeEngine()).save(3)
    with pytest.raises(errors.CheckpointError, match="step 4 was not written"):
        checkpoints(tmp_path, FakeEngine(fails=failure)).save(4)
    assert steps(tmp_path) == [3]


def test_a_rank_of_several_ends_with_the_error_of_its_part(tmp_path: pathlib.Path) -> None:
    engine = FakeEngine(world_size=2, fails=OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        checkpoints(tmp_path, engine).save(4)


def test_all_ranks_hear_that_the_first_could_not_prepare(tmp_path: pathlib.Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")

    def save(rank: int) -> Callable[[ranks.Reduce], str]:
        def body(reduce: ranks.Reduce) -> str:
            engine = FakeEngine(rank=rank, world_size=2, largest_of=reduce.largest)
            with pytest.raises(errors.CheckpointError) as raised:
                checkpoints(tmp_path, engine).save(4)
            return str(raised.value)

        return body

    first, second = ranks.run([save(0), save(1)])
    assert "step 4 was not written: [Errno" in first
    assert second == "the checkpoint of step 4 was not written: another rank could not"


def test_every_rank_syncs_after_all_have_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network volume the fsync of rank 0's node would not reach what rank 1's node wrote."""
    synced: list[tuple[str, list[str]]] = []
    lock = threading.Lock()

    def sync_tree(folder: pathlib.Path) -> None:
        with lock:
            names = sorted(path.name for path in folder.rglob("part-*"))
            synced.append((threading.current_thread().name, names))

    monkeypatch.setattr(atomic, "sync_tree", sync_tree)

    def save(rank: int) -> Callable[[ranks.Reduce], None]:
        def body(reduce: ranks.Reduce) -> None:
            checkpoints(tmp_path, FakeEngine(rank=rank, world_size=2, largest_of=reduce.largest)).save(4)

        return body

    ranks.run([save(0), save(1)])
    # The third is rank 0's own of the marker, as the folder appears.
    assert [names for _, names in synced] == [["part-0", "part-1"]] * 3
    assert len({thread for thread, _ in synced[:2]}) == 2
    assert steps(tmp_path) == [4]
