"""The weight store: artifacts as content-addressed files, and the bulk server that moves their bytes.

It runs in a process of its own, so that the ledger never waits for bytes: `python -m
rljob_workers.coordinator.weights.store --config role.json`, started by the coordinator and killed with it. A file is
named by the BLAKE3 of its bytes and appears by rename, so readers see whole artifacts only; it is written through to
the disk while receivers already read it, because hundreds of megabytes take the disk longer than the network. Power
lost in that second can damage the newest artifact only, and one found at start is hashed again on its first use.
Upload: a client stream of CHUNK frames in order and one COMMIT frame with the digest. Pull: a stream of CHUNK frames.
"""

# ruff: noqa: ARG002  # the signatures are gRPC's

import asyncio
import contextlib
import logging
import mmap
import os
import pathlib
import signal
import socket
import stat
import sys
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Collection

import blake3
import grpc
import grpc.aio

from rljob_api import enums, errors, process_config
from rljob_api.wire.v1 import weights_pb2
from rljob_workers.rpc import channel
from rljob_workers.runtime import boot
from rljob_workers.weights import deadlines, frames

logger = logging.getLogger(__name__)
SERVICE = "rljob.v1.WeightStore"
_PART = ".part"
_BEAT_S = 1.0
_HASH_STEP_BYTES = 64 << 20


class ArtifactStore:
    """The files. Blocking; used by the store process and, for sizes and pruning, by the coordinator."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Make the folder if it is not there."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def num_bytes(self, artifact_id: str) -> int | None:
        path = self.path(artifact_id)
        return path.stat().st_size if path.is_file() else None

    def remove(self, artifact_id: str) -> None:
        """Delete an artifact; streams that read it continue."""
        self.path(artifact_id).unlink(missing_ok=True)

    def remove_orphans(self, referenced: Collection[str]) -> list[str]:
        """Delete unfinished uploads and artifacts that no version names. Only while no store process runs."""
        orphans = sorted(path for path in self.folder.iterdir() if path.name not in referenced)
        for path in orphans:
            path.unlink()
        return [path.name for path in orphans]

    def path(self, artifact_id: str) -> pathlib.Path:
        """Return an artifact's file. Raises WeightsError for a name that is not a digest."""
        if not artifact_id.isalnum():
            raise errors.WeightsError(f"invalid artifact ID {artifact_id!r}")
        return self.folder / artifact_id

    def matches(self, artifact_id: str) -> bool:
        """Hash a stored artifact; one that does not match its name is deleted. One that is gone does not match."""
        hasher = blake3.blake3(max_threads=2)
        try:
            with self.path(artifact_id).open("rb") as file:
                while part := file.read(_HASH_STEP_BYTES):
                    hasher.update(part)
        except FileNotFoundError:
            return False
        if hasher.hexdigest() == artifact_id:
            return True
        self.remove(artifact_id)
        return False


