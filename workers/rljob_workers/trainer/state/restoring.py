"""Which checkpoint all ranks continue from, and bringing it to this node where it is in an object store.

On a volume every rank sees the same folder. With a store each node has a disk of its own: what all nodes have there is
as good as what is in the store, and is not fetched. A checkpoint of which an object is missing or holds other bytes is
refused by name, and the one before is taken.
"""

import dataclasses
import logging
import pathlib
import shutil
from typing import Protocol, TypeVar

from rljob_api import errors
from rljob_workers.objects import files
from rljob_workers.runtime import retry
from rljob_workers.trainer.state import checkpoint, marker, remote

logger = logging.getLogger(__name__)
T = TypeVar("T")

_RETRY_FOR_S = 600.0


class Group(Protocol):
    """The ranks of a run, before there is an engine."""

    rank: int
    local_rank: int

    def gather(self, value: T) -> list[T]:
        """Return the value of each rank, in order; all ranks call it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The checkpoint to continue from, None for none, and its address in the store, empty if it is not there."""

    checkpoint: checkpoint.Checkpoint | None
    uri: str = ""


def newest(node: checkpoint.CheckpointStore, store: remote.RemoteCheckpoints | None, group: Group) -> Resumed:
    """Return what all ranks continue from, chosen by rank 0, which fences off earlier attempts with it.

    A replaced attempt may finish one at any moment: ranks that looked by themselves could continue from two steps.
    Raises CheckpointError where a rank does not see the one that was chosen, StorageError.
    """
    return _on_volume(node, group) if store is None else _InStore(node, store, group).newest()


def _on_volume(node: checkpoint.CheckpointStore, group: Group) -> Resumed:
    step = 0
    if group.rank == 0:
        latest = node.newest()
        step = latest.progress.step if latest else 0
        node.fence(step)
    step = group.gather(step)[0]
    if step == 0:
        return Resumed(checkpoint=None)
    latest = node.at(step)
    if latest is None:
        raise errors.CheckpointError(
            f"rank {group.rank} does not see the checkpoint of step {step}:"
            f" is the volume of {node.directory} shared by all nodes?"
        )
    return Resumed(checkpoint=latest)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What rank 0 chose: a checkpoint of the store, or, with `whole` None, one that every node has."""

    progress: marker.Progress
    whole: remote.RemoteCheckpoint | None


class _InStore:
    def __init__(self, node: checkpoint.CheckpointStore, store: remote.RemoteCheckpoints, group: Group) -> None:
        self._node, self._store, self._group = node, store, group

    def newest(self) -> Resumed:
        everywhere = self._on_every_node()
        refused: set[str] = set()
        while True:
            mine = self._choose(everywhere, refused) if self._group.rank == 0 else None
            choice = self._group.gather(mine)[0]
            if choice is None:
                self._fence(0)
                return Resumed(checkpoint=None)
            if choice.whole is None or self._brought(choice.whole, refused):
                break
        self._fence(choice.progress.step)
        local = self._node.at(choice.progress.step)
        if local is None:
            raise errors.CheckpointError(f"rank {self._group.rank} lost the checkpoint of step {choice.progress.step}")
        in_store = choice.whole is not None
        return Resumed(checkpoint=local, uri=self._store.uri(choice.progress) if in_store else "")

    def _on_every_node(self) -> list[marker.Progress]:
        own = {(each.progress.step, each.progress.attempt): each.progress for each in self._node.all()}
        shared = set.intersection(*(set(keys) for keys in self._group.gather(list(own))))
        return [own[key] for key in sorted(shared)]

    def _choose(self, everywhere: list[marker.Progress], refused: set[str]) -> _Choice | None:
        """Return the newest; of a step that a later attempt reached again, the later one."""
        whole = {each.name: each for each in self._ask_patiently() if each.name not in refused}
        fences = self._store.fences()
        local = [progress for progress in everywhere if not marker.is_behind(progress, fences)]
        candidates = [*local, *(each.progress for each in whole.values())]
        best = max(candidates, key=lambda progress: (progress.step, progress.attempt), default=None)
        if best is None:
            return None
        # What is whole in the store is sent no more: its address is worth more than the time to compare its files.
        return _Choice(progress=best, whole=whole.get(remote.name_of(best)))

    def _ask_patiently(self) -> list[remote.RemoteCheckpoint]:
        return retry.retry_sync(
            self._store.whole, deadline_s=_RETRY_FOR_S, backoff=retry.Backoff(first_s=1.0, most_s=30.0)
        )

    def _fence(self, step: int) -> None:
        if self._group.rank == 0:
            self._store.fence(step)
        if self._group.local_rank == 0:
            self._node.fence(step)
        self._group.gather(0)

    def _brought(self, whole: remote.RemoteCheckpoint, refused: set[str]) -> bool:
        """Bring a checkpoint to every node; False, equal on all ranks, if an object of it is not what was written."""
        present = self._node.at(whole.progress.step)
        here = present is not None and present.progress == whole.progress
        if all(self._group.gather(here)):
            return True
        work = self._node.restoring(whole.progress.step)
        problem = self._fetch(whole, work)
        problems = [each for each in self._group.gather(problem) if each]
        if problems:
            refused.add(whole.name)
            if self._group.rank == 0:
                uri = self._store.uri(whole.progress)
                logger.error("the checkpoint %s is refused, the one before is taken: %s", uri, "; ".join(problems))
        if self._group.local_rank == 0:
            if problems:
                shutil.rmtree(work, ignore_errors=True)
            else:
                for leftover in work.rglob(f".*{files.UNFINISHED}"):
                    leftover.unlink()
                self._node.adopt(work, whole.progress)
        self._group.gather(0)
        return not problems

    def _fetch(self, whole: remote.RemoteCheckpoint, work: pathlib.Path) -> str:
        """Fetch this rank's files, and with the first rank of a node those that all read. Return what is wrong with
        one of them, empty for nothing.
        """
        problem = ""
        fetched, total = 0, sum(size for name, size in whole.content.files.items() if self._is_mine(name))

        def note(num_bytes: int) -> None:
            nonlocal fetched
            fetched += num_bytes
            logger.info(
                "restoring the checkpoint of step %d: %.1f of %.1f MB", whole.progress.step, fetched / 1e6, total / 1e6,
                extra={"event": "restore", "step": whole.progress.step},
            )  # fmt: skip

        def fetch() -> None:
            nonlocal problem
            try:
                self._store.fetch(whole, self._is_mine, work, note)
            except errors.DigestError as error:
                # Asked again, the store would answer with the same bytes.
                problem = str(error)

        work.mkdir(parents=True, exist_ok=True)
        retry.retry_moving(
            fetch,
            lambda: fetched,
            idle_timeout_s=_RETRY_FOR_S,
            backoff=retry.Backoff(first_s=1.0, most_s=30.0),
        )
        return problem

    def _is_mine(self, file: str) -> bool:
        rank = marker.rank_of(file)
        return self._group.local_rank == 0 if rank is None else rank == self._group.rank
