"""Who holds a run up (operator reference 11). Pure: from waiter to awaited until somebody who waits for nobody."""

import dataclasses
import enum
from collections.abc import Sequence

from rljob_api import types


class StallState(enum.StrEnum):
    """What a progress counter says."""

    PROGRESSING = "progressing"
    STALLED = "stalled"
    UNREADABLE = "unreadable"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Waiters from the trainer to the end. `culprit` is the awaited role at the end; a cycle has no end."""

    links: tuple[types.Waiting, ...]
    culprit: str
    is_cycle: bool

    def message(self, now: float) -> str:
        """Return the whole chain as one sentence per link, seconds rounded; empty if nobody waits."""
        parts = [
            f"{link.pod or link.role} waits for {link.what or link.on_role} for {max(0.0, now - link.since):.0f} s"
            for link in self.links
        ]
        return "; ".join(parts)


def stall_state(
    *, counter_readable: bool, active: bool, past_startup: bool, last_progress_at: float, timeout_s: float, now: float
) -> StallState:
    """Return whether the run stands still: no progress for `timeout_s` while active and past start-up (11.2).

    A counter that cannot be read is no stall of the data loop (11.6).
    """
    if not active or not past_startup:
        return StallState.PROGRESSING
    if not counter_readable:
        return StallState.UNREADABLE
    return StallState.STALLED if now - last_progress_at >= timeout_s else StallState.PROGRESSING


def chain(waiting: Sequence[types.Waiting], *, first_role: str = "trainer") -> Chain:
    """Return who waits for whom, beginning with `first_role`; of a role's waiters the one that waits longest speaks."""
    longest: dict[str, types.Waiting] = {}
    for link in sorted(waiting, key=lambda link: (link.since, link.pod)):
        longest.setdefault(link.role, link)
    links, role, seen = list[types.Waiting](), first_role, set[str]()
    while role in longest and role not in seen:
        seen.add(role)
        links.append(longest[role])
        role = longest[role].on_role
    return Chain(links=tuple(links), culprit=role, is_cycle=role in seen)
