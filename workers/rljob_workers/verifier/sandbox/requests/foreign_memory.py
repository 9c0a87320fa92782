"""The memory of another process, by /proc: a program's, while the kernel holds one of its threads in a call.

A default pod refuses process_vm_readv; /proc/<pid>/mem takes the same rights, which an ancestor of the same user has.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from types import TracebackType

from rljob_workers.verifier.sandbox.requests.path_view import MAX_PATH_BYTES

_PAGE_BYTES = 4096


class ForeignMemory:
    """A thread's. Hazard: the number may be another's by now; ask whether the request is valid after this was made."""

    def __init__(self, task: int) -> None:
        """Raises OSError."""
        self._descriptor = os.open(f"/proc/{task}/mem", os.O_RDWR | os.O_CLOEXEC)

    def __enter__(self) -> "ForeignMemory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def text(self, address: int) -> bytes:
        """Return what is there, up to a NUL. Raises OSError: EFAULT, ENAMETOOLONG."""
        content = b""
        while len(content) < MAX_PATH_BYTES:
            begin = address + len(content)
            # To the end of a page: what comes after it may not be there.
            piece = self._read(begin, min(_PAGE_BYTES - begin % _PAGE_BYTES, MAX_PATH_BYTES - len(content)))
            text, nul, _ = piece.partition(b"\0")
            content += text
            if nul:
                return content
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))

    def read(self, address: int, size: int) -> bytes:
        """Return so many bytes. Raises OSError: EFAULT."""
        content = self._read(address, size)
        if len(content) < size:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        return content

    def write(self, address: int, data: bytes) -> None:
        """Raises OSError: EFAULT."""
        with _faults():
            if os.pwrite(self._descriptor, data, address) < len(data):
                raise OSError

    def _read(self, address: int, size: int) -> bytes:
        with _faults():
            if piece := os.pread(self._descriptor, size, address):
                return piece
            raise OSError


@contextlib.contextmanager
def _faults() -> Iterator[None]:
    """Say of all errors what the kernel says of an address that is not there; one of its own half is out of range."""
    try:
        yield
    except (OSError, OverflowError) as error:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT)) from error
