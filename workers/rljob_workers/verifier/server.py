"""The `Verifier` gRPC service: messages to items, verdicts to messages, and refusals to statuses."""

from typing import Any

import grpc
import grpc.aio

from rljob_api import types
from rljob_api.wire import codec
from rljob_api.wire.v1 import verify_pb2, verify_pb2_grpc
from rljob_workers.verifier import grading


class VerifierService(verify_pb2_grpc.VerifierServicer):
    """One verdict per item, in order. Errors of the tree become statuses in the server's interceptor."""

    def __init__(self, graded: grading.Grading) -> None:
        self._grading = graded

    # Any: message types belong to the codec, and grpc's own are generic in its stubs but not at run time.
    async def Verify(self, request: Any, context: Any) -> Any:
        """Grade a batch. INVALID_ARGUMENT: a record that cannot be graded. RESOURCE_EXHAUSTED: too many items wait."""
        items = [codec.from_message(types.VerifyItem, message) for message in request.items]
        try:
            verdicts = await self._grading.verify(items)
        except grading.OverloadedError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        return verify_pb2.VerifyReply(verdicts=map(codec.to_message, verdicts))
