"""How much memory this process can still have: of the machine and of its control groups, whichever leaves less.

Pages of files that the kernel can drop count as available, as in MemAvailable of /proc/meminfo.
"""

import pathlib
from collections.abc import Iterator

from rljob_workers.runtime import control_group

_MEMINFO = pathlib.Path("/proc/meminfo")
# By version of the control groups: limit, usage, and lines of memory.stat: the page cache, and what of it is memory
# that processes share and no file.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"),
    2: ("memory.max", "memory.current", "file", "shmem"),
}


def available_bytes(
    meminfo: pathlib.Path = _MEMINFO,
    membership: pathlib.Path = control_group.MEMBERSHIP,
    root: pathlib.Path = control_group.ROOT,
) -> int:
    """Return the bytes that can be taken without swapping."""
    lines = meminfo.read_text(encoding="ascii").splitlines()
    (machine,) = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min((machine, *_left_in_groups(membership, root)))


def _left_in_groups(membership: pathlib.Path, root: pathlib.Path) -> Iterator[int]:
    for folder, version in control_group.of_memory(membership, root):
        limit, usage, cache, shared = _FILES[version]
        try:
            # Version 2 writes "max" where there is no limit, and the outermost group has no such file.
            most = int((folder / limit).read_text(encoding="ascii"))
            used = int((folder / usage).read_text(encoding="ascii"))
            numbers = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        except (OSError, ValueError):
            continue
        yield max(0, most - used + int(numbers.get(cache, 0)) - int(numbers.get(shared, 0)))
