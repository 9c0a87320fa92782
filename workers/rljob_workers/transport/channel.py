"""gRPC channels and servers with one set of limits, and errors of the tree on the wire.

A servicer raises an `RLJobError`; the client gets the same class back. The class name travels in trailing metadata,
the gRPC status code is the class's own, so that foreign clients understand it too.
"""

import pathlib
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from rljob_api import errors, names, roles

ERROR_KEY = "rljob-error"
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


def options(
    *, own_connection: bool = False, max_bytes: int = names.MAX_BATCH_PART_BYTES
) -> list[tuple[str, int | str]]:
    """Return the channel arguments. `own_connection` keeps bulk bytes and control calls on separate connections."""
    arguments: list[tuple[str, int | str]] = [
        ("grpc.max_send_message_length", max_bytes),
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # A headless Service resolves to every pod behind it: without this all calls would go to the first.
        ("grpc.lb_policy_name", "round_robin"),
        # Loopback and pod addresses never go through a proxy.
        ("grpc.enable_http_proxy", 0),
    ]
    return [*arguments, ("grpc.use_local_subchannel_pool", 1)] if own_connection else arguments


def aio_channel(address: str, tls: roles.TlsConfig | None) -> grpc.aio.Channel:
    """Return an asyncio channel."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options())
    return grpc.aio.secure_channel(address, _client_credentials(tls), options=options())


def sync_channel(address: str, tls: roles.TlsConfig | None, *, own_connection: bool = False) -> grpc.Channel:
    """Return a blocking channel, for threads."""
    arguments = options(own_connection=own_connection)
    if tls is None:
        return grpc.insecure_channel(address, options=arguments)
    return grpc.secure_channel(address, _client_credentials(tls), options=arguments)


def aio_server() -> grpc.aio.Server:
    """Return an asyncio server that turns errors of the tree into statuses. Bind it with `bind`."""
    # One port, one process: without this a second server on a taken port would silently share it.
    return grpc.aio.server(options=[*options(), ("grpc.so_reuseport", 0)], interceptors=[ErrorInterceptor()])


def bind(server: grpc.aio.Server, address: str, tls: roles.TlsConfig | None) -> int:
    """Bind and return the port. Raises UnavailableError if the address is taken."""
    try:
        if tls is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, _server_credentials(tls)))
    except RuntimeError as error:
        raise errors.UnavailableError(f"cannot listen on {address}: {error}") from error


def _read(path: str) -> bytes:
    return pathlib.Path(path).read_bytes()


def _client_credentials(tls: roles.TlsConfig) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(_read(tls.ca_file), _read(tls.key_file), _read(tls.cert_file))


def _server_credentials(tls: roles.TlsConfig) -> grpc.ServerCredentials:
    pair = (_read(tls.key_file), _read(tls.cert_file))
    return grpc.ssl_server_credentials([pair], root_certificates=_read(tls.ca_file), require_client_auth=True)


def translate(error: grpc.RpcError, peer: str) -> errors.RLJobError:
    """Return the error of the tree that a failed call carries; a peer that cannot be reached is UnavailableError."""
    code, details = error.code(), error.details() or ""
    metadata = dict(tuple(pair) for pair in (error.trailing_metadata() or ()))
    name = metadata.get(ERROR_KEY, "")
    if name:
        return errors.by_name(str(name))(details)
    if code in _UNREACHABLE:
        return errors.UnavailableError(f"{peer}: {code.name.lower()}: {details}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return errors.UnavailableError(f"{peer} is overloaded: {details}")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return errors.WireError(f"{peer} refused the call: {details}")
    return errors.RLJobError(f"{peer}: {code.name.lower()}: {details}")


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio ships no types
    """Ends a call whose servicer raised an RLJobError with that error's status."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Wrap the handler, whatever its kind."""
        handler = await continuation(handler_call_details)
        return None if handler is None else _wrap(handler)


def _wrap(handler: Any) -> grpc.RpcMethodHandler:
    codecs = {"request_deserializer": handler.request_deserializer, "response_serializer": handler.response_serializer}
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(_one_answer(handler.unary_unary), **codecs)
    if handler.stream_unary:
        return grpc.stream_unary_rpc_method_handler(_one_answer(handler.stream_unary), **codecs)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(_many_answers(handler.unary_stream), **codecs)
    return grpc.stream_stream_rpc_method_handler(_many_answers(handler.stream_stream), **codecs)


def _one_answer(behaviour: Any) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            return await behaviour(request, context)
        except errors.RLJobError as error:
            await abort(context, error)

    return call


def _many_answers(behaviour: Any) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            async for answer in behaviour(request, context):
                yield answer
        except errors.RLJobError as error:
            await abort(context, error)

    return call


async def abort(context: grpc.aio.ServicerContext, error: errors.RLJobError) -> NoReturn:
    """End the call with the error's status, message and class name."""
    status = grpc.StatusCode[error.grpc_code]
    await context.abort(status, str(error)[:4096], trailing_metadata=((ERROR_KEY, error.name),))
    raise AssertionError("abort does not return")
