"""The place that an agent's commands may write to: made, counted, emptied and compared by its runner.

<folder>/bin    names of the interpreter, to be read
<folder>/work   where commands begin, and their HOME
<folder>/tmp    their TMPDIR

Bytes and entries are counted while a command runs, at a few looks a second, since no quota takes effect without
privileges: what one look misses the next one finds. What was removed and is still open counts. Between two looks a
command can write what the disk takes; NOT counted is a removed file that is mapped and no longer open. Behind both
stands the pod's own limit.
"""

import contextlib
import errno
import hashlib
import os
import pathlib
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from rljob_workers.verifier.sandbox.confinement import landlock
from rljob_workers.verifier.sandbox.processes import removal

_BLOCK_BYTES = 512
# Deeper than this nothing is counted, so that nothing may be there.
_MAX_DEPTH = 64
# At most a tenth of the time goes into looks.
_LOOK_S, _LOOKS_SHARE = 0.05, 10
_NAMES = ("python", "python3")
_UNCOUNTED = (FileNotFoundError, NotADirectoryError)


class QuotaError(Exception):
    """What was to be written does not fit, or the path is none that can be read or written."""


class Scratch:
    """One place, of one runner. Not for several threads."""

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        most_bytes: int,
        most_entries: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make it in a folder that is there and empty."""
        self._folder = folder.resolve()
        self.work, self.tmp, self.bin = (self._folder / name for name in ("work", "tmp", "bin"))
        self._most_bytes, self._most_entries, self._now_s = most_bytes, most_entries, now_s
        self._next_look_s = 0.0
        for place in (self.work, self.tmp, self.bin):
            place.mkdir(mode=0o700)
            # In a volume of a pod with fsGroup a new folder has the group's bit, which is gone once it was emptied.
            place.chmod(0o700)
        for name in _NAMES:
            (self.bin / name).symlink_to(os.path.realpath(sys.executable))

    def writable(self, abi: int) -> dict[str, int]:
        """Return the rights on what commands may write to, by its path."""
        return {str(place): landlock.writable(abi) for place in (self.work, self.tmp)}

    def look(self, pids: Iterable[int]) -> str:
        """Return "disk" if more is there than may be, counted again if the last count is long enough ago."""
        started_s = self._now_s()
        if started_s < self._next_look_s:
            return ""
        exceeded = self.exceeded(pids)
        ended_s = self._now_s()
        self._next_look_s = ended_s + max(_LOOK_S, _LOOKS_SHARE * (ended_s - started_s))
        return exceeded

    def exceeded(self, pids: Iterable[int] = ()) -> str:
        """Return "disk" if more is there than may be, or what cannot be counted. pids: of those that may hold files."""
        usage = self._usage()
        if usage is None or usage + sum(_removed_bytes(pids)) > self._most_bytes:
            return "disk"
        return ""

    def _usage(self) -> int | None:
        """Return the bytes that are there; None if there are too many entries, or some that cannot be counted."""
        left = [(str(place), 0) for place in (self.work, self.tmp)]
        num_entries = num_bytes = 0
        while left:
            place, depth = left.pop()
            try:
                with os.scandir(place) as entries:
                    for entry in entries:
                        num_entries += 1
                        if num_entries > self._most_entries:
                            return None
                        with contextlib.suppress(*_UNCOUNTED):
                            status = entry.stat(follow_symlinks=False)
                            num_bytes += status.st_blocks * _BLOCK_BYTES
                            if stat.S_ISDIR(status.st_mode):
                                left.append((entry.path, depth + 1))
            except _UNCOUNTED:
                # Removed since it was listed.
                continue
            except OSError:
                return None
            if depth > _MAX_DEPTH:
                return None
        return num_bytes

    def fingerprint(self) -> str:
        """Return a digest of every path in the whole place: what it is, its mode, and what it holds."""
        digest = hashlib.sha256()
        for path in sorted(self._folder.rglob("*")):
            status = path.lstat()
            content = b""
            if stat.S_ISLNK(status.st_mode):
                content = os.fsencode(os.readlink(path))
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            name = os.fsencode(path.relative_to(self._folder))
            for part in (name, str(status.st_mode).encode(), content):
                digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()

    def clear(self) -> None:
        """Remove all that commands wrote. Raises OSError. Only while none runs."""
        for place in (self.work, self.tmp):
            removal.empty(str(place))

    def read(self, path: str, max_bytes: int) -> bytes:
        """Return the beginning of a regular file. Raises QuotaError with a sentence. Only while no command runs."""
        place = self._place(path)
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise QuotaError(f"{path!r} is not a file")
                return file.read(max_bytes)
        except OSError as error:
            raise QuotaError(f"cannot read {path!r}: {error.strerror}") from error

    def write(self, path: str, data: bytes) -> None:
        """Write a file, and the folders that it lies in. Raises QuotaError as `read` does. Only while no command runs.

        What would not fit is refused before anything is written.
        """
        place = self._place(path)
        usage = self._usage()
        if usage is None or usage + len(data) > self._most_bytes:
            raise QuotaError(f"{path!r} does not fit: {len(data)} bytes on top of what is there")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
            with os.fdopen(os.open(place, flags, 0o600), "wb") as file:
                file.write(data)
        except OSError as error:
            raise QuotaError(f"cannot write {path!r}: {error.strerror}") from error

    def _place(self, path: str) -> pathlib.Path:
        """Return where a path leads to, links followed, relative ones from `work`. Raises QuotaError outside."""
        if "\0" in path:
            raise QuotaError("a path has no NUL")
        place = pathlib.Path(os.path.realpath(self.work / path))
        if not any(place.is_relative_to(root) for root in (self.work, self.tmp)):
            raise QuotaError(f"{path!r} is not in {self.work} or {self.tmp}")
        return place


def _removed_bytes(pids: Iterable[int]) -> Iterator[int]:
    """Yield the sizes of files that have no name any more and are open in one of these processes, each file once."""
    counted: set[tuple[int, int]] = set()
    for pid in pids:
        # It, or what it has open, may be gone by now.
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                try:
                    status = os.stat(f"/proc/{pid}/fd/{descriptor}")
                except OSError as error:
                    if error.errno in (errno.ENOENT, errno.ESRCH):
                        continue
                    raise
                key = (status.st_dev, status.st_ino)
                if stat.S_ISREG(status.st_mode) and not status.st_nlink and key not in counted:
                    counted.add(key)
                    yield status.st_blocks * _BLOCK_BYTES
