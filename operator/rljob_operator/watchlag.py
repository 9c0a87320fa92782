"""Whether the watches live: the age of the oldest change that a list saw and no watch told (operator reference 2.3).

A frozen watch is silent like a quiet one, and Kopf keeps bookmarks to itself. Deletions do not count: a watch that is
opened anew never tells of what vanished meanwhile.
"""


class WatchLag:
    """Uids of which a list knew more than the watches. Times are monotonic seconds."""

    def __init__(self) -> None:
        """Know of none."""
        self._since: dict[str, tuple[str, float]] = {}

    def ahead(self, uid: str, *, kind: str, now: float) -> None:
        """Note that a list showed a newer version of an object."""
        self._since.setdefault(uid, (kind, now))

    def told(self, uid: str) -> None:
        """Note that a watch told of the object, or that it is gone."""
        self._since.pop(uid, None)

    def seconds(self, *, now: float, kind: str = "") -> float:
        """Return the age of the oldest, of one kind or of any; 0 without one."""
        return max((now - since for of, since in self._since.values() if kind in ("", of)), default=0.0)
