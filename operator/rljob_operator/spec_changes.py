"""How long a change of a spec takes to reach each kind of child: what `rljob_operator_spec_to_child_seconds` counts.

A change is answered once a pass over it finds no child to change. What is applied later waited for something else, as a
trainer's budget waits for the run, and says nothing of the operator's speed.
"""

import dataclasses


@dataclasses.dataclass(slots=True)
class _Change:
    generation: int
    seen_at: float
    kinds: set[str]
    answered: bool = False


class SpecChanges:
    """The last change of each job's spec. Times are monotonic seconds."""

    def __init__(self) -> None:
        """Know of no change."""
        self._last: dict[str, _Change] = {}

    def saw(self, key: str, generation: int, *, now: float) -> None:
        """Note a job as a watch tells of it; the same generation again is no change."""
        known = self._last.get(key)
        if known is None or known.generation != generation:
            self._last[key] = _Change(generation, now, set())

    def planned(self, key: str, generation: int, *, applies: bool) -> None:
        """Note whether a pass over a job of that generation had a child to apply."""
        known = self._last.get(key)
        if known is not None and known.generation == generation and not applies:
            known.answered = True

    def applied(self, key: str, kind: str, *, now: float) -> float | None:
        """Return the seconds from the change to this child of it; None if it is not the first of its kind, or late."""
        known = self._last.get(key)
        if known is None or known.answered or kind in known.kinds:
            return None
        known.kinds.add(kind)
        return now - known.seen_at

    def forget(self, key: str) -> None:
        """Let go of a job that is gone."""
        self._last.pop(key, None)
