"""Memory of a role: the sum over its process tree, and its peak.

Proportional set size (PSS) divides each shared page by the number of its users, so that a weight image mapped by two
processes of a run is counted once. Where the kernel does not tell it, the resident size stands in. Telling it takes
the kernel a walk over all page tables, so it is asked only when the resident sizes say that a peak may have come.
"""

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

from rljob_workers.local import process_tree

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TOTAL = "total"
# Resident sizes that grew by less than this share of what they were at the last question bring no new peak.
_GROWTH = 0.005


def process_bytes(pid: int, *, proc: pathlib.Path = pathlib.Path("/proc")) -> int:
    """Return the PSS of one process in bytes, its RSS where PSS is unreadable, 0 when it is gone."""
    try:
        for line in (proc / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return resident_bytes(pid, proc=proc)


def resident_bytes(pid: int, *, proc: pathlib.Path = pathlib.Path("/proc")) -> int:
    """Return the RSS of one process in bytes, 0 when it is gone."""
    try:
        return int((proc / str(pid) / "statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def tree_bytes(root: int, parent_of: Mapping[int, int], size: Callable[[int], int] = process_bytes) -> int:
    """Return the sum over `root` and its descendants."""
    return sum(size(pid) for pid in (root, *process_tree.descendants(root, dict(parent_of))))


class PeakMemory:
    """Peaks in bytes per role and of the sum of all at one moment (`total`)."""

    def __init__(self, peaks: Mapping[str, int] | None = None) -> None:
        """Start from known peaks, for example of an earlier segment of the run."""
        self._peaks = dict(peaks or {})
        self._asked_at: dict[str, int] = {}

    @property
    def peaks(self) -> dict[str, int]:
        """Return the highest value seen of each role, and of their sum."""
        return dict(self._peaks)

    def sample(self, roots: Mapping[str, Sequence[int]]) -> None:
        """Measure now. `roots` names the top processes of each role."""
        parent_of = process_tree.parents()

        def measure(size: Callable[[int], int]) -> dict[str, int]:
            return {role: sum(tree_bytes(pid, parent_of, size) for pid in pids) for role, pids in roots.items()}

        if self.may_be_peak(measure(resident_bytes)):
            self.observe(measure(process_bytes))

    def may_be_peak(self, resident: Mapping[str, int]) -> bool:
        """Return whether a role, or all together, grew beyond what they were when this said yes last."""
        sizes = {**resident, TOTAL: sum(resident.values())}
        grown = {role: size for role, size in sizes.items() if size > self._asked_at.get(role, 0) * (1 + _GROWTH)}
        self._asked_at |= grown
        return bool(grown)

    def observe(self, role_bytes: Mapping[str, int]) -> None:
        """Take one measurement of all roles into account."""
        self.merge({**role_bytes, TOTAL: sum(role_bytes.values())})

    def merge(self, peaks: Mapping[str, int]) -> None:
        """Raise the peaks to those given."""
        for role, size in peaks.items():
            self._peaks[role] = max(size, self._peaks.get(role, 0))
