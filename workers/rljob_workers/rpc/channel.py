"""gRPC channels and servers with one set of limits, certificates and callers, and errors of the tree on the wire.

A servicer raises an `RLJobError`; the client gets the same class back. The class name travels in trailing metadata,
the gRPC status code is the class's own, so that foreign clients understand it too. With TLS both ends are
authenticated, and a server answers a call only if `access` opens it to the caller's role.
"""

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from rljob_api import enums, errors, process_config
from rljob_workers.rpc import access
from rljob_workers.rpc import tls as certificates
from rljob_workers.rpc import tls as reloading
from rljob_workers.runtime import redaction

logger = logging.getLogger(__name__)

ERROR_KEY = "rljob-error"
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
# Hears of a call that ends with an error of the tree.
OnError = Callable[[errors.RLJobError], None]


def options(
    *, own_connection: bool = False, max_bytes: int = enums.MAX_BATCH_PART_BYTES
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


def aio_channel(address: str, tls: process_config.TlsConfig | None, *, server_name: str = "") -> grpc.aio.Channel:
    """Raises UnavailableError if its certificate cannot be read. server_name: as of `sync_channel`."""
    arguments = _named(options(), server_name)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=arguments)
    return reloading.ReloadingAioChannel(
        tls, lambda pem: grpc.aio.secure_channel(address, _client_credentials(pem), options=arguments)
    )


def sync_channel(
    address: str, tls: process_config.TlsConfig | None, *, own_connection: bool = False, server_name: str = ""
) -> grpc.Channel:
    """Return a blocking channel, for threads. Raises UnavailableError if its certificate cannot be read.

    server_name: the name that the server's certificate must have, where `address` is none that it could: of a pod.
    """
    arguments = _named(options(own_connection=own_connection), server_name)
    if tls is None:
        return grpc.insecure_channel(address, options=arguments)
    return reloading.ReloadingChannel(
        tls, lambda pem: grpc.secure_channel(address, _client_credentials(pem), options=arguments)
    )


def _named(arguments: list[tuple[str, int | str]], server_name: str) -> list[tuple[str, int | str]]:
    return [*arguments, ("grpc.ssl_target_name_override", server_name)] if server_name else arguments


def _ignore(error: errors.RLJobError) -> None:
    pass


def aio_server(config: process_config.ProcessConfig | None, *, on_error: OnError = _ignore) -> grpc.aio.Server:
    """Return an asyncio server that turns errors of the tree into statuses and, with TLS, refuses wrong callers.

    Without a config or its TLS no one can be distinguished, and everyone may call. `on_error` hears of every call that
    ends with an error of the tree. Bind it with `bind`.
    """
    tls = None if config is None else config.tls
    check = _open_to_all if config is None or tls is None else functools.partial(_check, config.job, tls.trust_domain)
    # One port, one process: without this a second server on a taken port would silently share it.
    return grpc.aio.server(options=[*options(), ("grpc.so_reuseport", 0)], interceptors=[_Interceptor(check, on_error)])


def bind(server: grpc.aio.Server, address: str, tls: process_config.TlsConfig | None) -> int:
    """Bind and return the port. Raises UnavailableError if the address is taken or a certificate cannot be read."""
    try:
        if tls is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, _server_credentials(tls)))
    except RuntimeError as error:
        raise errors.UnavailableError(f"cannot listen on {address}: {error}") from error


def _client_credentials(pem: certificates.Pem) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)


def _server_credentials(tls: process_config.TlsConfig) -> grpc.ServerCredentials:
    """Return credentials that are looked up at every handshake, so that a renewed certificate needs no restart."""
    pem = certificates.read(tls)
    stamp = pem.stamp

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal stamp
        try:
            if certificates.stamp(tls) == stamp:
                return None
            renewed = certificates.read(tls)
        except errors.UnavailableError as error:
            logger.warning("kept the old certificates: %s", error, extra={"error_class": error.name})
            return None
        stamp = renewed.stamp
        return _server_certificate(renewed)

    return grpc.dynamic_ssl_server_credentials(_server_certificate(pem), fetch, require_client_authentication=True)


def _server_certificate(pem: certificates.Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], root_certificates=pem.ca)


