"""A process's certificate files, read again when they change: a kubelet renews them in place, all three in one step."""

import asyncio
import dataclasses
import logging
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from rljob_api import errors, process_config

logger = logging.getLogger(__name__)

ChannelT = TypeVar("ChannelT", grpc.Channel, grpc.aio.Channel)

_ATTEMPTS = 5
# Which bytes the files held: inode, change time and size of each.
Stamp = tuple[tuple[int, int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Pem:
    """Trusted CAs, own certificate and key, PEM, that were there at one time. It has no repr: there is a key in it."""

    ca: bytes
    certificate: bytes
    key: bytes
    stamp: Stamp


def stamp(tls: process_config.TlsConfig) -> Stamp:
    """Return what distinguishes one set of files from the next; cheap enough for every call. Raises
    UnavailableError.
    """
    try:
        stats = [os.stat(path) for path in _paths(tls)]
    except OSError as error:
        raise errors.UnavailableError(f"cannot read certificate file {error.filename}: {error.strerror}") from error
    return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)


def read(tls: process_config.TlsConfig) -> Pem:
    """Return the files, none of them newer than the others. Raises UnavailableError."""
    for _ in range(_ATTEMPTS):
        before = stamp(tls)
        try:
            ca, certificate, key = (pathlib.Path(path).read_bytes() for path in _paths(tls))
        except OSError as error:
            raise errors.UnavailableError(f"cannot read certificate file {error.filename}: {error.strerror}") from error
        if stamp(tls) == before:
            return Pem(ca, certificate, key, before)
    raise errors.UnavailableError(f"the certificate files next to {tls.cert_file} keep changing")


def _paths(tls: process_config.TlsConfig) -> tuple[str, str, str]:
    return tls.ca_file, tls.cert_file, tls.key_file


class _Reloading(Generic[ChannelT]):
    """What generated stubs need of a channel: the four kinds of calls."""

    def __init__(self, tls: process_config.TlsConfig, opened: Callable[[Pem], ChannelT]) -> None:
        """Open the first channel. Raises UnavailableError if the files cannot be read."""
        self._tls, self._open = tls, opened
        self._lock = threading.Lock()
        pem = read(tls)
        self._stamp, self._current = pem.stamp, opened(pem)
        self._before: ChannelT | None = None

    def unary_unary(self, *arguments: Any, **options: Any) -> "_Method":
        return _Method(self, "unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> "_Method":
        return _Method(self, "unary_stream", arguments, options)

    def stream_unary(self, *arguments: Any, **options: Any) -> "_Method":
        return _Method(self, "stream_unary", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> "_Method":
        return _Method(self, "stream_stream", arguments, options)

    def current(self) -> ChannelT:
        """Return the channel of the newest certificates; of the last ones that could be read if these cannot."""
        with self._lock:
            try:
                if stamp(self._tls) != self._stamp:
                    self._renew(read(self._tls))
            except errors.UnavailableError as error:
                logger.warning("kept the old certificates: %s", error, extra={"error_class": error.name})
            return self._current

    def _renew(self, pem: Pem) -> None:
        unused, self._before = self._before, self._current
        self._stamp, self._current = pem.stamp, self._open(pem)
        if unused is not None:
            self._discard(unused)

    def _discard(self, channel: ChannelT) -> None:
        raise NotImplementedError


class ReloadingChannel(_Reloading[grpc.Channel]):
    """For threads."""

    def close(self) -> None:
        for channel in filter(None, (self._current, self._before)):
            channel.close()

    def _discard(self, channel: grpc.Channel) -> None:
        channel.close()


class ReloadingAioChannel(_Reloading[grpc.aio.Channel]):
    """For asyncio."""

    def __init__(self, tls: process_config.TlsConfig, opened: Callable[[Pem], grpc.aio.Channel]) -> None:
        """Open the first channel. Raises UnavailableError if the files cannot be read."""
        super().__init__(tls, opened)
        # A loop alone does not keep its tasks alive.
        self._closing = set[asyncio.Task[None]]()

    async def close(self) -> None:
        for channel in filter(None, (self._current, self._before)):
            await channel.close()
        await asyncio.gather(*self._closing)

    def _discard(self, channel: grpc.aio.Channel) -> None:
        # A call is being made, so there is a loop.
        task = asyncio.get_running_loop().create_task(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Method:
    """One method: each call goes out on the channel that is current then."""

    def __init__(self, channel: Any, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._channel, self._kind, self._arguments, self._options = channel, kind, arguments, options
        self._cached_call: tuple[Any, Any] = (None, None)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._current()(*arguments, **options)

    def future(self, *arguments: Any, **options: Any) -> Any:
        """Start the call and return at once; for threads."""
        return self._current().future(*arguments, **options)

    def _current(self) -> Any:
        channel = self._channel.current()
        cached_channel, call = self._cached_call
        if cached_channel is not channel:
            call = getattr(channel, self._kind)(*self._arguments, **self._options)
            self._cached_call = (channel, call)
        return call
