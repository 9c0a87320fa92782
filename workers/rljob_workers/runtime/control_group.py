"""The control groups that this process's memory counts in, as folders of files: the own one and what is mounted.

In a container the group is the root of what is mounted, whatever /proc says of its place outside.
"""

import pathlib
from collections.abc import Iterator

MEMBERSHIP = pathlib.Path("/proc/self/cgroup")
ROOT = pathlib.Path("/sys/fs/cgroup")


def of_memory(membership: pathlib.Path = MEMBERSHIP, root: pathlib.Path = ROOT) -> Iterator[tuple[pathlib.Path, int]]:
    """Yield folders that may not exist, the own group's first, each with the version of its files, 1 or 2."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        inside = place.lstrip("/")
        if not controllers:
            yield from ((root / inside, 2), (root, 2))
        elif "memory" in controllers.split(","):
            yield from ((root / "memory" / inside, 1), (root / "memory", 1))
