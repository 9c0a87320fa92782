"""Both ends authenticated, calls open by role, certificates renewed in place: real gRPC on loopback."""

import asyncio
import os
import pathlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from rljob_api import enums, errors, process_config
from rljob_testing import certificates as files
from rljob_testing.certificates import HOST, Authority
from rljob_workers.rpc import access, channel

LEASE, WATCH = "/rljob.v1.Work/LeaseGroups", "/rljob.v1.Work/Watch"
R, T, V = enums.Role.ROLLOUT, enums.Role.TRAINER, enums.Role.VERIFIER


async def _answer(request: bytes, context: Any) -> bytes:
    return b"answer to " + request


@asynccontextmanager
async def _serving(
    tls: process_config.TlsConfig, stream: Callable[[Any, Any], Any] | None = None
) -> AsyncIterator[str]:
    """Serve every call of the table; `stream` serves Watch."""
    server = channel.aio_server(files.config(tls))
    for method in access.CALLERS:
        service, name = method[1:].split("/")
        handler = grpc.unary_unary_rpc_method_handler(_answer)
        if stream is not None and method == WATCH:
            handler = grpc.unary_stream_rpc_method_handler(stream)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    port = channel.bind(server, f"{HOST}:0", tls)
    await server.start()
    try:
        yield f"{HOST}:{port}"
    finally:
        await server.stop(0)


async def _ask(opened: Any, method: str = LEASE) -> bytes:
    try:
        return bytes(await opened.unary_unary(method)(b"x", timeout=60))
    except grpc.aio.AioRpcError as error:
        raise channel.translate(error, "server") from error


