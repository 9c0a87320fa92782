"""Which share of recent answers the infrastructure lost: above `maxInfraFailureFraction` the run is degraded.

Of a window and not of the run: what was lost an hour ago says nothing about now. A few answers say nothing either.
"""

import collections
import dataclasses
from collections.abc import Mapping

WINDOW_S = 900.0
MIN_ANSWERS = 20
# One look in so many seconds is kept: the window is sharp to that.
_EVERY_S = 10.0


_BY_ROLE = "failures:infra:"


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """fraction of the window's answers, 0 to 1, 0 of too few answers; role that lost most of them, empty for none."""

    fraction: float = 0.0
    role: str = ""


NOTHING = Lost()


@dataclasses.dataclass(frozen=True, slots=True)
class _Look:
    at: float
    lost: int
    answers: int
    by_role: Mapping[str, int]


class InfraShare:
    """Remembers the ledger's cumulative counters for as long as the window. State of one coordinator."""

    def __init__(self) -> None:
        """Nothing was seen."""
        self._looks: collections.deque[_Look] = collections.deque()

    def look(self, counters: Mapping[str, int], *, now: float) -> Lost:
        """Take in the counters at a monotonic time; return what the window lost."""
        seen = _look(counters, now)
        if not self._looks or now - self._looks[-1].at >= _EVERY_S:
            self._looks.append(seen)
        # The newest look that is as old as the window is what it is compared with.
        while len(self._looks) > 1 and now - self._looks[1].at >= WINDOW_S:
            self._looks.popleft()
        before = self._looks[0]
        answers = seen.answers - before.answers
        if answers < MIN_ANSWERS:
            return NOTHING
        grown = {role: number - before.by_role.get(role, 0) for role, number in seen.by_role.items()}
        worst = max(grown, key=lambda role: grown[role], default="")
        return Lost((seen.lost - before.lost) / answers, worst if grown.get(worst) else "")


def _look(counters: Mapping[str, int], now: float) -> _Look:
    by_role: dict[str, int] = {}
    for name, number in counters.items():
        if name.startswith(_BY_ROLE):
            role = name.removeprefix(_BY_ROLE).split(":", 1)[0]
            by_role[role] = by_role.get(role, 0) + number
    lost = counters.get("trajectories:infra_failure", 0)
    return _Look(now, lost, lost + counters.get("trajectories:accepted", 0), by_role)
