"""Checkpoints on their way to an object store and back. The store is a folder (obstore's LocalStore); the service is
in tests/integration/objects.
"""

import json
import pathlib
import shutil

import pytest

from rljob_api import errors
from rljob_testing import stored_checkpoints as made
from rljob_testing.clock import FakeClock
from rljob_workers.trainer.state import checkpoint, keeping, marker, remote, restoring


@pytest.fixture
def store(tmp_path: pathlib.Path) -> remote.RemoteCheckpoints:
    return made.open_store(f"file://{tmp_path}/store")


@pytest.fixture
def there(tmp_path: pathlib.Path) -> pathlib.Path:
    """The folder of the store."""
    return tmp_path / "store" / made.RUN / "checkpoints"


@pytest.fixture
def node(tmp_path: pathlib.Path) -> checkpoint.CheckpointStore:
    return made.node_of(tmp_path / "node")


def steps(store: remote.RemoteCheckpoints) -> list[int]:
    return [each.progress.step for each in store.whole()]


def test_two_ranks_send_a_checkpoint_and_each_gets_its_own_part_back(
    store: remote.RemoteCheckpoints, node: checkpoint.CheckpointStore, tmp_path: pathlib.Path
) -> None:
    made.write(node, 4, world_size=2)
    meter = made.Meter()

    def send(rank: made.Rank) -> keeping.DurableCheckpoint | None:
        keeper = made.uploader(store, node, rank, meter=meter if rank.rank == 0 else None)
        if rank.rank == 0:
            assert rank.largest([0.0]) == [0.0]
        else:
            rank.largest([0.0])
        keeper.offer(step=4, seconds=7.0)
        kept = keeper.settle(timeout_s=30.0)
        keeper.close()
        return kept

    first, second = made.on_ranks(2, send)
    assert first == second
    assert first is not None
    assert (first.step, first.seconds) == (4, 7.0)
    assert meter.num_bytes == 3000

    def fetch(rank: made.Rank) -> restoring.Resumed:
        return restoring.newest(made.node_of(tmp_path / f"fresh-{rank.rank}", attempt=2), store, rank)

    resumed = made.on_ranks(2, fetch, nodes=True)
    sent = made.contents(node.path(4))
    for rank, each in enumerate(resumed):
        assert each.checkpoint is not None
        assert each.uri == first.uri
        names = {made.COMMON, made.own_file(rank)}
        assert made.contents(each.checkpoint.path) == {name: sent[name] for name in names}


def test_a_checkpoint_exists_only_once_its_marker_is_there(
    store: remote.RemoteCheckpoints, node: checkpoint.CheckpointStore, there: pathlib.Path
) -> None:
    made.write(node, 4)
    local = node.at(4)
    assert local is not None
    store.send_part(local, 0, lambda num_bytes: None)
    assert steps(store) == []
    whole = store.seal(local.progress, store.parts(local.progress, 1))
    assert steps(store) == [4]
    marks = json.loads((there / whole.name / marker.MARKER).read_text())
    assert set(marks["files"]) == set(marks["digests"]) == {made.COMMON, made.own_file(0)}


def test_a_folder_that_is_copied_from_the_store_is_a_checkpoint(
    store: remote.RemoteCheckpoints, node: checkpoint.CheckpointStore, there: pathlib.Path
) -> None:
    made.upload(store, node, 4)
    found = checkpoint.read(there / remote.name_of(made.progress_of(4)))
    assert found is not None
    assert found.progress == made.progress_of(4)


def test_what_is_there_is_not_sent_again(
    store: remote.RemoteCheckpoints, node: checkpoint.CheckpointStore, there: pathlib.Path
) -> None:
    made.write(node, 4)
    local = node.at(4)
    assert local is not None
    sent: list[int] = []
    store.send_part(local, 0, sent.append)
    assert sent == [1000, 1000]
    store.send_part(local, 0, sent.append)
    assert sent == [1000, 1000]
    # Another hand has been at one of them.
    (there / remote.name_of(local.progress) / made.COMMON).write_bytes(b"x" * 1000)
    store.send_part(local, 0, sent.append)
    assert sent == [1000, 1000, 1000]


def test_a_newer_checkpoint_takes_the_place_of_the_one_that_waits(
    store: remote.RemoteCheckpoints, node: checkpoint.CheckpointStore
) -> None:
    def body(rank: made.Rank) -> list[int]:
        keeper = made.uploader(store, node, rank)
        for step in (1, 2, 3):
            made.write(node, step)
            keeper.offer(step=step, seconds=0.0)
        assert [each.progress.step for each in node.all()] == [3]
        keeper.settle(timeout_s=30.0)
        keeper.close()
        return steps(store)

    assert made.on_ranks(1, body) == [[3]]


def test_older_ones_go_and_what_never_became_one_goes_too(
    store: remote.RemoteCheckpoints, node: checkpoint.CheckpointStore, there: pathlib.Path
) -> None:
    (there / "step-000000002-000001").mkdir(parents=True)
    (there / "step-000000002-000001" / "part").write_bytes(b"x")
    (there / "step-000000099-000001").mkdir()
    (there / "step-000000099-000001" / "part").write_bytes(b"x")
    made.upload(store, node, 3, 4, 5, keep_last=2)
    assert steps(store) == [5, 4]
    files = {path.relative_to(there).parts[0] for path in there.rglob("*") if path.is_file()}
    # The newest is beyond what is whole: it may be on its way.
    assert files == {"step-000000004-000001", "step-000000005-000001", "step-000000099-000001"}


