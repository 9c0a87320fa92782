"""Python's garbage collector in a process with much that lives long: pauses that do not grow with it.

A full collection looks at every object: 0.1 to 0.4 s with 5,000 open conversations, again and again as they come and
go, and for that long nobody is answered. What survives the collection of a generation above the youngest is therefore
left out of those after it (`gc.freeze`); what nothing refers to any more is freed all the same. Only cycles that were
left out and are garbage by now would stay, so once there are twice as many objects left out as after the last whole
collection, the next one looks at all of them.
"""

import gc
from collections.abc import Mapping

# Counting what was left out walks through it.
_COLLECTIONS_PER_COUNT = 640
_LEAST = 1_000_000


class Survivors:
    """Leaves what survives out of later collections, and now and then looks at it all the same."""

    def __init__(self) -> None:
        """What lives by now is left out, as large libraries are that were imported."""
        gc.freeze()
        self._most = _twice(gc.get_freeze_count())
        self._num_collections = 0
        self._looks_at_all = False

    def watch(self) -> None:
        """Do so from now on, for as long as this process lives."""
        gc.callbacks.append(self.collected)

    def collected(self, phase: str, info: Mapping[str, int]) -> None:
        """Take note of a collection, as `gc.callbacks` tells it."""
        if phase != "stop" or info["generation"] < (2 if self._looks_at_all else 1):
            return
        gc.freeze()
        self._num_collections += 1
        if self._looks_at_all:
            self._looks_at_all = False
            self._most = _twice(gc.get_freeze_count())
        elif self._num_collections % _COLLECTIONS_PER_COUNT == 0 and gc.get_freeze_count() > self._most:
            self._looks_at_all = True
            gc.unfreeze()


def _twice(num_objects: int) -> int:
    return 2 * num_objects + _LEAST
