"""What Landlock is asked to forbid, by the version of the kernel's interface. Pure, but for `version`, which asks it.

Constants and structures: include/uapi/linux/landlock.h. Reading, and running the interpreter again, is left open below
the paths of a list; writing, making, removing and linking, TCP, signals and abstract sockets are handled and allowed
nowhere. What Landlock does not know (stat, chmod, chown, attributes, times) is the system-call filter's: refused, or
asked for.
"""

import ctypes
import dataclasses
import enum
import os
import pathlib
import struct
import sysconfig
from collections.abc import Iterator

# x86_64, aarch64 and riscv64 share the number (include/uapi/asm-generic/unistd.h).
CREATE_RULESET = 444
_ASK_VERSION = 1
# From here on signals and abstract sockets end at the border of a ruleset.
SCOPES_SINCE = 6


class Fs(enum.IntFlag):
    """Rights on files, in the order in which the kernel got them."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


_FIRST_FS = Fs.REFER - 1
# Bits that a version added: files; TCP bind and connect; abstract Unix sockets and signals.
_FS_SINCE = {2: Fs.REFER, 3: Fs.TRUNCATE, 5: Fs.IOCTL_DEV}
_NET_SINCE, _ALL_NET = 4, 0b11
_ALL_SCOPES = 0b11


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ruleset:
    """What is handled, which is forbidden wherever no rule allows it."""

    files: Fs
    net: int
    scopes: int

    def attributes(self) -> bytes:
        """Return `struct landlock_ruleset_attr`, as long as the kernel of this version knows it."""
        fields = [int(self.files)]
        if self.net or self.scopes:
            fields.append(self.net)
        if self.scopes:
            fields.append(self.scopes)
        return struct.pack(f"<{len(fields)}Q", *fields)


def ruleset(abi: int) -> Ruleset:
    """Return everything that a version can forbid. Raises ValueError below the first version."""
    if abi < 1:
        raise ValueError(f"Landlock has versions from 1 on, not {abi}")
    files = Fs(_FIRST_FS)
    for since, right in _FS_SINCE.items():
        files |= right if abi >= since else Fs(0)
    return Ruleset(
        files=files, net=_ALL_NET if abi >= _NET_SINCE else 0, scopes=_ALL_SCOPES if abi >= SCOPES_SINCE else 0
    )


def writable(abi: int) -> int:
    """Return the rights on a folder in which a program may do anything but make devices, pipes and sockets."""
    never = Fs.MAKE_CHAR | Fs.MAKE_BLOCK | Fs.MAKE_SOCK | Fs.MAKE_FIFO | Fs.IOCTL_DEV
    return int(ruleset(abi).files & ~never)


def version() -> int:
    """Return the version of this kernel's interface. Raises OSError where it has none or refuses it."""
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    if abi < 1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(abi)


def readable(interpreter: pathlib.Path) -> dict[str, int]:
    """Return what a program may read, and the rights on it: the interpreter, its library, shared libraries.

    Only the interpreter and the loader may be executed: a program may become another Python, confined as it is.
    """
    tree, file = Fs.READ_FILE | Fs.READ_DIR, Fs.READ_FILE
    rules = [(interpreter, file | Fs.EXECUTE)]
    rules += [(loader, file | Fs.EXECUTE) for loader in _loaders()]
    rules += [(pathlib.Path(sysconfig.get_path("stdlib")), tree)]
    rules += [(pathlib.Path(folder), tree) for folder in ("/lib", "/lib64", "/usr/lib", "/usr/lib64")]
    rules += [(_shared_interpreter(), file), (pathlib.Path("/etc/ld.so.cache"), file)]
    rights_by_path: dict[str, int] = {}
    for path, rights in rules:
        # Rights on a folder that a file is refused with EINVAL, so only what exists is named, by its real path.
        if path.is_file() or path.is_dir():
            real = str(path.resolve())
            rights_by_path[real] = rights_by_path.get(real, 0) | int(rights)
    return rights_by_path


def _loaders() -> Iterator[pathlib.Path]:
    for folder in ("/lib64", "/lib"):
        yield from pathlib.Path(folder).glob("ld-linux*.so.*")


def _shared_interpreter() -> pathlib.Path:
    """Return the library that an interpreter built with --enable-shared is; a path that is not a file for another
    one.
    """
    return pathlib.Path(sysconfig.get_config_var("LIBDIR") or "/", sysconfig.get_config_var("INSTSONAME") or "none")