@pytest.mark.parametrize("damage", [b"x" * 1000, b"short", None], ids=["other bytes", "another size", "missing"])
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_taken(
    store: remote.RemoteCheckpoints,
    node: checkpoint.CheckpointStore,
    there: pathlib.Path,
    tmp_path: pathlib.Path,
    damage: bytes | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made.upload(store, node, 3, 4)
    path = there / remote.name_of(made.progress_of(4)) / made.own_file(0)
    path.unlink() if damage is None else path.write_bytes(damage)
    resumed = made.restore(store, tmp_path / "fresh")
    assert resumed.checkpoint is not None
    assert resumed.checkpoint.progress.step == 3
    assert remote.name_of(made.progress_of(4)) in caplog.text
    assert made.own_file(0) in caplog.text


def test_a_checkpoint_that_every_node_has_is_not_fetched_and_is_sent_if_the_store_lacks_it(
    store: remote.RemoteCheckpoints, node: checkpoint.CheckpointStore
) -> None:
    made.upload(store, node, 3)
    made.write(node, 4)
    resumed = made.on_ranks(1, lambda rank: restoring.newest(node, store, rank))[0]
    assert resumed.checkpoint is not None
    assert (resumed.checkpoint.progress.step, resumed.uri) == (4, "")


def test_what_only_one_node_has_is_no_checkpoint(store: remote.RemoteCheckpoints, tmp_path: pathlib.Path) -> None:
    nodes = [made.node_of(tmp_path / "a"), made.node_of(tmp_path / "b")]
    made.write(nodes[0], 4, world_size=2)

    def body(rank: made.Rank) -> restoring.Resumed:
        return restoring.newest(nodes[rank.rank], store, rank)

    assert [each.checkpoint for each in made.on_ranks(2, body, nodes=True)] == [None, None]


def test_what_a_replaced_attempt_sends_later_is_no_checkpoint(
    store: remote.RemoteCheckpoints, node: checkpoint.CheckpointStore, tmp_path: pathlib.Path
) -> None:
    made.upload(store, node, 3)
    later = made.open_store(f"file://{tmp_path}/store", attempt=2)
    made.restore(later, tmp_path / "fresh")
    made.write(node, 5)
    local = node.at(5)
    assert local is not None
    store.send_part(local, 0, lambda num_bytes: None)
    with pytest.raises(PermissionError, match="attempt 2 of the trainer has taken over"):
        store.seal(local.progress, store.parts(local.progress, 1))
    assert steps(later) == [3]


class _Away(remote.RemoteCheckpoints):
    """A store that does not answer while `is_away`."""

    is_away = True

    def send_part(self, *arguments: object) -> None:
        if self.is_away:
            raise errors.StorageError("cannot write to s3://runs: the service cannot be reached")
        super().send_part(*arguments)  # type: ignore[arg-type]


def test_a_store_that_is_away_is_told_of_and_given_the_checkpoint_once_it_is_back(
    tmp_path: pathlib.Path, node: checkpoint.CheckpointStore
) -> None:
    store = _Away(made.open_folder(f"file://{tmp_path}/store"), run=made.RUN, attempt=1)
    clock, meter = FakeClock(), made.Meter()

    def body(rank: made.Rank) -> None:
        # Each try fails at once: no time passes in it, and none is left.
        keeper = made.uploader(store, node, rank, clock=clock, meter=meter, retry_for_s=0.0)
        made.write(node, 4)
        keeper.offer(step=4, seconds=0.0)
        with pytest.raises(errors.StorageError, match="step 4 is not in file://.*the service cannot be reached"):
            keeper.settle(timeout_s=600.0)
        assert "there is none yet: cannot write to s3://runs" in keeper.problem()
        assert meter.failures == 1
        # A failed try is made again after a minute, not at every step.
        assert keeper.advance() is None
        assert meter.failures == 1
        store.is_away = False
        clock.tick(61.0)
        assert keeper.advance() is None
        kept = keeper.settle(timeout_s=600.0)
        assert kept is not None
        assert kept.step == 4
        assert keeper.problem() == ""
        keeper.close()

    made.on_ranks(1, body)
    assert steps(store) == [4]


def test_a_record_of_an_upload_that_was_cut_off_leads_to_no_file_that_is_not_there(
    store: remote.RemoteCheckpoints, node: checkpoint.CheckpointStore, there: pathlib.Path
) -> None:
    made.write(node, 4)
    local = node.at(4)
    assert local is not None
    store.send_part(local, 0, lambda num_bytes: None)
    shutil.rmtree(there / remote.name_of(local.progress) / "state")
    sent: list[int] = []
    store.send_part(local, 0, sent.append)
    assert sent == [1000, 1000]


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        ("state/trained/bf16_zero_pp_rank_11_mp_rank_00_optim_states.pt", 11),
        ("state/trained/zero_pp_rank_3_mp_rank_00_model_states.pt", 3),
        ("critic/trained/zero_pp_rank_0_mp_rank_00_optim_states.pt", 0),
        ("state/trained/mp_rank_00_model_states.pt", None),
        ("weights/model.safetensors", None),
    ],
)
def test_a_file_of_deepspeed_is_for_the_rank_in_its_name(file: str, rank: int | None) -> None:
    assert marker.rank_of(file) == rank
