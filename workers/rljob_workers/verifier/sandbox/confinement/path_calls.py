"""System calls that name a file by its path: where they have it, and what they write back. Data.

Sources: the manual pages of section 2; include/uapi/linux/{fcntl,stat}.h, arch/x86/include/uapi/asm/stat.h and
include/uapi/asm-generic/{stat,statfs}.h for the sizes of structures.
"""

import dataclasses
from collections.abc import Mapping

from rljob_workers.verifier.sandbox.confinement import syscalls

AT_FDCWD, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH = -100, 0x100, 0x1000
# The same on both architectures; asm-generic/fcntl.h.
O_PATH = 0o10000000
_STATX_BYTES, _STATFS_BYTES = 256, 120
_STAT_BYTES = {syscalls.X86_64.name: 144, syscalls.AARCH64.name: 128}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PathCall:
    """Positions of arguments. folder: the descriptor that a relative path begins at, None for the working folder.

    follows: whether a link at the end of the path is followed, where no flag says otherwise. makes: whether anyone who
    answers makes the call itself and writes `result_bytes` to where `result` points, which the caller can then not
    change by changing the path; otherwise the kernel makes it, and decides for itself. size: holds how many bytes the
    caller has room for.
    """

    path: int = 0
    folder: int | None = None
    flags: int | None = None
    follows: bool = True
    makes: bool = False
    result: int | None = None
    result_bytes: int = 0
    size: int | None = None


def path_calls(architecture: syscalls.Architecture) -> Mapping[str, PathCall]:
    """Return them by name. Those that make or change a file are not there: they are refused whatever the path is."""
    stat_bytes = _STAT_BYTES[architecture.name]
    return {
        "open": PathCall(),
        "openat": PathCall(path=1, folder=0),
        "execve": PathCall(),
        "execveat": PathCall(path=1, folder=0, flags=4),
        "chdir": PathCall(),
        "stat": PathCall(makes=True, result=1, result_bytes=stat_bytes),
        "lstat": PathCall(makes=True, result=1, result_bytes=stat_bytes, follows=False),
        "newfstatat": PathCall(path=1, folder=0, flags=3, makes=True, result=2, result_bytes=stat_bytes),
        "statx": PathCall(path=1, folder=0, flags=2, makes=True, result=4, result_bytes=_STATX_BYTES),
        "statfs": PathCall(makes=True, result=1, result_bytes=_STATFS_BYTES),
        "access": PathCall(makes=True),
        "faccessat": PathCall(path=1, folder=0, makes=True),
        "faccessat2": PathCall(path=1, folder=0, flags=3, makes=True),
        "readlink": PathCall(makes=True, result=1, size=2, follows=False),
        "readlinkat": PathCall(path=1, folder=0, makes=True, result=2, size=3, follows=False),
    }


NAMES = tuple(path_calls(syscalls.X86_64))