async def _asked(address: str, tls: process_config.TlsConfig | None, method: str = LEASE) -> bytes:
    opened = channel.aio_channel(address, tls)
    try:
        return await _ask(opened, method)
    finally:
        await opened.close()


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.mark.covers("security")
async def test_each_call_is_answered_to_its_roles_and_refused_to_the_others(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    server = authority.files(tmp_path / "server", "coordinator")
    async with _serving(server) as address:
        for caller in ("coordinator", "rollout", "verifier", "trainer", enums.OPERATOR):
            opened = channel.aio_channel(address, authority.files(tmp_path / caller, caller))
            for method, callers in access.CALLERS.items():
                if caller in callers:
                    assert await _ask(opened, method) == b"answer to x"
                else:
                    with pytest.raises(errors.ForbiddenError, match=f"role/{caller} may not call {method}"):
                        await _ask(opened, method)
            await opened.close()


async def test_a_stream_is_refused_before_its_servicer_runs(authority: Authority, tmp_path: pathlib.Path) -> None:
    ran: list[bytes] = []

    async def watch(request: bytes, context: Any) -> AsyncIterator[bytes]:
        ran.append(request)
        yield b"1"

    async with _serving(authority.files(tmp_path / "server", "coordinator"), watch) as address:
        opened = channel.aio_channel(address, authority.files(tmp_path / "verifier", V))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in opened.unary_stream(WATCH)(b"x", timeout=60):
                pass
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert ran == []
        await opened.close()


@pytest.mark.covers("security")
async def test_another_jobs_rollout_is_refused_although_the_ca_is_the_same(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    other = process_config.JobIdentity(name="other", namespace="team", uid="u-2")
    async with _serving(authority.files(tmp_path / "server", "coordinator")) as address:
        with pytest.raises(errors.ForbiddenError, match="rljob/other/role/rollout may not call"):
            await _asked(address, authority.files(tmp_path / "client", R, job=other))


async def test_a_client_of_a_foreign_ca_never_reaches_a_servicer(authority: Authority, tmp_path: pathlib.Path) -> None:
    foreign = Authority("foreign")
    async with _serving(authority.files(tmp_path / "server", "coordinator")) as address:
        # It trusts the server, and the server does not trust it.
        mine = foreign.files(tmp_path / "client", R, bundle=authority.pair.certificate)
        with pytest.raises(errors.UnavailableError):
            await _asked(address, mine)


async def test_a_server_of_a_foreign_ca_is_not_believed(authority: Authority, tmp_path: pathlib.Path) -> None:
    foreign = Authority("foreign").files(tmp_path / "server", "coordinator", bundle=authority.pair.certificate)
    async with _serving(foreign) as address:
        with pytest.raises(errors.UnavailableError):
            await _asked(address, authority.files(tmp_path / "client", R))


@pytest.mark.covers("security")
async def test_a_client_without_a_certificate_or_with_plain_text_is_refused(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    async with _serving(authority.files(tmp_path / "server", "coordinator")) as address:
        with pytest.raises(errors.UnavailableError):
            await _asked(address, None)
        credentials = grpc.ssl_channel_credentials(authority.pair.certificate)
        async with grpc.aio.secure_channel(address, credentials) as bare:
            with pytest.raises(errors.UnavailableError):
                await _ask(bare)


async def test_a_certificate_that_has_ended_is_refused(authority: Authority, tmp_path: pathlib.Path) -> None:
    ended = authority.files(tmp_path / "client", R, now=time.time() - 2 * files.DAY_S)
    async with _serving(authority.files(tmp_path / "server", "coordinator")) as address:
        with pytest.raises(errors.UnavailableError):
            await _asked(address, ended)


async def test_renewed_files_are_used_by_both_ends_and_a_call_in_flight_ends_on_the_old_ones(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    go_on, old, new = asyncio.Event(), authority, Authority("new")
    both = old.pair.certificate + new.pair.certificate

    async def watch(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"before"
        await go_on.wait()
        yield b"after"

    server, client = tmp_path / "server", tmp_path / "client"
    async with _serving(old.files(server, "coordinator", bundle=both), watch) as address:
        opened = channel.aio_channel(address, old.files(client, R, bundle=both))
        stream = opened.unary_stream(WATCH)(b"x", timeout=60)
        assert await stream.read() == b"before"
        # Now neither side trusts the old CA: anyone who connects again must show, and expect, the new one.
        new.files(server, "coordinator")
        new.files(client, R)
        assert await _ask(opened) == b"answer to x"
        with pytest.raises(errors.UnavailableError):
            await _asked(address, old.files(tmp_path / "late", R, bundle=new.pair.certificate))
        go_on.set()
        assert await stream.read() == b"after"
        await opened.close()


async def test_a_blocking_channel_is_renewed_too(authority: Authority, tmp_path: pathlib.Path) -> None:
    new = Authority("new")
    async with _serving(authority.files(tmp_path / "server", "coordinator")) as address:
        opened = channel.sync_channel(address, authority.files(tmp_path / "client", R))

        def ask() -> bytes:
            return bytes(opened.unary_unary(LEASE)(b"x", timeout=60))

        assert await asyncio.to_thread(ask) == b"answer to x"
        new.files(tmp_path / "server", "coordinator")
        new.files(tmp_path / "client", R)
        assert await asyncio.to_thread(ask) == b"answer to x"
        opened.close()


async def test_files_that_are_gone_for_a_moment_leave_the_old_certificate_in_use(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    async with _serving(authority.files(tmp_path / "server", "coordinator")) as address:
        tls = authority.files(tmp_path / "client", R)
        opened = channel.aio_channel(address, tls)
        os.unlink(tls.key_file)
        assert await _ask(opened) == b"answer to x"
        await opened.close()


@pytest.mark.parametrize("make", [channel.aio_channel, channel.sync_channel])
async def test_a_missing_certificate_is_named(make: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    missing = str(tmp_path / "tls.crt")
    tls = process_config.TlsConfig(ca_file=missing, cert_file=missing, key_file=missing)
    with pytest.raises(errors.UnavailableError, match=r"cannot read certificate file .*tls\.crt: No such file"):
        make(f"{HOST}:1", tls)
