"""Whether the watches live: the age of the oldest change that a list saw and no watch told (operator reference 2.3).

A frozen watch is silent like a quiet one, and Kopf keeps bookmarks to itself. Deletions do not count: a watch that is
opened anew never tells of what vanished meanwhile.
"""


class WatchLag:
    """Uids of which a list knew more than the watches. Times are monotonic seconds."""

    def __init__(self) -> None:
        """Know of none."""
        self._since: dict[str, float] = {}

    def ahead(self, uid: str, *, now: float) -> None:
        """Note that a list showed a newer version of an object."""
        self._since.setdefault(uid, now)

    def told(self, uid: str) -> None:
        """Note that a watch told of the object, or that it is gone."""
        self._since.pop(uid, None)

    def seconds(self, *, now: float) -> float:
        """Return the age of the oldest, 0 without one."""
        return max((now - since for since in self._since.values()), default=0.0)