class Upload:
    """One artifact on its way in. Nothing is left of it unless `commit` succeeds."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._part = store.folder / f"{uuid.uuid4().hex}{_PART}"
        self._file = self._part.open("wb", buffering=0)
        self._hasher = blake3.blake3(max_threads=2)
        self._size = 0

    def add(self, offset: int, payload: memoryview) -> None:
        """Append the next chunk. Raises WireError if it is not the next one."""
        if offset != self._size:
            raise errors.WireError(f"chunk at {offset} where {self._size} was expected")
        self._file.write(payload)
        self._hasher.update(payload)
        self._size += len(payload)

    def commit(self, artifact_id: str) -> int:
        """Make the artifact visible; return its size. Raises DigestError if the bytes are not what was named."""
        digest = self._hasher.hexdigest()
        if digest != artifact_id:
            raise errors.DigestError(f"the uploaded bytes hash to {digest}, not {artifact_id}")
        self._part.rename(self._store.path(artifact_id))
        return self._size

    def make_durable(self) -> None:
        """Write the committed artifact and its name through to the disk. Raises OSError if the disk refuses."""
        os.fsync(self._file.fileno())
        folder = os.open(self._store.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def close(self) -> None:
        """Close the file and remove what was not committed."""
        self._file.close()
        self._part.unlink(missing_ok=True)


class StoreServicer:
    """The two bulk calls. Files are written and hashed on threads, so that other streams continue."""

    def __init__(self, store: ArtifactStore, *, max_streams: int = deadlines.MOST_STREAMS) -> None:
        """Serve at most `max_streams` pulls at once."""
        self._store, self._max_streams, self._streams = store, max_streams, 0
        self._verified: set[str] = set()
        self._flushing: set[asyncio.Task[None]] = set()

    def handler(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Upload": grpc.stream_unary_rpc_method_handler(self.upload),
                "Pull": grpc.unary_stream_rpc_method_handler(self.pull),
            },
        )

    async def upload(self, request: AsyncIterable[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        # One artifact at a time is behind the disk.
        await self.flushed()
        upload = await asyncio.to_thread(Upload, self._store)
        try:
            async for frame in request:
                kind, offset, payload = frames.unpack(frame)
                if kind is frames.FrameKind.COMMIT:
                    artifact_id = bytes(payload).decode("ascii", errors="replace")
                    num_bytes = await asyncio.to_thread(upload.commit, artifact_id)
                    self._verified.add(artifact_id)
                    self._flush(upload, artifact_id)
                    return weights_pb2.UploadReply(artifact_id=artifact_id, num_bytes=num_bytes).SerializeToString()
                await asyncio.to_thread(upload.add, offset, payload)
            raise errors.WireError("the upload ended without a commit")
        except BaseException:
            await asyncio.to_thread(upload.close)
            raise

    async def flushed(self) -> None:
        """Return once all artifacts are on the disk."""
        if self._flushing:
            await asyncio.wait(set(self._flushing))

    def _flush(self, upload: Upload, artifact_id: str) -> None:
        task = asyncio.create_task(self._make_durable(upload, artifact_id))
        self._flushing.add(task)
        task.add_done_callback(self._flushing.discard)

    async def _make_durable(self, upload: Upload, artifact_id: str) -> None:
        try:
            await asyncio.to_thread(upload.make_durable)
        except OSError as error:
            logger.error("artifact %s could not be written to the disk and is withdrawn: %s", artifact_id, error)
            self._verified.discard(artifact_id)
            self._store.remove(artifact_id)
        finally:
            await asyncio.to_thread(upload.close)

    async def pull(self, request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> AsyncIterator[bytes]:
        """Send bytes [offset, offset + length) of an artifact; length 0 is to its end."""
        pull = weights_pb2.PullRequest.FromString(request)
        artifact_id, offset, length = pull.artifact_id, pull.offset, pull.length
        if self._streams >= self._max_streams:
            raise errors.BusyError(f"all {self._max_streams} streams are in use")
        self._streams += 1
        try:
            await self._verify(artifact_id)
            try:
                data = await asyncio.to_thread(_mapped, self._store.path(artifact_id))
            except FileNotFoundError as error:
                raise _gone(artifact_id) from error
            end = min(len(data), offset + length) if length else len(data)
            for start in range(offset, end, enums.CHUNK_BYTES):
                yield frames.pack(frames.FrameKind.CHUNK, start, data[start : min(start + enums.CHUNK_BYTES, end)])
        finally:
            self._streams -= 1

    async def _verify(self, artifact_id: str) -> None:
        if self._store.num_bytes(artifact_id) is None:
            raise _gone(artifact_id)
        if artifact_id in self._verified:
            return
        if not await asyncio.to_thread(self._store.matches, artifact_id):
            raise errors.DigestError(f"the stored artifact {artifact_id} was damaged and is gone")
        self._verified.add(artifact_id)


def _gone(artifact_id: str) -> errors.WeightsError:
    return errors.WeightsError(f"artifact {artifact_id} is not stored here; ask for a new plan")


def _mapped(path: pathlib.Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


async def serve(config: process_config.CoordinatorConfig) -> None:
    """Serve until SIGTERM, or until the starter's end of stdin closes. Raises UnavailableError if the port is taken.

    The kernel's death signal is not enough: a starter killed before this process could ask for it would leave it.
    Where stdin is a socket the starter hears on it that this process works.
    """
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stopping.set)
    beating = asyncio.create_task(_beat(sys.stdin.fileno()))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    servicer = StoreServicer(ArtifactStore(pathlib.Path(config.weights_dir)))
    server = channel.aio_server(config)
    server.add_generic_rpc_handlers((servicer.handler(),))
    channel.bind(server, f"{config.bind_host}:{config.store_port}", config.tls)
    await server.start()
    logger.info("served weights on port %d", config.store_port, extra={"event": "store_ready"})
    await stopping.wait()
    beating.cancel()
    await server.stop(grace=1.0)
    await servicer.flushed()


async def _beat(number: int) -> None:
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        return
    with socket.socket(fileno=os.dup(number)) as starter:
        starter.setblocking(False)
        # A starter that is gone is reported by the end of stdin; one that does not listen has enough to read.
        with contextlib.suppress(ConnectionError):
            while True:
                with contextlib.suppress(BlockingIOError):
                    starter.send(b".")
                await asyncio.sleep(_BEAT_S)


def main() -> int:
    boot.die_with_parent()
    invocation = boot.parse(
        process_config.CoordinatorConfig,
        program="rljob-weight-store",
        about="The bulk server of a coordinator's weight store.",
    )
    boot.configure_process(invocation.config)
    return boot.run_main(lambda: asyncio.run(serve(invocation.config)))


if __name__ == "__main__":
    sys.exit(main())
