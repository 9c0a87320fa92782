"""A test that an object store can be used, before anything is computed whose result could not be kept there."""

import secrets

from rljob_api import errors
from rljob_workers.objects import stores
from rljob_workers.runtime import retry

# A store that does not answer may be starting, or the name of its service may not be known yet.
_RETRY_FOR_S = 30.0


def check(folder: stores.Folder, *, retry_for_s: float = _RETRY_FOR_S) -> None:
    """Write a small object, read it and delete it. Raises StorageAccessError at once, StorageError after a while."""
    retry.retry_sync(
        lambda: _write_and_read(folder), deadline_s=retry_for_s, backoff=retry.Backoff(first_s=0.5, most_s=5.0)
    )


def _write_and_read(folder: stores.Folder) -> None:
    key, content = f".check-{secrets.token_hex(8)}", secrets.token_bytes(16)
    folder.write(key, content)
    try:
        if folder.read(key) != content:
            raise errors.StorageError(f"{folder.uri} does not give back what was written to it")
    finally:
        folder.delete([key])
