"""`transport: file`: bytes go through a folder that trainer, rollouts and coordinator share. Blocking.

The folder is that of the coordinator's weight store, so that versions are registered, planned and pruned as ever: the
trainer writes an artifact there as the store would, and a rollout reads it. It saves both trips over a connection:
on one machine, or where all pods mount one volume. An artifact is named by the BLAKE3 of its bytes and appears by
rename, synced before: a reader on another node sees whole artifacts only.
"""

import io
import os
import pathlib
import uuid
from collections.abc import Sequence

import blake3

from rljob_api import enums, errors, process_config, types
from rljob_workers.runtime import atomic
from rljob_workers.weights.backends import base


class FilePublisher(base.RegisteringPublisher):
    """Writes artifacts to the folder."""

    def __init__(self, *, folder: pathlib.Path, control_address: str, tls: process_config.TlsConfig | None) -> None:
        super().__init__(control_address=control_address, tls=tls)
        self._folder = folder

    def upload(self, data: memoryview, encoding: enums.Encoding) -> types.Artifact:
        """Write `data` under its digest. Raises UnavailableError if the folder cannot be written to."""
        digest = blake3.blake3(data, max_threads=2).hexdigest()
        artifact = types.Artifact(artifact_id=digest, encoding=encoding, num_bytes=len(data))
        work = self._folder / f"{uuid.uuid4().hex}.part"
        try:
            with work.open("wb", buffering=0) as file:
                _write(file.fileno(), data)
                os.fsync(file.fileno())
            # A coordinator that starts removes unfinished files; this one is then written again.
            work.rename(self._folder / digest)
            atomic.sync_folder(self._folder)
        except OSError as error:
            work.unlink(missing_ok=True)
            raise errors.UnavailableError(f"weights cannot be written to {self._folder}: {error}") from error
        return artifact


def _write(descriptor: int, data: memoryview) -> None:
    # One write takes 2 GiB at most.
    position = 0
    while position < len(data):
        position += os.write(descriptor, data[position:])


class FilePuller(base.PlanningPuller):
    """Reads artifacts from the folder; the sources of a plan are addresses, which it does not need."""

    def __init__(self, *, folder: pathlib.Path, control_address: str, tls: process_config.TlsConfig | None) -> None:
        super().__init__(control_address=control_address, tls=tls)
        self._folder = folder

    def pull(
        self,
        artifact: types.Artifact,
        sources: Sequence[types.WeightSource],  # noqa: ARG002  # the folder is the source
        into: memoryview,
    ) -> None:
        """Copy the artifact and verify it. Raises WeightsError if it is not there, and DigestError if it is damaged."""
        if len(into) < artifact.num_bytes:
            raise errors.WeightsError(f"artifact of {artifact.num_bytes} bytes does not fit into {len(into)}")
        if not artifact.artifact_id.isalnum():
            raise errors.WeightsError(f"invalid artifact ID {artifact.artifact_id!r}")
        target = into[: artifact.num_bytes]
        try:
            with (self._folder / artifact.artifact_id).open("rb") as file:
                num_bytes = _read(file, target)
        except OSError as error:
            raise errors.WeightsError(
                f"artifact {artifact.artifact_id} cannot be read from {self._folder}, which weightSync.transport 'file'"
                f" expects to be shared with the trainer: {error}"
            ) from error
        if num_bytes != artifact.num_bytes or blake3.blake3(target, max_threads=2).hexdigest() != artifact.artifact_id:
            raise errors.DigestError(f"artifact {artifact.artifact_id} in {self._folder} does not match its digest")
        self.transfers.fetched(enums.SourceKind.FILE, num_bytes)


def _read(file: io.BufferedIOBase, target: memoryview) -> int:
    # Not mapped: a file that its server has removed must be an error and not the end of the process.
    position = 0
    while position < len(target) and (num_bytes := file.readinto(target[position:])):
        position += num_bytes
    return position


def publisher(config: process_config.TrainerConfig, make: type[FilePublisher] = FilePublisher) -> FilePublisher:
    return make(folder=pathlib.Path(config.weights_dir), control_address=config.coordinator_address, tls=config.tls)


def puller(config: process_config.RolloutConfig, make: type[FilePuller] = FilePuller) -> FilePuller:
    return make(folder=pathlib.Path(config.weights_dir), control_address=config.coordinator_address, tls=config.tls)


BACKEND = base.Backend(publisher=publisher, puller=puller)
