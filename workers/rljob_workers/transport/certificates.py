"""A process's certificate files, read again when they change: a kubelet renews them in place, all three in one step."""

import dataclasses
import os
import pathlib

from rljob_api import errors, roles

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


def stamp(tls: roles.TlsConfig) -> Stamp:
    """Return what tells one set of files from the next; cheap enough for every call. Raises UnavailableError."""
    try:
        found = [os.stat(path) for path in _paths(tls)]
    except OSError as error:
        raise errors.UnavailableError(f"cannot read certificate file {error.filename}: {error.strerror}") from error
    return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)


def read(tls: roles.TlsConfig) -> Pem:
    """Return the files, none of them newer than the others. Raises UnavailableError."""
    for _ in range(_ATTEMPTS):
        before = stamp(tls)
        try:
            ca, certificate, key = (pathlib.Path(path).read_bytes() for path in _paths(tls))
        except OSError as error:
            raise errors.UnavailableError(f"cannot read certificate file {error.filename}: {error.strerror}") from error
        if stamp(tls) == before:
            return Pem(ca, certificate, key, before)
    raise errors.UnavailableError(f"the certificate files beside {tls.cert_file} keep changing")


def _paths(tls: roles.TlsConfig) -> tuple[str, str, str]:
    return tls.ca_file, tls.cert_file, tls.key_file
