"""A folder of an object store, by its URI: `s3://`, `gs://`, `az://` or `file://`. The only user of obstore.

Keys come from the environment, as each service's own tools read them (AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE,
GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY, ...), or from the metadata service of the machine. An error
names what was done, where, and the service's code; never the request or the answer, which may hold keys.
"""

import contextlib
import dataclasses
import datetime
import importlib
import importlib.util
import pathlib
import re
import types
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

from rljob_api import errors
from rljob_api.manifest.storage import S3Spec

# One request, which carries a part of a file at most.
_REQUEST_S, _CONNECT_S = 120, 5
# Tries of one request, before it is an error here: callers know how long it is worth to wait.
_RETRIES, _RETRY_S = 2, 10
# A file is sent in parts, this many at once: what sending holds in memory at most.
_PART_BYTES, PARTS_AT_ONCE = 16 << 20, 4
# A service takes 10,000 parts of one object.
_MOST_PARTS = 9_000
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_STATUS = re.compile(r"status code: (\d{3})|\b(\d{3}) [A-Z][A-Za-z ]+\b")
_PACKAGE = "obstore"
# Codes that say that the request was understood and is not allowed, where the library itself does not say so.
_NO_BUCKET = "NoSuchBucket"
_NOT_ALLOWED = frozenset({
    "AccessDenied", "AccountProblem", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidSecurity",
    "InvalidToken", "NotSignedUp", "SignatureDoesNotMatch",
})  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An object: its key below the folder, its size in bytes, and a mark that changes with its bytes."""

    key: str
    size: int
    etag: str


class Folder:
    """A folder of an object store. Every call may raise StorageError, or StorageAccessError where keys are no good."""

    def __init__(self, uri: str, store: Any, prefix: str = "") -> None:
        """`store`: of obstore; `prefix`: below it, with a slash at the end unless empty."""
        self.uri, self._store, self._prefix = uri, store, prefix
        self._library = _library()

    def below(self, name: str) -> "Folder":
        """Return a folder in this one. Nothing is asked of the store."""
        return Folder(f"{self.uri}/{name}", self._store, f"{self._prefix}{name}/")

    def entries(self, name: str = "") -> list[Entry]:
        """Return the objects in the folder, or in the folder `name` of it, sorted by key."""
        prefix = self._prefix + (f"{name}/" if name else "")
        with self._calling("list"):
            batches = self._library.list(self._store, prefix=prefix or None)
            entries = [
                Entry(key=meta["path"].removeprefix(self._prefix), size=meta["size"], etag=meta["e_tag"] or "")
                for batch in batches
                for meta in batch
            ]
        return sorted(entries, key=lambda entry: entry.key)

    def find(self, key: str) -> Entry | None:
        """Return an object, or None."""
        with contextlib.suppress(FileNotFoundError), self._calling("read"):
            meta = self._library.head(self._store, self._prefix + key)
            return Entry(key=key, size=meta["size"], etag=meta["e_tag"] or "")
        return None

    def read(self, key: str) -> bytes | None:
        """Return the bytes of a small object, or None if there is none."""
        with contextlib.suppress(FileNotFoundError), self._calling("read"):
            return bytes(self._library.get(self._store, self._prefix + key).bytes())
        return None

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of an object. Raises FileNotFoundError if it is not there."""
        with self._calling("read"):
            return bytes(self._library.get_range(self._store, self._prefix + key, start=start, length=length))

    def write(self, key: str, content: bytes) -> str:
        """Write a small object, whole or not at all; return its mark."""
        with self._calling("write to"):
            result = self._library.put(self._store, self._prefix + key, content, use_multipart=False)
        return str(result["e_tag"] or "")

    def send(self, key: str, path: pathlib.Path) -> str:
        """Write a file of any size in parts, whole or not at all; return the object's mark. Raises OSError for the
        file.
        """
        part_bytes = max(_PART_BYTES, -(-path.stat().st_size // _MOST_PARTS))
        with path.open("rb") as file, self._calling("write to"):
            result = self._library.put(
                self._store, self._prefix + key, file, chunk_size=part_bytes, max_concurrency=PARTS_AT_ONCE
            )
        return str(result["e_tag"] or "")

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there do not matter."""
        for key in keys:
            with contextlib.suppress(FileNotFoundError), self._calling("delete from"):
                self._library.delete(self._store, self._prefix + key)

    @contextlib.contextmanager
    def _calling(self, verb: str) -> Iterator[None]:
        exceptions = self._library.exceptions
        try:
            yield
        except (exceptions.BaseError, FileNotFoundError, TimeoutError) as error:
            code = _code(str(error))
            if isinstance(error, FileNotFoundError) and code != _NO_BUCKET:
                raise
            # The library's own error goes: it quotes the answer of the service.
            raise _translated(error, code, f"cannot {verb} {self.uri}", exceptions) from None


def _translated(error: Exception, code: str, what: str, exceptions: Any) -> errors.StorageError:
    if code == _NO_BUCKET:
        return errors.StorageAccessError(f"{what}: there is no such bucket")
    refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    if refused or code in _NOT_ALLOWED:
        answer = f" ({code})" if code else ""
        return errors.StorageAccessError(f"{what}: the keys of the environment do not open it{answer}")
    return errors.StorageError(f"{what}: {_summary(str(error))}")


def open_folder(uri: str, s3: S3Spec) -> Folder:
    """Return the folder that a URI names; nothing is asked of the store. Raises ManifestError for a URI that is none,
    and where the library is not installed.
    """
    if importlib.util.find_spec(_PACKAGE) is None:
        raise errors.ManifestError(f"{uri} is in an object store, but the package {_PACKAGE} is not installed here")
    uri = uri.rstrip("/")
    parts = urllib.parse.urlsplit(uri)
    stores = importlib.import_module(f"{_PACKAGE}.store")
    if parts.scheme == "file":
        return Folder(uri, stores.LocalStore(parts.path, mkdir=True))
    options: dict[str, Any] = {
        "client_options": {
            "timeout": datetime.timedelta(seconds=_REQUEST_S),
            "connect_timeout": datetime.timedelta(seconds=_CONNECT_S),
            "allow_http": (s3.endpoint or "").startswith("http://"),
        },
        "retry_config": {"max_retries": _RETRIES, "retry_timeout": datetime.timedelta(seconds=_RETRY_S)},
    }
    if parts.scheme == "s3":
        options["config"] = {
            name: value for name, value in (("endpoint", s3.endpoint), ("region", s3.region)) if value is not None
        }
    try:
        return Folder(uri, stores.from_url(uri, **options))
    except (_library().exceptions.BaseError, ValueError) as error:
        raise errors.ManifestError(f"{uri} cannot be used as an object store: {_summary(str(error))}") from None


def _library() -> types.ModuleType:
    # Here and not above: --help and a job without an object store do not load it.
    library = importlib.import_module(_PACKAGE)
    importlib.import_module(f"{_PACKAGE}.exceptions")
    return library


def _code(text: str) -> str:
    """Return the service's code in an error of the library, "" without one."""
    match = _CODE.search(text)
    return match[1] if match else ""


def _summary(text: str) -> str:
    """Return what an error of the library says without request and answer."""
    if code := _code(text):
        return code
    if "error sending request" in text or "tcp connect" in text or "dns error" in text:
        return "the service cannot be reached"
    if match := _STATUS.search(text):
        return f"the service answers with status {match[1] or match[2]}"
    if "169.254." in text or "credential" in text.lower():
        return "there are no keys in the environment, and no identity of this machine"
    return "the service does not answer as expected"
