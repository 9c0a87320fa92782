"""What a rollout serves, on loopback: to rollouts of its job alone, from verified memory, so many at a time."""

import asyncio
import os
import pathlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rljob_api import enums, errors, process_config, types
from rljob_api.wire.v1 import weights_pb2
from rljob_testing import certificates, sections
from rljob_workers.weights import frames, pieces, shelf, transfers
from rljob_workers.weights.backends import grpc_store, peer_server

DATA = os.urandom(5 << 20)
ARTIFACT = pieces.describe(memoryview(DATA), enums.Encoding.WHOLE, piece_bytes=1 << 20)
R, T, V = enums.Role.ROLLOUT, enums.Role.TRAINER, enums.Role.VERIFIER


@pytest.fixture
def held() -> shelf.Shelf:
    found = shelf.Shelf()
    found.add(found.hold(ARTIFACT, memoryview(bytearray(DATA)), is_kept=False), pieces.full(4))
    return found


@asynccontextmanager
async def serving(
    held: shelf.Shelf, folder: pathlib.Path, tls: process_config.TlsConfig | None = None
) -> AsyncIterator[types.WeightSource]:
    with_port = process_config.PeerConfig(bind_host="127.0.0.1", host="127.0.0.1", port=0)
    config = sections.make_config(process_config.RolloutConfig, folder, peers=with_port, tls=tls, job=certificates.JOB)
    async with peer_server.PeerServer(config, held, transfers.Transfers()) as server:
        yield types.WeightSource(address=f"127.0.0.1:{server.port}", kind=enums.SourceKind.PEER)


async def pulled(
    source: types.WeightSource, start: int, end: int, *, tls: process_config.TlsConfig | None = None, name: str = ""
) -> bytes:
    puller = grpc_store.WeightPuller(control_address="127.0.0.1:1", tls=tls, peer_name=name)

    def stream() -> bytes:
        parts = puller.stream(source, ARTIFACT, start, end, lambda _: None)
        return b"".join(bytes(frames.unpack(frame)[2]) for frame in parts)

    try:
        return await asyncio.to_thread(stream)
    finally:
        puller.close()


async def test_verified_pieces_are_served(held: shelf.Shelf, tmp_path: pathlib.Path) -> None:
    async with serving(held, tmp_path) as source:
        for piece in range(4):
            start, end = pieces.bounds(ARTIFACT, piece, piece + 1)
            assert await pulled(source, start, end) == DATA[start:end]
        with pytest.raises(errors.MovedError):
            await pulled(source, 4 << 20, 5 << 20)


@pytest.mark.covers("security")
async def test_a_rollout_proves_by_its_name_and_not_by_its_address_that_it_is_one_of_the_job(
    held: shelf.Shelf, tmp_path: pathlib.Path
) -> None:
    authority = certificates.Authority()
    tls = {role: authority.files(tmp_path / role, role) for role in (R, T, V)}
    async with serving(held, tmp_path, tls[R]) as source:
        assert await pulled(source, 0, 10, tls=tls[R], name=certificates.HOST) == DATA[:10]
        # By its address alone, which no certificate has, and as another role's.
        for name in ("", "job-coordinator.team.svc"):
            with pytest.raises(errors.UnavailableError):
                await pulled(source, 0, 10, tls=tls[R], name=name)


@pytest.mark.covers("security")
async def test_who_is_no_rollout_of_the_job_gets_nothing(held: shelf.Shelf, tmp_path: pathlib.Path) -> None:
    authority, other = certificates.Authority(), process_config.JobIdentity(name="other", namespace="team", uid="u-2")
    async with serving(held, tmp_path, authority.files(tmp_path / R, R)) as source:
        for role in (T, V, enums.Role.COORDINATOR):
            tls = authority.files(tmp_path / f"as-{role}", role)
            with pytest.raises(errors.ForbiddenError, match=f"role/{role} may not call"):
                await pulled(source, 0, 10, tls=tls, name=certificates.HOST)
        with pytest.raises(errors.ForbiddenError, match="rljob/other/role/rollout may not call"):
            await pulled(source, 0, 10, tls=authority.files(tmp_path / "other", R, job=other), name=certificates.HOST)
        foreign = certificates.Authority("foreign").files(tmp_path / "foreign", R, bundle=authority.pair.certificate)
        for tls_or_none in (foreign, None):
            with pytest.raises(errors.UnavailableError):
                await pulled(source, 0, 10, tls=tls_or_none, name=certificates.HOST)


class Call:
    """The context of a call. left_s: until its deadline, None without one."""

    def __init__(self, left_s: float | None = 5.0) -> None:
        self.left_s = left_s

    def time_remaining(self) -> float | None:
        return self.left_s


def served(held: shelf.Shelf, request: bytes, *, call: Call | None = None, **options: Any) -> AsyncIterator[bytes]:
    servicer = options.pop("servicer", None) or peer_server.PeerServicer(held, transfers.Transfers(), **options)
    frames_of_it: AsyncIterator[bytes] = servicer.pull(request, call or Call())
    return frames_of_it


def asked(artifact_id: str = ARTIFACT.artifact_id, *, offset: int = 0, length: int = 10) -> bytes:
    return weights_pb2.PullRequest(artifact_id=artifact_id, offset=offset, length=length).SerializeToString()


@pytest.mark.covers("weights 6")
async def test_one_stream_too_many_is_told_to_come_again(held: shelf.Shelf) -> None:
    servicer = peer_server.PeerServicer(held, transfers.Transfers(), max_streams=1)
    first = served(held, asked(), servicer=servicer)
    await anext(first)
    with pytest.raises(errors.BusyError, match="all 1 streams are in use"):
        await anext(served(held, asked(), servicer=servicer))
    assert isinstance(first, AsyncGenerator)
    await first.aclose()
    assert frames.unpack(await anext(served(held, asked(), servicer=servicer)))[1] == 0


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (asked("0" * 64), errors.MovedError),
        (asked(length=0), errors.WireError),
        (asked(offset=5 << 20), errors.WireError),
        (asked(length=1 << 60), errors.WireError),
        # More than one piece: a stream that is open for so long would be in the way of others.
        (asked(length=(1 << 20) + 1), errors.WireError),
    ],
    ids=["another artifact", "nothing", "behind its end", "beyond its end", "more than a piece"],
)
async def test_what_is_no_range_of_a_piece_that_is_held_is_refused(
    held: shelf.Shelf, request_: bytes, error: type[errors.RLJobError]
) -> None:
    counts = transfers.Transfers()
    with pytest.raises(error):
        await anext(served(held, request_, servicer=peer_server.PeerServicer(held, counts)))
    assert counts.served_bytes == 0


@pytest.mark.parametrize("left_s", [None, 60.0])
async def test_a_call_that_may_take_longer_than_a_piece_may_is_refused(held: shelf.Shelf, left_s: float | None) -> None:
    with pytest.raises(errors.WireError, match="deadline"):
        await anext(served(held, asked(), call=Call(left_s)))


async def test_bytes_that_were_served_are_counted(held: shelf.Shelf) -> None:
    counts = transfers.Transfers()
    servicer = peer_server.PeerServicer(held, counts)
    async for _ in served(held, asked(length=1 << 20), servicer=servicer):
        pass
    assert counts.served_bytes == 1 << 20