def _open_to_all(method: str, context: grpc.aio.ServicerContext) -> None:
    """Plain text: no one can be distinguished."""


def _check(job: process_config.JobIdentity, trust_domain: str, method: str, context: grpc.aio.ServicerContext) -> None:
    """Raise ForbiddenError unless the peer's certificate opens the method."""
    identities = tuple(uri.decode(errors="replace") for uri in context.auth_context().get("peer_uri", ()))
    why = access.refusal(method, identities, trust_domain=trust_domain, namespace=job.namespace, job=job.name)
    if why is not None:
        raise errors.ForbiddenError(why)


def translate(error: grpc.RpcError, peer: str) -> errors.RLJobError:
    """Return the error of the tree that a failed call carries; a peer that cannot be reached is UnavailableError."""
    code, details = error.code(), error.details() or ""
    metadata = dict(tuple(pair) for pair in (error.trailing_metadata() or ()))
    name = metadata.get(ERROR_KEY, "")
    if name:
        return errors.by_name(str(name))(details)
    if code in _UNREACHABLE:
        return errors.UnavailableError(f"{peer}: {code.name.lower()}: {details}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        # gRPC's own words, of either side; there is no status for it.
        return errors.TooLargeError(f"a message to or from {peer} is too large: {details}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return errors.UnavailableError(f"{peer} is overloaded: {details}")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return errors.WireError(f"{peer} refused the call: {details}")
    return errors.RLJobError(f"{peer}: {code.name.lower()}: {details}")


Check = Callable[[str, Any], None]


class _Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio ships no types
    """Checks the caller, and ends a call whose check or servicer raised an RLJobError with that error's status.

    Whatever else a servicer raises ends the call as INTERNAL: gRPC itself would log its message and send it to the
    peer, and it may be made of what the call carried.
    """

    def __init__(self, check: Check, on_error: OnError) -> None:
        self._check, self._on_error = check, on_error

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Wrap the handler, whatever its kind."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return _wrap(handler, functools.partial(self._check, handler_call_details.method), self._on_error)


def _wrap(handler: Any, check: Callable[[Any], None], on_error: OnError) -> grpc.RpcMethodHandler:
    codecs = {"request_deserializer": handler.request_deserializer, "response_serializer": handler.response_serializer}
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(_one_answer(handler.unary_unary, check, on_error), **codecs)
    if handler.stream_unary:
        return grpc.stream_unary_rpc_method_handler(_one_answer(handler.stream_unary, check, on_error), **codecs)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(_many_answers(handler.unary_stream, check, on_error), **codecs)
    return grpc.stream_stream_rpc_method_handler(_many_answers(handler.stream_stream, check, on_error), **codecs)


def _one_answer(behavior: Any, check: Callable[[Any], None], on_error: OnError) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            check(context)
            return await behavior(request, context)
        except errors.RLJobError as error:
            on_error(error)
            await abort(context, error)
        except grpc.aio.BaseError:
            # The servicer ended the call itself.
            raise
        except Exception as error:  # noqa: BLE001  # boundary: a servicer's own fault
            await _fail(context, error)

    return call


def _many_answers(behavior: Any, check: Callable[[Any], None], on_error: OnError) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            check(context)
            async for answer in behavior(request, context):
                yield answer
        except errors.RLJobError as error:
            on_error(error)
            await abort(context, error)
        except grpc.aio.BaseError:
            raise
        except Exception as error:  # noqa: BLE001  # boundary: a servicer's own fault
            await _fail(context, error)

    return call


async def _fail(context: grpc.aio.ServicerContext, error: Exception) -> NoReturn:
    redaction.log(logger, "a servicer", error)
    await context.abort(grpc.StatusCode.INTERNAL, f"the servicer raised {redaction.describe(error)}")
    raise AssertionError("abort does not return")


async def abort(context: grpc.aio.ServicerContext, error: errors.RLJobError) -> NoReturn:
    """End the call with the error's status, message and class name."""
    status = grpc.StatusCode[error.grpc_code]
    await context.abort(status, str(error)[:4096], trailing_metadata=((ERROR_KEY, error.name),))
    raise AssertionError("abort does not return")
