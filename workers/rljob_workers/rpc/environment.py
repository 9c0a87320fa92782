"""The rollout's side of `Environment`: an episode's place with a shell, of one server or of several. asyncio."""

import asyncio
import contextlib
import dataclasses
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from rljob_api import errors, process_config
from rljob_api.wire.v1 import environment_pb2, environment_pb2_grpc
from rljob_workers.rpc import channel
from rljob_workers.runtime import clock as clocks

# What a call may take beyond the time that its command has; the server gives a place up before.
_GRACE_S = 90.0
# How long a claim waits at one of several servers before it asks the next one, and before it asks all again.
_TURN_S, _AGAIN_S = 1.0, 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Of one command. refused: a sentence for the agent if nothing ran, by its own doing; then the rest is empty.

    stopped: the limit that ended it, empty for none. exit_code: negative for a signal.
    """

    exit_code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    stopped: str = ""
    refused: str = ""


class RefusedError(Exception):
    """A file that cannot be read or written, by the episode's own doing; a sentence for the agent."""


class Shell:
    """One episode's place. Calls raise UnavailableError or FencedError for a place that is lost: no one's answer."""

    def __init__(self, stub: environment_pb2_grpc.EnvironmentStub, lease: str, address: str) -> None:
        """Of a lease; `EnvironmentClient.open` is the way to make one."""
        self._stub, self._lease, self._address = stub, lease, address

    async def exec(self, command: str, *, timeout_s: float, max_output: int) -> Reply:
        """Run a command. max_output: bytes of each stream."""
        request = environment_pb2.ExecRequest(
            lease=self._lease, command=command, timeout_s=timeout_s, max_output=max_output
        )
        reply = await self._called(self._stub.Exec(request, timeout=timeout_s + _GRACE_S))
        return Reply(**{field.name: getattr(reply, field.name) for field in dataclasses.fields(Reply)})

    async def read(self, path: str, max_bytes: int) -> bytes:
        """Return the beginning of a file. Raises RefusedError."""
        request = environment_pb2.ReadRequest(lease=self._lease, path=path, max_bytes=max_bytes)
        reply = await self._called(self._stub.Read(request, timeout=_GRACE_S))
        if reply.refused:
            raise RefusedError(reply.refused)
        return bytes(reply.data)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, and the folders that it lies in. Raises RefusedError."""
        request = environment_pb2.WriteRequest(lease=self._lease, path=path, data=data)
        reply = await self._called(self._stub.Write(request, timeout=_GRACE_S))
        if reply.refused:
            raise RefusedError(reply.refused)

    async def reset(self) -> None:
        """Empty the place; what is left of the episode's budget stays."""
        await self._called(self._stub.Reset(environment_pb2.PlaceRequest(lease=self._lease), timeout=_GRACE_S))

    async def release(self) -> None:
        """Give the place back; where that cannot be said, its lease ends by itself."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._stub.Release(environment_pb2.PlaceRequest(lease=self._lease), timeout=_GRACE_S)

    async def _called(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise channel.translate(error, f"environment {self._address}") from error


class EnvironmentClient:
    """Claims places of one server."""

    def __init__(self, *, address: str, tls: process_config.TlsConfig | None, server_name: str = "") -> None:
        """Connects with the first call. server_name: that the certificate has, where `address` is that of a pod."""
        self._address = address
        self._channel = channel.aio_channel(address, tls, server_name=server_name)
        self._stub = environment_pb2_grpc.EnvironmentStub(self._channel)

    @contextlib.asynccontextmanager
    async def open(self, episode: str, *, wait_s: float) -> AsyncIterator[Shell]:
        """Yield a place that is empty, and give it back. Raises UnavailableError if none became free, or by then broke.

        All of it is an infrastructure's failure: the attempt is to be made again, and never to be rewarded.
        """
        shell = await self.claim(episode, wait_s=wait_s)
        try:
            yield shell
        finally:
            await shell.release()

    async def claim(self, episode: str, *, wait_s: float) -> Shell:
        """Return a place, which is to be released. Raises as `open` does."""
        request = environment_pb2.ClaimRequest(episode=episode, wait_s=wait_s)
        try:
            reply = await self._stub.Claim(request, timeout=wait_s + _GRACE_S)
        except grpc.aio.AioRpcError as error:
            raise channel.translate(error, f"environment {self._address}") from error
        return Shell(self._stub, reply.lease, self._address)

    async def close(self) -> None:
        await self._channel.close()


# Returns the addresses (host:port) that a name has now, none of a name without pods.
LookUp = Callable[[str], Awaitable[Sequence[str]]]


async def addresses_of(name: str) -> Sequence[str]:
    """Return what host:port resolves to: of a headless Service the pods that are ready."""
    host, _, port = name.rpartition(":")
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except socket.gaierror:
        return ()
    return tuple(dict.fromkeys(process_config.host_and_port(str(answer[4][0]), int(port)) for answer in answers))


@dataclasses.dataclass(slots=True)
class _Server:
    """client: of one address. num_open: places that this process has of it."""

    client: EnvironmentClient
    num_open: int = 0


class Environments:
    """Claims places of several servers, the least used first. A place is of one server, which all its calls go to."""

    def __init__(
        self,
        *,
        names: Sequence[str],
        tls: process_config.TlsConfig | None,
        clock: clocks.Clock,
        look_up: LookUp = addresses_of,
        draw: random.Random | None = None,
    ) -> None:
        """names: host:port, each of one server or of a headless Service of many. draw: which of equals is first."""
        self._names, self._tls, self._clock, self._look_up = tuple(names), tls, clock, look_up
        self._draw = draw or random.Random()
        self._servers: dict[str, _Server] = {}

    @contextlib.asynccontextmanager
    async def open(self, episode: str, *, wait_s: float) -> AsyncIterator[Shell]:
        """Yield a place of any server, and give it back. Raises UnavailableError if there was none within wait_s."""
        server, shell = await self._claimed(episode, wait_s)
        server.num_open += 1
        try:
            yield shell
        finally:
            server.num_open -= 1
            await shell.release()

    async def close(self) -> None:
        for server in self._servers.values():
            await server.client.close()

    async def _claimed(self, episode: str, wait_s: float) -> tuple[_Server, Shell]:
        ends_s, why = self._clock.monotonic() + wait_s, "its name has no address"
        while True:
            servers = await self._by_use()
            for server in servers:
                left_s = max(0.0, ends_s - self._clock.monotonic())
                try:
                    turn_s = left_s if len(servers) == 1 else min(left_s, _TURN_S)
                    return server, await server.client.claim(episode, wait_s=turn_s)
                except errors.UnavailableError as error:
                    why = str(error)
            if self._clock.monotonic() >= ends_s:
                raise errors.UnavailableError(f"no environment lent a place within {wait_s:g} s: {why}")
            await self._clock.sleep(_AGAIN_S)

    async def _by_use(self) -> list[_Server]:
        """Return the servers that there are now. Those that are gone stay known: a place may still be one of theirs."""
        addresses: dict[str, str] = {}
        for name in self._names:
            addresses |= dict.fromkeys(await self._look_up(name), name.rpartition(":")[0])
        for address, host in addresses.items():
            if address not in self._servers:
                client = EnvironmentClient(address=address, tls=self._tls, server_name=host)
                self._servers[address] = _Server(client)
        servers = [self._servers[address] for address in addresses]
        self._draw.shuffle(servers)
        return sorted(servers, key=lambda server: server.num_open)


# What a caller has to expect of a place.
LOST = (errors.UnavailableError, errors.FencedError)
