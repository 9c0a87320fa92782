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
STATFS_BYTES, TIMES_BYTES = 120, 32
_STAT_BYTES = {syscalls.X86_64.name: 144, syscalls.AARCH64.name: 128}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PathCall:
    """Positions of arguments. folder: the descriptor that a relative path begins at, None for the working folder.

    follows: whether a link at the end of the path is followed, where no flag says otherwise. makes: whether anyone who
    answers makes the call itself and writes `result_bytes` to where `result` points, which the caller can then not
    change by changing the path; otherwise the kernel makes it, and decides for itself. size: holds how many bytes the
    caller has room for. second: another path of the same call. changes: it sets the mode or the times of a file, which
    Landlock does not know: anyone who answers makes it, where the program may write and nowhere else. Without a path
    such a call is about the descriptor of `folder`.
    """

    path: int | None = 0
    folder: int | None = None
    flags: int | None = None
    follows: bool = True
    makes: bool = False
    result: int | None = None
    result_bytes: int = 0
    size: int | None = None
    second: "PathCall | None" = None
    changes: bool = False


STATX = PathCall(path=1, folder=0, flags=2, makes=True, result=4, result_bytes=256)


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
        "statx": STATX,
        "statfs": PathCall(makes=True, result=1, result_bytes=STATFS_BYTES),
        "access": PathCall(makes=True),
        "faccessat": PathCall(path=1, folder=0, makes=True),
        "faccessat2": PathCall(path=1, folder=0, flags=3, makes=True),
        "readlink": PathCall(makes=True, result=1, size=2, follows=False),
        "readlinkat": PathCall(path=1, folder=0, makes=True, result=2, size=3, follows=False),
    }


NAMES = tuple(path_calls(syscalls.X86_64))
# Of a program that has a place to write to. Where else they would write, Landlock refuses them.
WRITING: Mapping[str, PathCall] = {
    "creat": PathCall(),
    "mkdir": PathCall(follows=False),
    "mkdirat": PathCall(path=1, folder=0, follows=False),
    "rmdir": PathCall(follows=False),
    "unlink": PathCall(follows=False),
    "unlinkat": PathCall(path=1, folder=0, follows=False),
    # What a link leads to is text: the path is looked at once someone follows it.
    "symlink": PathCall(path=1, follows=False),
    "symlinkat": PathCall(path=2, folder=1, follows=False),
    "rename": PathCall(follows=False, second=PathCall(path=1, follows=False)),
    "renameat": PathCall(path=1, folder=0, follows=False, second=PathCall(path=3, folder=2, follows=False)),
    "renameat2": PathCall(path=1, folder=0, follows=False, second=PathCall(path=3, folder=2, follows=False)),
    "chmod": PathCall(changes=True),
    "fchmod": PathCall(path=None, folder=0, changes=True),
    "fchmodat": PathCall(path=1, folder=0, changes=True),
    "utimensat": PathCall(path=1, folder=0, flags=3, changes=True),
}
