"""The files, and the bulk service on loopback with the real clients."""

import asyncio
import errno
import os
import pathlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import blake3
import grpc
import grpc.aio
import pytest

from rljob_api import enums, errors, types
from rljob_api.wire.v1 import weights_pb2
from rljob_workers.coordinator.weights import store as weight_store
from rljob_workers.rpc import channel
from rljob_workers.weights import frames, pieces
from rljob_workers.weights.backends import grpc_store

DATA = os.urandom(5 << 20)
NAME = blake3.blake3(DATA).hexdigest()


@pytest.fixture
def store(tmp_path: pathlib.Path) -> weight_store.ArtifactStore:
    return weight_store.ArtifactStore(tmp_path / "weights")


def keep(store: weight_store.ArtifactStore, data: bytes = DATA) -> str:
    upload = weight_store.Upload(store)
    upload.add(0, memoryview(data))
    name = blake3.blake3(data).hexdigest()
    upload.commit(name)
    upload.close()
    return name


def test_an_artifact_is_named_by_its_bytes(store: weight_store.ArtifactStore) -> None:
    assert keep(store) == NAME
    assert store.num_bytes(NAME) == len(DATA)
    assert store.path(NAME).read_bytes() == DATA


@pytest.mark.covers("weights 8-1")
def test_an_upload_that_does_not_hash_to_its_name_leaves_nothing(store: weight_store.ArtifactStore) -> None:
    upload = weight_store.Upload(store)
    upload.add(0, memoryview(b"other"))
    with pytest.raises(errors.DigestError, match="not"):
        upload.commit(NAME)
    upload.close()
    assert list(store.folder.iterdir()) == []


def test_chunks_out_of_order_are_refused(store: weight_store.ArtifactStore) -> None:
    upload = weight_store.Upload(store)
    upload.add(0, memoryview(b"abc"))
    with pytest.raises(errors.WireError, match="3 was expected"):
        upload.add(4, memoryview(b"e"))
    upload.close()


@pytest.mark.covers("weights 8-2")
def test_what_no_version_names_is_removed_at_start(store: weight_store.ArtifactStore) -> None:
    kept, orphan = keep(store, b"kept"), keep(store, b"orphan")
    (store.folder / "x.part").write_bytes(b"half")
    assert sorted(store.remove_orphans({kept})) == sorted([orphan, "x.part"])
    assert [path.name for path in store.folder.iterdir()] == [kept]


def test_a_name_that_is_a_path_is_refused(store: weight_store.ArtifactStore) -> None:
    with pytest.raises(errors.WeightsError, match="invalid artifact ID"):
        store.path("../ledger.sqlite")


def test_damage_is_found_and_the_artifact_goes(store: weight_store.ArtifactStore) -> None:
    name = keep(store)
    assert store.matches(name)
    with store.path(name).open("r+b") as file:
        file.write(b"\x00\x01")
    assert not store.matches(name)
    assert store.num_bytes(name) is None


def test_an_artifact_that_another_process_removed_meanwhile_does_not_match(store: weight_store.ArtifactStore) -> None:
    assert not store.matches(NAME)


async def test_an_artifact_that_goes_while_it_is_asked_for_is_asked_for_anew(tmp_path: pathlib.Path) -> None:
    class Racing(weight_store.ArtifactStore):
        """Its artifacts go once they were verified."""

        def matches(self, artifact_id: str) -> bool:
            self.remove(artifact_id)
            return True

    store = Racing(tmp_path / "weights")
    pull = weights_pb2.PullRequest(artifact_id=keep(store)).SerializeToString()
    with pytest.raises(errors.WeightsError, match="ask for a new plan"):
        async for _ in weight_store.StoreServicer(store).pull(pull, None):  # type: ignore[arg-type]
            pass


@pytest.mark.covers("weights W-10", "weights W-11")
async def test_an_artifact_leaves_the_store_as_frames_of_a_chunk_each(store: weight_store.ArtifactStore) -> None:
    pull = weights_pb2.PullRequest(artifact_id=keep(store)).SerializeToString()
    sent = [frame async for frame in weight_store.StoreServicer(store).pull(pull, None)]  # type: ignore[arg-type]
    payloads = [bytes(frames.unpack(frame)[2]) for frame in sent]
    assert b"".join(payloads) == DATA
    assert [len(payload) >> 20 for payload in payloads] == [2, 2, 1]
    assert max(len(frame) - len(payload) for frame, payload in zip(sent, payloads, strict=True)) <= 64


@pytest.fixture
async def address(store: weight_store.ArtifactStore) -> AsyncIterator[str]:
    server = channel.aio_server(None)
    servicer = weight_store.StoreServicer(store)
    server.add_generic_rpc_handlers((servicer.handler(),))
    port = channel.bind(server, "127.0.0.1:0", None)
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)
    await servicer.flushed()


@pytest.fixture
def puller() -> Iterator[grpc_store.WeightPuller]:
    found = grpc_store.WeightPuller(control_address="127.0.0.1:1", tls=None)
    yield found
    found.close()


@pytest.fixture
def publisher(address: str) -> Iterator[grpc_store.WeightPublisher]:
    found = grpc_store.WeightPublisher(control_address="127.0.0.1:1", store_address=address, tls=None)
    yield found
    found.close()


