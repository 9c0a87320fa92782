"""Asking a coordinator how its run is: the CLI's and the runner's side of `RunStatus`. Blocking."""

import grpc

from rljob_api import process_config, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import status_pb2, status_pb2_grpc
from rljob_workers.rpc import channel


class StatusClient:
    """The gRPC client. Close it with `close`."""

    def __init__(self, *, address: str, tls: process_config.TlsConfig | None, timeout_s: float = 2.0) -> None:
        """Nothing is sent before the first call."""
        self._address, self._timeout_s = address, timeout_s
        self._channel = channel.sync_channel(address, tls)
        self._stub = status_pb2_grpc.RunStatusStub(self._channel)

    def status(self) -> types.RunStatus:
        try:
            reply = self._stub.Status(status_pb2.StatusRequest(), timeout=self._timeout_s)
            return codec.from_message(types.RunStatus, reply)
        except grpc.RpcError as error:
            raise channel.translate(error, f"coordinator {self._address}") from error

    def stop(self, reason: str) -> int:
        """Ask the run to end at the next step boundary."""
        try:
            return int(self._stub.Stop(status_pb2.StopRequest(reason=reason), timeout=self._timeout_s).stop_after_step)
        except grpc.RpcError as error:
            raise channel.translate(error, f"coordinator {self._address}") from error

    def close(self) -> None:
        self._channel.close()
