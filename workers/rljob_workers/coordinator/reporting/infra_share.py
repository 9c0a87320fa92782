"""What the infrastructure lost: which share of recent answers, and who loses them while a run makes no progress.

The share is of a window and not of the run: what was lost an hour ago says nothing about now. A few answers say nothing
either. Above `maxInfraFailureFraction` the run is degraded.
"""

import collections
from collections.abc import Mapping

WINDOW_S = 900.0
MIN_ANSWERS = 20
# One look in so many seconds is kept: the window is sharp to that.
_EVERY_S = 10.0
_BY_ROLE = "failures:infra:"


class InfraShare:
    """Remembers the ledger's cumulative counters for as long as the window. State of one coordinator."""

    def __init__(self) -> None:
        self._looks: collections.deque[tuple[float, int, int]] = collections.deque()

    def look(self, counters: Mapping[str, int], *, now: float) -> float:
        """Take in the counters at a monotonic time; return the share of the window, 0 to 1; 0 of too few answers."""
        lost = counters.get("trajectories:infra_failure", 0)
        answers = lost + counters.get("trajectories:accepted", 0)
        if not self._looks or now - self._looks[-1][0] >= _EVERY_S:
            self._looks.append((now, lost, answers))
        # The newest look that is as old as the window is what it is compared with.
        while len(self._looks) > 1 and now - self._looks[1][0] >= WINDOW_S:
            self._looks.popleft()
        _, lost_before, answers_before = self._looks[0]
        recent = answers - answers_before
        return (lost - lost_before) / recent if recent >= MIN_ANSWERS else 0.0


def failing_role(before: Mapping[str, int], counters: Mapping[str, int]) -> str:
    """Return the role that lost most answers between two states of the ledger's counters; empty if none was lost."""
    grown: dict[str, int] = {}
    for name, number in counters.items():
        if name.startswith(_BY_ROLE):
            role = name.removeprefix(_BY_ROLE).split(":", 1)[0]
            grown[role] = grown.get(role, 0) + number - before.get(name, 0)
    worst = max(grown, key=lambda role: grown[role], default="")
    return worst if grown.get(worst) else ""
