"""The rollout's side of `Environment`: an episode's place with a shell. asyncio."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc
import grpc.aio

from rljob_api import errors, process_config
from rljob_api.wire.v1 import environment_pb2, environment_pb2_grpc
from rljob_workers.rpc import channel

# What a call may take beyond the time that its command has; the server gives a place up before.
_GRACE_S = 90.0


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

    async def _called(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise channel.translate(error, f"environment {self._address}") from error


class EnvironmentClient:
    """Claims places of one server."""

    def __init__(self, *, address: str, tls: process_config.TlsConfig | None) -> None:
        """Connects with the first call."""
        self._address = address
        self._channel = channel.aio_channel(address, tls)
        self._stub = environment_pb2_grpc.EnvironmentStub(self._channel)

    @contextlib.asynccontextmanager
    async def open(self, episode: str, *, wait_s: float) -> AsyncIterator[Shell]:
        """Yield a place that is empty, and give it back. Raises UnavailableError if none became free, or by then broke.

        All of it is an infrastructure's failure: the attempt is to be made again, and never to be rewarded.
        """
        request = environment_pb2.ClaimRequest(episode=episode, wait_s=wait_s)
        try:
            reply = await self._stub.Claim(request, timeout=wait_s + _GRACE_S)
        except grpc.aio.AioRpcError as error:
            raise channel.translate(error, f"environment {self._address}") from error
        try:
            yield Shell(self._stub, reply.lease, self._address)
        finally:
            # Where it cannot be given back, the lease ends by itself.
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._stub.Release(environment_pb2.PlaceRequest(lease=reply.lease), timeout=_GRACE_S)

    async def close(self) -> None:
        await self._channel.close()


# What a caller has to expect of a place.
LOST = (errors.UnavailableError, errors.FencedError)