@pytest.mark.covers("weights W-12")
async def test_a_rollout_alone_pulls_over_several_connections(
    store: weight_store.ArtifactStore, puller: grpc_store.WeightPuller
) -> None:
    callers = set()

    class Noting(weight_store.StoreServicer):
        """Knows a connection by the port that it comes from."""

        async def pull(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
            callers.add(context.peer())
            async for frame in super().pull(request, context):
                yield frame

    keep(store)
    server = channel.aio_server(None)
    server.add_generic_rpc_handlers((Noting(store).handler(),))
    port = channel.bind(server, "127.0.0.1:0", None)
    await server.start()
    into = bytearray(len(DATA))
    artifact = pieces.describe(memoryview(DATA), enums.Encoding.WHOLE, piece_bytes=1 << 20)
    source = types.WeightSource(address=f"127.0.0.1:{port}", kind=enums.SourceKind.STORE)
    await asyncio.to_thread(puller.pull, artifact, [source], memoryview(into))
    await server.stop(None)
    assert into == DATA
    assert 2 <= len(callers) <= 4


async def test_what_is_uploaded_can_be_pulled(
    address: str, publisher: grpc_store.WeightPublisher, puller: grpc_store.WeightPuller
) -> None:
    artifact = await asyncio.to_thread(publisher.upload, memoryview(DATA), enums.Encoding.WHOLE)
    assert artifact == pieces.describe(memoryview(DATA), enums.Encoding.WHOLE)
    assert artifact.artifact_id == NAME
    into = bytearray(len(DATA))
    source = types.WeightSource(address=address, kind=enums.SourceKind.STORE)
    await asyncio.to_thread(puller.pull, artifact, [source], memoryview(into))
    assert bytes(into) == DATA


async def test_uploading_the_same_bytes_again_is_harmless(publisher: grpc_store.WeightPublisher) -> None:
    first = await asyncio.to_thread(publisher.upload, memoryview(DATA), enums.Encoding.WHOLE)
    assert await asyncio.to_thread(publisher.upload, memoryview(DATA), enums.Encoding.WHOLE) == first


async def test_an_upload_is_answered_before_the_disk_has_it(
    publisher: grpc_store.WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: disk.wait(60.0))
    await asyncio.wait_for(asyncio.to_thread(publisher.upload, memoryview(DATA), enums.Encoding.WHOLE), 30.0)
    disk.set()


async def test_an_artifact_that_the_disk_refuses_is_withdrawn(
    store: weight_store.ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    async def sent() -> AsyncIterator[bytes]:
        yield frames.pack(frames.FrameKind.CHUNK, 0, b"abc")
        yield frames.pack(frames.FrameKind.COMMIT, 3, name.encode())

    monkeypatch.setattr(os, "fsync", full)
    name = blake3.blake3(b"abc").hexdigest()
    servicer = weight_store.StoreServicer(store)
    await servicer.upload(sent(), None)  # type: ignore[arg-type]  # the context is not looked at
    await servicer.flushed()
    assert list(store.folder.iterdir()) == []


async def test_a_pull_goes_on_in_the_middle(address: str, store: weight_store.ArtifactStore) -> None:
    keep(store)
    assert await pull(address, offset=len(DATA) - 3, length=3) == DATA[-3:]
    assert await pull(address, offset=1, length=0) == DATA[1:]


async def test_an_artifact_that_is_not_there_is_a_weights_error(address: str) -> None:
    with pytest.raises(errors.WeightsError, match="ask for a new plan"):
        await pull(address, offset=0, length=0)


async def test_an_artifact_damaged_before_the_start_is_never_served(
    address: str, store: weight_store.ArtifactStore
) -> None:
    keep(store)
    store.path(NAME).write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    with pytest.raises(errors.DigestError, match="damaged"):
        await pull(address, offset=0, length=0)
    assert store.num_bytes(NAME) is None


async def pull(address: str, *, offset: int, length: int) -> bytes:
    async with channel.aio_channel(address, None) as opened:
        call = opened.unary_stream(grpc_store.PULL, request_serializer=bytes, response_deserializer=bytes)
        request = weights_pb2.PullRequest(
            session="", artifact_id=NAME, offset=offset, length=length
        ).SerializeToString()
        found, position = bytearray(), offset
        try:
            async for frame in call(request):
                _, start, payload = frames.unpack(frame)
                assert start == position
                found += payload
                position += len(payload)
        except grpc.aio.AioRpcError as error:
            raise channel.translate(error, address) from error
        return bytes(found)


@pytest.mark.covers("weights 6")
async def test_a_source_that_is_busy_says_so(store: weight_store.ArtifactStore) -> None:
    servicer = weight_store.StoreServicer(store, max_streams=1)
    keep(store)
    request = weights_pb2.PullRequest(session="", artifact_id=NAME, offset=0, length=0).SerializeToString()
    first = servicer.pull(request, None)  # type: ignore[arg-type]  # the context is not looked at
    await anext(first)
    with pytest.raises(errors.BusyError, match="in use"):
        await anext(servicer.pull(request, None))  # type: ignore[arg-type]  # the same
    assert isinstance(first, AsyncGenerator)
    await first.aclose()
    assert frames.unpack(await anext(servicer.pull(request, None)))[1] == 0  # type: ignore[arg-type]  # the same
