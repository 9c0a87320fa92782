"""What a rollout serves to other rollouts: `WeightStore/Pull`, as the coordinator's store does, and nothing else.

It reads from memory (weights/shelf.py), and only what was verified. asyncio; frames are made on threads, so that
generation continues. Who may call is checked as everywhere (rpc/access.py): rollouts of the same job.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from rljob_api import enums, errors, process_config
from rljob_api.wire.v1 import weights_pb2
from rljob_workers.rpc import channel
from rljob_workers.weights import deadlines, shelf, transfers

logger = logging.getLogger(__name__)
SERVICE = "rljob.v1.WeightStore"
_GRACE_S = 1.0
# What rounding adds to a deadline on its way.
_ROUNDED = 1.1


class PeerServicer:
    """The one call. At most `max_streams` at once, each of one piece, with a deadline that gRPC keeps: a receiver that
    reads no further does not hold a stream for longer.
    """

    def __init__(
        self, shelf: shelf.Shelf, counts: transfers.Transfers, *, max_streams: int = deadlines.MOST_STREAMS
    ) -> None:
        self._shelf, self._counts, self._max_streams, self._streams = shelf, counts, max_streams, 0

    def handler(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        return grpc.method_handlers_generic_handler(SERVICE, {"Pull": grpc.unary_stream_rpc_method_handler(self.pull)})

    async def pull(self, request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> AsyncIterator[bytes]:
        """Send bytes [offset, offset + length) of an artifact. Raises BusyError, MovedError, and WireError for what is
        no range of at most a piece, or no deadline of a piece.
        """
        pull_request = weights_pb2.PullRequest.FromString(request)
        if self._streams >= self._max_streams:
            raise errors.BusyError(f"all {self._max_streams} streams are in use")
        self._streams += 1
        try:
            with self._shelf.stream(pull_request.artifact_id) as holding:
                end = pull_request.offset + pull_request.length
                artifact = holding.artifact
                if not pull_request.offset < end <= artifact.num_bytes or pull_request.length > artifact.piece_bytes:
                    raise errors.WireError(
                        f"expected a range within a piece of an artifact of {artifact.num_bytes} bytes in pieces of"
                        f" {artifact.piece_bytes}, got bytes {pull_request.offset} to {end}"
                    )
                left_s, longest_s = context.time_remaining(), deadlines.piece_deadline_s(pull_request.length)
                if left_s is None or left_s > _ROUNDED * longest_s:
                    raise errors.WireError(f"the call has no deadline of at most {longest_s:.1f} s")
                for start in range(pull_request.offset, end, enums.CHUNK_BYTES):
                    after = min(start + enums.CHUNK_BYTES, end)
                    frame = await asyncio.to_thread(self._shelf.frame, holding, start, after)
                    yield frame
                    self._counts.served(after - start)
        finally:
            self._streams -= 1


class PeerServer:
    """The port. `async with`; serves from the first to the last line of the block."""

    def __init__(self, config: process_config.RolloutConfig, shelf: shelf.Shelf, counts: transfers.Transfers) -> None:
        """`config.peers` says where. Raises UnavailableError if the port is taken or a certificate cannot be read."""
        self._server = channel.aio_server(config)
        self._server.add_generic_rpc_handlers((PeerServicer(shelf, counts).handler(),))
        assert config.peers is not None, "a rollout that serves says where"
        self.port = channel.bind(self._server, f"{config.peers.bind_host}:{config.peers.port}", config.tls)

    async def __aenter__(self) -> "PeerServer":
        await self._server.start()
        logger.info("served weights to other rollouts on port %d", self.port, extra={"event": "peer_ready"})
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.stop(_GRACE_S)
