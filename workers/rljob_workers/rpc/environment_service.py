"""The `Environment` gRPC service: messages to calls of a pool, and refusals to statuses."""

from collections.abc import Mapping
from typing import Any, Protocol

import grpc
import grpc.aio

from rljob_api.wire.v1 import environment_pb2, environment_pb2_grpc


class FullError(Exception):
    """No place is free; the caller may try again or elsewhere."""


class Lends(Protocol):
    """What the service is of. Calls raise FencedError for a lease that has ended, UnavailableError for a lost place."""

    lease_s: float

    async def claim(self, episode: str, wait_s: float) -> str:
        """Return the name of a lease. Raises FullError."""

    async def command(self, lease: str, command: str, *, timeout_s: float, max_output: int) -> Mapping[str, Any]:
        """Return the fields of an `ExecReply`."""

    async def read(self, lease: str, path: str, max_bytes: int) -> Mapping[str, Any]:
        """Return the fields of a `ReadReply`."""

    async def write(self, lease: str, path: str, data: bytes) -> Mapping[str, Any]:
        """Return the fields of a `WriteReply`."""

    async def reset(self, lease: str) -> None: ...

    async def release(self, lease: str) -> None: ...


class EnvironmentService(environment_pb2_grpc.EnvironmentServicer):
    """Errors of the tree become statuses in the server's interceptor."""

    def __init__(self, places: Lends) -> None:
        self._places = places

    # Any: grpc's own types are generic in its stubs but not at run time.
    async def Claim(self, request: Any, context: Any) -> Any:
        """RESOURCE_EXHAUSTED: no place became free."""
        try:
            lease = await self._places.claim(request.episode, request.wait_s)
        except FullError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        return environment_pb2.ClaimReply(lease=lease, lease_s=self._places.lease_s)

    async def Exec(self, request: Any, _context: Any) -> Any:
        """FAILED_PRECONDITION: the lease has ended. UNAVAILABLE: the place broke."""
        fields = await self._places.command(
            request.lease, request.command, timeout_s=request.timeout_s, max_output=request.max_output
        )
        return environment_pb2.ExecReply(**fields)

    async def Read(self, request: Any, _context: Any) -> Any:
        """As Exec."""
        return environment_pb2.ReadReply(**await self._places.read(request.lease, request.path, request.max_bytes))

    async def Write(self, request: Any, _context: Any) -> Any:
        """As Exec."""
        return environment_pb2.WriteReply(**await self._places.write(request.lease, request.path, request.data))

    async def Reset(self, request: Any, _context: Any) -> Any:
        """As Exec."""
        await self._places.reset(request.lease)
        return environment_pb2.PlaceReply()

    async def Release(self, request: Any, _context: Any) -> Any:
        """Nothing happens to a lease that has ended."""
        await self._places.release(request.lease)
        return environment_pb2.PlaceReply()


def serve(places: Lends, server: grpc.aio.Server) -> None:
    """Let a server that is not started yet answer."""
    environment_pb2_grpc.add_EnvironmentServicer_to_server(EnvironmentService(places), server)
