"""Checkpoints in an object store: a folder for each, with the files as they are on disk, and COMPLETE.json last.

    <uri>/<uid of the job>/checkpoints/step-000000010-000002/     step 10, written by attempt 2
        state/...                what the ranks wrote
        .rank-00000.json         what this rank has sent so far: size, digest and mark of each file
        COMPLETE.json            size and digest of every file; without it there is no checkpoint
    <uri>/<uid of the job>/checkpoints/attempt-...json            fences (marker.py)

A rank that was killed reads its record: what is there with the bytes of its file is not sent again. An attempt has
folders of its own, so that one that was replaced and does not know it yet overwrites nothing.
"""

import dataclasses
import json
import logging
import pathlib
from collections.abc import Callable, Collection, Mapping

from rljob_api import process_config
from rljob_workers.objects import files, stores
from rljob_workers.trainer.state import checkpoint, marker

logger = logging.getLogger(__name__)
_PREFIX = "step-"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCheckpoint:
    """A whole checkpoint in the store: its folder's name and what its COMPLETE.json says."""

    name: str
    content: marker.Marker

    @property
    def progress(self) -> marker.Progress:
        return self.content.progress

    @property
    def num_bytes(self) -> int:
        return sum(self.content.files.values())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A file that is in the store: size, digest, and the mark that the store gave it."""

    size: int
    digest: str
    etag: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is in the store of a checkpoint that is on its way: the files of each rank that is `through`, and how many
    files there are of all ranks.
    """

    through: Mapping[int, Mapping[str, files.Content]]
    num_files: int


class RemoteCheckpoints:
    """The checkpoints of a run in a folder of an object store. Calls raise StorageError."""

    def __init__(self, folder: stores.Folder, *, run: str, attempt: int) -> None:
        """Nothing is asked of the store. `run`, `attempt`: whose this is, for what writes."""
        self._folder, self._run, self._attempt = folder, run, attempt

    def uri(self, progress: marker.Progress) -> str:
        return f"{self._folder.uri}/{name_of(progress)}"

    def whole(self) -> list[RemoteCheckpoint]:
        """Return the whole checkpoints that no later attempt took back, the newest first.

        One whose files are not all there in their sizes is passed over and logged by name.
        """
        entries = self._folder.entries()
        sizes = {entry.key: entry.size for entry in entries}
        fences = self._fences(sizes)
        names = sorted({name for key in sizes if (name := _folder_of(key, ending=marker.MARKER))}, reverse=True)
        checkpoints = [self._read(name, sizes) for name in names]
        return [each for each in checkpoints if each is not None and not marker.is_behind(each.progress, fences)]

    def _read(self, name: str, sizes: Mapping[str, int]) -> RemoteCheckpoint | None:
        try:
            whole = marker.decode(self._folder.read(f"{name}/{marker.MARKER}") or b"")
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("passed over %s/%s: its %s is damaged: %s", self._folder.uri, name, marker.MARKER, error)
            return None
        for file, size in whole.files.items():
            if sizes.get(f"{name}/{file}") != size:
                where = f"{self._folder.uri}/{name}"
                logger.warning("passed over %s: file %s is missing or has another size", where, file)
                return None
        return RemoteCheckpoint(name=name, content=whole)

    def fences(self) -> list[marker.Fence]:
        return self._fences([entry.key for entry in self._folder.entries()])

    def _fences(self, keys: Collection[str]) -> list[marker.Fence]:
        contents = [self._folder.read(key) for key in keys if key.startswith(marker.FENCE)]
        return [marker.decode_fence(content) for content in contents if content is not None]

    def fence(self, step: int) -> None:
        """Say that this attempt continues from `step`; what earlier ones finish beyond it is not a checkpoint."""
        fence = marker.Fence(run=self._run, attempt=self._attempt, goes_on_from=step)
        self._folder.write(fence.name, fence.encode().encode())

    def send_part(self, local: checkpoint.Checkpoint, rank: int, sent: Callable[[int], None]) -> None:
        """Send what a rank wrote of a checkpoint and is not there yet; call `sent` with the bytes of each file.

        Called again after a failure or a restart, it continues. Raises OSError for a local file.
        """
        folder = self._folder.below(name_of(local.progress))
        record = self._record(folder, rank)
        there = {entry.key: entry for entry in folder.entries()}
        for file in _files_of(local.path, rank):
            content, before, entry = files.content_of(local.path / file), record.get(file), there.get(file)
            if before is not None and entry is not None:
                is_as_sent = (before.size, before.etag) == (entry.size, entry.etag)
                if is_as_sent and (before.size, before.digest) == (content.size, content.digest):
                    continue
            etag = folder.send(file, local.path / file)
            record[file] = _Sent(size=content.size, digest=content.digest, etag=etag)
            self._write_record(folder, rank, record, is_complete=False)
            sent(content.size)
        self._write_record(folder, rank, record, is_complete=True)

    def parts(self, progress: marker.Progress, world_size: int) -> Parts:
        """Return what the ranks have sent of a checkpoint."""
        folder = self._folder.below(name_of(progress))
        through, num_files = {}, 0
        for rank in range(world_size):
            content = json.loads(folder.read(_record_name(rank)) or b"{}")
            sent = {
                name: files.Content(size=file["size"], digest=file["digest"])
                for name, file in content.get("files", {}).items()
            }
            num_files += len(sent)
            if content.get("complete"):
                through[rank] = sent
        return Parts(through=through, num_files=num_files)

    def seal(self, progress: marker.Progress, parts: Parts) -> RemoteCheckpoint:
        """Make it a checkpoint. Raises PermissionError if a later attempt has taken over."""
        marker.check_not_replaced(self.fences(), run=self._run, attempt=self._attempt)
        every = {name: content for part in parts.through.values() for name, content in sorted(part.items())}
        whole = marker.Marker(
            progress=progress,
            files={name: content.size for name, content in every.items()},
            digests={name: content.digest for name, content in every.items()},
        )
        name = name_of(progress)
        self._folder.write(f"{name}/{marker.MARKER}", whole.encode().encode())
        return RemoteCheckpoint(name=name, content=whole)

    def prune(self, *, keep_last: int, keep_every: int) -> list[int]:
        """Remove what `superfluous` names, what never became a checkpoint, and what was taken back. Return the steps.

        Nothing beyond the newest whole checkpoint is touched: it may be on its way.
        """
        whole = self.whole()
        if not whole:
            return []
        newest = whole[0].progress.step
        gone = marker.superfluous([each.progress.step for each in whole], keep_last=keep_last, keep_every=keep_every)
        # Of a step that two attempts reached the later one counts.
        retained = {name_of(each.progress) for each in reversed(whole) if each.progress.step not in gone}
        keys = [entry.key for entry in self._folder.entries()]
        names = {name for key in keys if (name := _folder_of(key))}
        for name in sorted(names - retained):
            if _step_of(name) <= newest:
                # The marker first: half a folder must not be taken for a checkpoint.
                own = sorted((key for key in keys if key.startswith(f"{name}/")), key=_marker_first)
                self._folder.delete(own)
        return list(gone)

    def fetch(
        self,
        whole: RemoteCheckpoint,
        selects: Callable[[str], bool],
        into: pathlib.Path,
        fetched: Callable[[int], None],
    ) -> None:
        """Fetch the files that `selects` picks into a folder; call `fetched` with the bytes of each. What is there
        already is not fetched again. Raises DigestError naming an object with other bytes, OSError.
        """
        folder = self._folder.below(whole.name)
        for file, size in whole.content.files.items():
            if selects(file):
                content = files.Content(size=size, digest=whole.content.digests.get(file, ""))
                fetched(files.fetch(folder, file, into / file, content))

    def _record(self, folder: stores.Folder, rank: int) -> dict[str, _Sent]:
        content = json.loads(folder.read(_record_name(rank)) or b"{}")
        return {name: _Sent(**file) for name, file in content.get("files", {}).items()}

    def _write_record(
        self, folder: stores.Folder, rank: int, record: Mapping[str, _Sent], *, is_complete: bool
    ) -> None:
        sent = {name: dataclasses.asdict(file) for name, file in record.items()}
        folder.write(_record_name(rank), json.dumps({"complete": is_complete, "files": sent}).encode())


