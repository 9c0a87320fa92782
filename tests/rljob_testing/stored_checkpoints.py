"""Checkpoints of two ranks in an object store, without torch: files with the names that DeepSpeed gives them."""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from rljob_api.manifest.storage import S3Spec
from rljob_testing import ranks
from rljob_testing.clock import FakeClock
from rljob_workers.objects import stores
from rljob_workers.trainer.state import checkpoint, keeping, marker, remote, restoring, uploading

T = TypeVar("T")
RUN = "run-uid"
# A real service on a busy machine.
WAIT_S = 200.0
COMMON = "state/trained/mp_rank_00_model_states.pt"


def own_file(rank: int) -> str:
    """Return the name of what a rank writes for itself."""
    return f"state/trained/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def open_store(uri: str, endpoint: str | None = None, *, attempt: int = 1) -> remote.RemoteCheckpoints:
    """Return the checkpoints of the run in a store."""
    return remote.RemoteCheckpoints(open_folder(uri, endpoint), run=RUN, attempt=attempt)


def open_folder(uri: str, endpoint: str | None = None) -> stores.Folder:
    s3 = S3Spec.model_validate({"endpoint": endpoint, "region": "us-east-1"} if endpoint else {})
    return stores.open_folder(f"{uri}/{RUN}", s3).below("checkpoints")


def progress_of(step: int, *, attempt: int = 1) -> marker.Progress:
    return marker.Progress(
        step=step, updates_applied=step, skipped_in_a_row=0, optimizer=True, sections={}, attempt=attempt, run=RUN
    )


def write(node: checkpoint.CheckpointStore, step: int, *, world_size: int = 1, num_bytes: int = 1000) -> None:
    """Write a checkpoint of the step on a node, with random bytes in each file."""
    work = node.begin(step)
    for name in (COMMON, *(own_file(rank) for rank in range(world_size))):
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(num_bytes))
    node.commit(progress_of(step))


def node_of(folder: pathlib.Path, *, attempt: int = 1) -> checkpoint.CheckpointStore:
    folder.mkdir(parents=True, exist_ok=True)
    return checkpoint.CheckpointStore(folder, run=RUN, attempt=attempt)


class Rank:
    """One rank, whose reductions meet those of the others; all are on one node unless `local_rank` is given."""

    def __init__(self, reduce: ranks.Reduce, rank: int, world_size: int, local_rank: int | None = None) -> None:
        self._reduce, self.rank, self.world_size = reduce, rank, world_size
        self.local_rank = rank if local_rank is None else local_rank

    def largest(self, values: Sequence[float]) -> list[float]:
        return self._reduce.largest(values)

    def gather(self, value: T) -> list[T]:
        gathered: list[list[T]] = self._reduce.gather([value])
        return [values[0] for values in gathered]


def on_ranks(count: int, body: Callable[[Rank], T], *, nodes: bool = False) -> list[T]:
    """Run a body on so many ranks at once, each on a node of its own with `nodes`."""

    def bound(rank: int) -> Callable[[ranks.Reduce], T]:
        return lambda reduce: body(Rank(reduce, rank, count, 0 if nodes else rank))

    return ranks.run([bound(rank) for rank in range(count)], wait_s=WAIT_S)


class Meter:
    """Counts."""

    def __init__(self) -> None:
        self.num_bytes, self.failures = 0, 0

    def uploaded(self, num_bytes: int, seconds: float) -> None:
        self.num_bytes += num_bytes

    def upload_failed(self) -> None:
        self.failures += 1


def uploader(
    store: remote.RemoteCheckpoints,
    node: checkpoint.CheckpointStore,
    rank: Rank,
    *,
    clock: FakeClock | None = None,
    meter: Meter | None = None,
    resumed: keeping.DurableCheckpoint | None = None,
    keep_last: int = 2,
    retry_for_s: float = 600.0,
) -> uploading.Uploader:
    return uploading.Uploader(
        store=store,
        node=node,
        ranks=rank,
        is_first_of_node=rank.local_rank == 0,
        retention=uploading.Retention(keep_last=keep_last, keep_every=0),
        clock=clock or FakeClock(),
        meter=meter,
        resumed=resumed,
        retry_for_s=retry_for_s,
    )


def upload(store: remote.RemoteCheckpoints, node: checkpoint.CheckpointStore, *steps: int, keep_last: int = 9) -> None:
    """Bring checkpoints of one rank, written here, to the store, one after the other."""

    def body(rank: Rank) -> None:
        keeper = uploader(store, node, rank, keep_last=keep_last)
        for step in steps:
            write(node, step)
            keeper.offer(step=step, seconds=1.0)
            keeper.settle(timeout_s=WAIT_S)
        keeper.close()

    on_ranks(1, body)


def restore(store: remote.RemoteCheckpoints, folder: pathlib.Path, *, attempt: int = 2) -> restoring.Resumed:
    """Return what one rank on a fresh node continues from."""
    node = node_of(folder, attempt=attempt)
    return on_ranks(1, lambda rank: restoring.newest(node, store, rank))[0]


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Return the files of a checkpoint, without its marker."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != marker.MARKER]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
