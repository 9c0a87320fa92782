"""TLS of an HTTP server that asks its clients for no certificate: they show a key. Its own is read again when its files
change, as those of gRPC servers are.
"""

import logging
import ssl

from rljob_api import errors, process_config
from rljob_workers.rpc import tls

logger = logging.getLogger(__name__)

_ATTEMPTS = 5


def server_context(files: process_config.TlsConfig) -> ssl.SSLContext:
    """Return what a server listens with: a connection is shown the certificate that is in the files as it begins.

    Raises UnavailableError if they cannot be read now; where they cannot later, the last ones stay.
    """
    certificate = _Certificate(files)
    # OpenSSL asks for every connection, of clients that name a host and of those that do not.
    certificate.context.sni_callback = certificate.show
    return certificate.context


class _Certificate:
    """The context of the newest files."""

    def __init__(self, files: process_config.TlsConfig) -> None:
        self._files = files
        self._stamp, self.context = _loaded(files)

    def show(self, connection: ssl.SSLObject, _name: str | None, _listening: ssl.SSLContext) -> None:
        try:
            if tls.stamp(self._files) != self._stamp:
                self._stamp, self.context = _loaded(self._files)
        except errors.UnavailableError as error:
            logger.warning("kept the old certificate: %s", error, extra={"error_class": error.name})
        connection.context = self.context


def _loaded(files: process_config.TlsConfig) -> tuple[tls.Stamp, ssl.SSLContext]:
    """Return a context with certificate and key of one time, and their stamp. Raises UnavailableError."""
    for _ in range(_ATTEMPTS):
        before = tls.stamp(files)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(files.cert_file, files.key_file)
        except OSError as error:
            # Of two times they do not belong together, which is no fault of theirs.
            if tls.stamp(files) == before:
                raise errors.UnavailableError(f"cannot read certificate file {files.cert_file}: {error}") from error
            continue
        if tls.stamp(files) == before:
            return before, context
    raise errors.UnavailableError(f"the certificate files next to {files.cert_file} keep changing")