def folder_of(config: process_config.TrainerConfig) -> stores.Folder | None:
    """Return the job's own folder in the object store of its manifest, None without one. Raises ManifestError."""
    storage = config.spec.storage
    if storage.checkpoint_uri is None:
        return None
    return stores.open_folder(f"{storage.checkpoint_uri}/{config.job.uid}", storage.s3)


def checkpoints_of(config: process_config.TrainerConfig) -> RemoteCheckpoints | None:
    """Return the job's checkpoints in an object store, as its present attempt writes them; None without a store."""
    folder = folder_of(config)
    if folder is None:
        return None
    return RemoteCheckpoints(folder.below("checkpoints"), run=config.job.uid, attempt=config.attempt)


def name_of(progress: marker.Progress) -> str:
    """Return the name of a checkpoint's folder."""
    return f"{_PREFIX}{progress.step:09d}-{progress.attempt:06d}"


def _step_of(name: str) -> int:
    return int(name.removeprefix(_PREFIX).partition("-")[0])


def _folder_of(key: str, *, ending: str = "") -> str:
    """Return the checkpoint's folder that an object is in, "" for one that is in none, or does not end so."""
    name, _, rest = key.partition("/")
    return name if name.startswith(_PREFIX) and rest and (not ending or rest == ending) else ""


def _marker_first(key: str) -> tuple[bool, str]:
    return not key.endswith(f"/{marker.MARKER}"), key


def _record_name(rank: int) -> str:
    return f".rank-{rank:05d}.json"


def _files_of(folder: pathlib.Path, rank: int) -> list[str]:
    """Return what a rank sends: its own files, and rank 0 those that belong to no rank."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in paths]
    return [name for name in names if name != marker.MARKER and (marker.rank_of(name) or 0) == rank]
