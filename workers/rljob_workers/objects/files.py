"""Files sent to an object store and fetched from it, each with its size and digest."""

import concurrent.futures
import dataclasses
import os
import pathlib

import blake3

from rljob_api import errors
from rljob_workers.objects import stores

# One request; a file is fetched in several at once.
_FETCH_BYTES = 32 << 20
_AT_ONCE = stores.PARTS_AT_ONCE
# The end of the name of a file that is being fetched; a process that is killed leaves it.
UNFINISHED = ".part"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a file holds: size in bytes and BLAKE3 in hexadecimal digits; empty for a digest that is not known."""

    size: int
    digest: str


def content_of(path: pathlib.Path) -> Content:
    """Read a file. Raises OSError."""
    return Content(size=path.stat().st_size, digest=blake3.blake3().update_mmap(path).hexdigest())


def fetch(folder: stores.Folder, key: str, target: pathlib.Path, content: Content) -> int:
    """Make `target` hold an object, whole or not at all, and return how many bytes were fetched: 0 if it was there.

    Raises DigestError naming the object if it is missing or has other bytes, StorageError, OSError.
    """
    if target.is_file() and target.stat().st_size == content.size and _fits(target, content):
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f".{target.name}.{os.getpid()}{UNFINISHED}")
    try:
        _fetch_parts(folder, key, work, content.size)
        if not _fits(work, content):
            raise errors.DigestError(f"{folder.uri}/{key} holds other bytes than were written")
        os.replace(work, target)
    finally:
        work.unlink(missing_ok=True)
    return content.size


def _fits(path: pathlib.Path, content: Content) -> bool:
    return not content.digest or content_of(path) == content


def _fetch_parts(folder: stores.Folder, key: str, work: pathlib.Path, size: int) -> None:
    entry = folder.find(key)
    if entry is None or entry.size != size:
        what = "is missing" if entry is None else f"has {entry.size} bytes instead of {size}"
        raise errors.DigestError(f"{folder.uri}/{key} {what}")
    descriptor = os.open(work, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)

    def fetch_part(start: int) -> None:
        part = folder.read_range(key, start, min(_FETCH_BYTES, size - start))
        os.pwrite(descriptor, part, start)

    try:
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fetch") as pool:
            for fetched in [pool.submit(fetch_part, start) for start in range(0, size, _FETCH_BYTES)]:
                fetched.result()
        os.fsync(descriptor)
    except FileNotFoundError:
        raise errors.DigestError(f"{folder.uri}/{key} is missing") from None
    finally:
        os.close(descriptor)
