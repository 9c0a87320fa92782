"""The `Verifier` gRPC service, of verifiers and judges: messages to items, verdicts to messages, and refusals to
statuses.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from rljob_api import types
from rljob_api.wire import codec
from rljob_api.wire.v1 import verify_pb2, verify_pb2_grpc


class OverloadedError(Exception):
    """Too many items wait already; the caller may try again or elsewhere."""


class Grades(Protocol):
    """What gives the verdicts: one per item, in order. Raises RecordError, and OverloadedError with nothing begun."""

    async def verify(self, items: Sequence[types.VerifyItem]) -> list[types.Verdict]: ...


class VerifierService(verify_pb2_grpc.VerifierServicer):
    """One verdict per item, in order. Errors of the tree become statuses in the server's interceptor."""

    def __init__(self, graded: Grades) -> None:
        self._grading = graded

    # Any: message types belong to the codec, and grpc's own are generic in its stubs but not at run time.
    async def Verify(self, request: Any, context: Any) -> Any:
        """Grade a batch. INVALID_ARGUMENT: a record that cannot be graded. RESOURCE_EXHAUSTED: too many items wait."""
        items = [codec.from_message(types.VerifyItem, message) for message in request.items]
        try:
            verdicts = await self._grading.verify(items)
        except OverloadedError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        return verify_pb2.VerifyReply(verdicts=map(codec.to_message, verdicts))


def serve(graded: Grades, server: grpc.aio.Server) -> None:
    """Let a server that is not started yet answer Verify."""
    verify_pb2_grpc.add_VerifierServicer_to_server(VerifierService(graded), server)
