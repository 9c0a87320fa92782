"""A file where a program may write, opened by its runner: what it is does not change with what its path becomes.

A program that swaps a folder for a link between a look and an act would have its runner, which no Landlock confines,
act somewhere else. So the place is opened once, for nothing but to name it (O_PATH); where that lies is asked of the
kernel, and everything else is done to the descriptor.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence

# linux/fcntl.h: what may be set of a mode is who may read, write and run it; what makes others someone else may not.
_MODES = 0o777


def is_below(place: str, roots: Sequence[str]) -> bool:
    """Return whether a real path is one of these folders, or in one."""
    return any(place == root or place.startswith(f"{root}/") for root in roots)


@contextlib.contextmanager
def opened(place: str, roots: Sequence[str], *, follow: bool = False) -> Iterator[int]:
    """Yield a descriptor of a place, which lies in one of these folders. Raises OSError: ENOENT for another one.

    follow: of a descriptor's name in /proc, which the kernel follows to what is open.
    """
    descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        if not is_below(os.readlink(name_of(descriptor)), roots):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        yield descriptor
    finally:
        os.close(descriptor)


def name_of(descriptor: int) -> str:
    """Return a path that the kernel follows to what is open, and no further."""
    return f"/proc/self/fd/{descriptor}"


def target_of(descriptor: int) -> bytes:
    """Return what a link says. Raises OSError: EINVAL for anything else."""
    try:
        return os.fsencode(os.readlink("", dir_fd=descriptor))
    except FileNotFoundError as error:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from error


def set_mode(descriptor: int, mode: int) -> None:
    """Raises OSError."""
    os.chmod(name_of(descriptor), mode & _MODES)
