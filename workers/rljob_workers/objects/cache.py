"""Folders and files of an object store on this machine: fetched once for all processes, and again when they change.

    <cache>/objects/<digest of the URI>/<digest of the listing>/...

The listing has each object's size and the mark that the store gave it, so other bytes are another folder; one that is
there is whole, because it appeared by rename. A lock serialises processes that start together.
"""

import contextlib
import fcntl
import json
import logging
import os
import pathlib
from collections.abc import Callable, Iterator

from rljob_api import errors, resolve
from rljob_api.manifest.storage import S3Spec
from rljob_workers.objects import files, stores
from rljob_workers.runtime import retry

logger = logging.getLogger(__name__)

_RETRY_FOR_S = 600.0
# Of an exported model or a checkpoint: its digests are compared.
_LISTING = "COMPLETE.json"


def folder(uri: str, s3: S3Spec, cache: pathlib.Path) -> pathlib.Path:
    """Return a local folder with what is below a URI. Raises FileNotFoundError if that is nothing, DataError naming an
    object with other bytes than its COMPLETE.json says, StorageAccessError, StorageError after ten minutes.
    """
    return _patiently(lambda: _fetched(stores.open_folder(uri, s3), "", cache))


def file(uri: str, s3: S3Spec, cache: pathlib.Path) -> pathlib.Path:
    """Return a local file with an object's bytes, under the object's own name. Raises as `folder` does."""
    parent, _, name = uri.rstrip("/").rpartition("/")
    return _patiently(lambda: _fetched(stores.open_folder(parent, s3), name, cache)) / name


def _patiently(fetch: Callable[[], pathlib.Path]) -> pathlib.Path:
    return retry.retry_sync(fetch, deadline_s=_RETRY_FOR_S, backoff=retry.Backoff(first_s=1.0, most_s=30.0))


def _fetched(source: stores.Folder, name: str, cache: pathlib.Path) -> pathlib.Path:
    entries = [entry] if name and (entry := source.find(name)) else ([] if name else source.entries())
    entries = [entry for entry in entries if not pathlib.PurePosixPath(entry.key).name.startswith(".")]
    if not entries:
        raise FileNotFoundError(f"there is nothing at {source.uri}{'/' if name else ''}{name}")
    home = cache / "objects" / resolve.digest([source.uri, name])
    target = home / resolve.digest([[entry.key, entry.size, entry.etag] for entry in entries])
    if target.is_dir():
        return target
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / ".lock"):
        if not target.is_dir():
            _fetch(source, entries, target)
    return target


def _fetch(source: stores.Folder, entries: list[stores.Entry], target: pathlib.Path) -> None:
    digests = _digests(source)
    total = sum(entry.size for entry in entries)
    logger.info("fetching %s, %.1f MB", source.uri, total / 1e6, extra={"event": "fetch"})
    work = target.with_name(f".{target.name}.new")
    for entry in entries:
        content = files.Content(size=entry.size, digest=digests.get(entry.key, ""))
        # What a process that was killed left is compared where its digest is known, else fetched again.
        if not content.digest:
            (work / entry.key).unlink(missing_ok=True)
        try:
            files.fetch(source, entry.key, work / entry.key, content)
        except errors.DigestError as error:
            # Not worth another try: the store would answer with the same bytes.
            raise errors.DataError(str(error)) from error
    os.replace(work, target)


def _digests(source: stores.Folder) -> dict[str, str]:
    content = source.read(_LISTING)
    if content is None:
        return {}
    try:
        listed = json.loads(content)
        return {name: each["digest"] for name, each in listed.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        # Another file of that name.
        return {}


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
